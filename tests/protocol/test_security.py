"""Whose task it is (SEP-2663: security), on whatever server and connection the question comes in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any, Final

import pytest
import redis
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer

from mcptasks import Tasks
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import house
from tests.support.raw_client import RawClient, Reply
from tests.support.tools import ask_first

pytestmark = pytest.mark.anyio

ACCEPT: Final = {"action": "accept", "content": {"word": "ANS-456"}}


def tools(mcp: MCPServer, tasks: Tasks) -> None:
    """One tool that asks."""
    mcp.tool()(tasks.durable()(ask_first))


async def parked(client: RawClient, home: Any) -> tuple[str, Reply]:
    """A task that waits for its caller, and what the caller sees of it."""
    task_id = await client.start("ask_first")
    await home.fleet.settle()
    return task_id, await client.get(task_id)


async def refused(client: RawClient, task_id: str, seen: Reply) -> None:
    """The client can do nothing with the task and learns nothing of it."""
    [key] = seen.result["inputRequests"]
    replies = [await client.get(task_id), await client.update(task_id, {key: ACCEPT}), await client.cancel(task_id)]
    unknown = await client.get("u" * 32)
    assert unknown.error["code"] == -32602
    assert replies == [unknown] * 3


@covers("B01", "P80", "P20", "P60")
async def test_a_task_is_its_callers_on_every_server_and_connection_and_nobody_elses(settings: Settings) -> None:
    """SEP-2663: bound to who calls, not to a session. The server that made it is gone; another one serves it."""
    async with house(settings, tools, auth=True, token="alice") as (home, first):
        task_id, seen = await parked(first, home)
        await home.kill(first)
        alice = await home.open(token="alice")
        anonymous = await home.open(auth=False)

        assert seen == await alice.get(task_id)
        for other in (alice.with_(token="bob"), anonymous):
            await refused(other, task_id, seen)
        assert (await alice.with_(token=None).get(task_id)).status == 401
        assert (await alice.with_(token="stranger").get(task_id)).status == 401
        assert seen == await alice.get(task_id)

        [key] = seen.result["inputRequests"]
        await alice.update(task_id, {key: ACCEPT})
        await home.fleet.settle()
        assert (await alice.state(task_id))["status"] == "completed"


@covers("P80")
@pytest.mark.parametrize("other", ["alice@other-client", "alice!https://other.example/", "alice2", "ALICE", ""])
async def test_client_issuer_and_subject_together_are_the_caller(settings: Settings, other: str) -> None:
    """SEP-2663: a subject is unique for its issuer only, and one client must not see what another one started."""
    async with house(settings, tools, auth=True, token="alice") as (home, alice):
        task_id, seen = await parked(alice, home)
        await refused(alice.with_(token=other or "@app"), task_id, seen)


@covers("P80")
async def test_a_renewed_token_is_the_same_caller(settings: Settings) -> None:
    """Ours: tokens come and go within a task's life; identity is what they say, not what they are."""
    async with house(settings, tools, auth=True, token="alice#1") as (home, alice):
        task_id, seen = await parked(alice, home)
        assert seen == await alice.with_(token="alice#2").get(task_id)


def by_header(ctx: ServerRequestContext[Any, Any]) -> str:
    """The caller as some proxy in front names it."""
    return str(ctx.request.headers["x-user"]) if ctx.request else ""


async def by_header_later(ctx: ServerRequestContext[Any, Any]) -> str:
    """The same, after a look into some directory."""
    await asyncio.sleep(0)
    return by_header(ctx)


def with_history(mcp: MCPServer, tasks: Tasks) -> None:
    """The usual tools, and one that tells its caller which tasks are his."""
    tools(mcp, tasks)

    async def history(ctx: Context) -> list[str]:
        mine = await tasks.mine(ctx.request_context)
        return [task.task_id for task in (await mine.page(tool="ask_first")).tasks]

    @mcp.tool()
    async def live(ctx: Context) -> list[str]:
        return await history(ctx)

    @mcp.tool()
    @tasks.durable()
    async def later(ctx: Context) -> list[str]:
        return await history(ctx)


@covers("W8", "N3", "P80")
async def test_a_tool_can_tell_its_caller_which_tasks_are_his(settings: Settings) -> None:
    """W8: in the server, and on a worker too: the identity is kept for the run. Without one, nothing is listed."""
    async with house(settings, with_history, auth=True, token="alice") as (home, alice):
        bob = alice.with_(token="bob")
        for caller in (alice, bob):
            task_id, _ = await parked(caller, home)
            live = (await caller.call("live")).result["structuredContent"]["result"]
            run = await caller.start("later")
            await home.fleet.settle()
            assert (await caller.state(run))["result"]["structuredContent"]["result"] == live == [task_id]


@covers("P81", "W8")
async def test_without_authentication_no_ids_are_listed(settings: Settings) -> None:
    """P81: they are secrets, and everybody is the same caller."""
    async with house(settings, with_history) as (home, client):
        await parked(client, home)
        assert (await client.call("live")).result["structuredContent"]["result"] == []


@covers("N3", "P80")
@pytest.mark.parametrize("owner", [by_header, by_header_later])
async def test_a_function_of_ones_own_decides_who_the_caller_is(settings: Settings, owner: Any) -> None:
    """Ours: sync or async; what it returns is compared, on create and on every request after it."""
    async with house(settings, tools, owner=owner) as (_, client):
        mine, theirs = {"X-User": "north"}, {"X-User": "south"}
        task_id = await client.start("ask_first", headers=mine)

        assert (await client.get(task_id, headers=mine)).result["status"] == "working"
        for request in (client.get, client.cancel):
            reply = await request(task_id, headers=theirs)
            assert reply.error["code"] == -32602
        assert (await client.get(task_id, headers=mine)).result["status"] == "working"
        assert (await client.cancel(task_id, headers=mine)).result == {"resultType": "complete"}


def nobody(ctx: ServerRequestContext[Any, Any]) -> str | Awaitable[str]:
    raise PermissionError("secret of the directory")


@covers("N3", "W9")
async def test_a_caller_who_cannot_be_named_gets_no_task(settings: Settings, raw: redis.Redis) -> None:
    """Ours: an owner function that fails never means "anonymous"; the request fails and says nothing of why."""
    async with house(settings, tools, owner=nobody) as (home, client):
        replies = [await client.call("ask_first"), await client.get("u" * 32), await client.cancel("u" * 32)]
        assert [reply.error["code"] for reply in replies] == [-32603] * 3
        assert all(b"secret" not in reply.raw for reply in replies)
        assert list(raw.scan_iter(f"{settings.prefix}*")) == [] and home.fleet.messages == []


@covers("N3")
async def test_no_token_is_ever_stored(settings: Settings, raw: redis.Redis) -> None:
    """Ours: identity is kept for the run; the bearer and other headers are not, in no key and no value."""
    keeping = settings.model_copy(update={"headers": ("x-tenant",)})
    async with house(keeping, tools, auth=True, token="alice@reports#TOK-123") as (home, alice):
        task_id = await alice.start("ask_first", headers={"X-Tenant": "north", "X-Other": "OTHER-789"})
        for _ in range(2):
            dump = "".join(f"{key} {contents(raw, key)}" for key in raw.scan_iter(f"{settings.prefix}*"))
            assert "alice" in dump and "north" in dump
            assert "TOK-123" not in dump and "Bearer" not in dump and "OTHER-789" not in dump
            await home.fleet.settle()
        assert (await alice.state(task_id))["status"] == "input_required"


def contents(raw: redis.Redis, key: str) -> Any:
    """The whole value, whatever its type."""
    match raw.type(key):
        case "hash":
            return raw.hgetall(key)
        case "zset":
            return raw.zrange(key, 0, -1)
        case "list":
            return raw.lrange(key, 0, -1)
        case _:
            return raw.get(key)


@covers("P81")
async def test_without_authentication_the_id_is_the_key_and_the_log_does_not_have_it(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours: whoever has the id has the task; so no line at INFO or above, of server or worker, holds a whole one."""
    caplog.set_level(logging.INFO)
    async with house(settings, tools) as (home, client):
        task_id, seen = await parked(client, home)
        stranger = await home.open()
        assert seen == await stranger.get(task_id)

        [key] = seen.result["inputRequests"]
        await client.update(task_id, {key: ACCEPT})
        [message] = home.fleet.messages
        await home.fleet.settle()
        await home.fleet.deliver(message)
        await client.cancel(task_id)
        await client.get(task_id, headers={"Mcp-Name": "wrong"})

        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
        assert any(task_id[:10] in line for line in lines)
        assert not any(task_id in line or task_id[10:] in line for line in lines)
        assert not any("ANS-456" in line for line in lines)
