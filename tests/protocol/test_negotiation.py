"""Who gets a task, and who is told that there are tasks (SEP-2663, capability negotiation)."""

from __future__ import annotations

from typing import Any, Final

import pytest
import redis
from mcp.server.mcpserver import MCPServer

from mcptasks import Tasks
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import house
from tests.support.raw_client import TASKS, LegacyClient, RawClient
from tests.support.tools import ask_first

pytestmark = pytest.mark.anyio

#: What stood, or was put by mistake, where clients of the 2025 draft asked for a task.
JUNK: Final = [{}, {"ttl": 5}, None, True, 42, "x", [[]]]
MISSING: Final = {"requiredCapabilities": {"extensions": {TASKS: {}}}}


def tools(mcp: MCPServer, tasks: Tasks) -> None:
    """One tool of each mode, and one that asks."""

    @mcp.tool()
    async def plain(word: str) -> str:
        return word

    @mcp.tool()
    @tasks.durable()
    async def optional(word: str) -> str:
        return word

    @mcp.tool()
    @tasks.durable(mode="required")
    async def required(word: str) -> str:
        return word

    mcp.tool()(tasks.durable()(ask_first))


def stored(raw: redis.Redis, settings: Settings) -> int:
    """How many keys the store has under the test's prefix."""
    return len(list(raw.scan_iter(f"{settings.prefix}*")))


def tasks_of(raw: redis.Redis, settings: Settings) -> set[str]:
    """The records that the store has under the test's prefix."""
    return set(raw.scan_iter(f"{settings.prefix}task:*}}"))


@covers("P01", "C02")
async def test_discovery_advertises_the_extension_and_nothing_of_the_old_design(settings: Settings) -> None:
    """SEP-2663: `capabilities.extensions` holds the extension with an empty object; `capabilities.tasks` is history."""
    async with house(settings, tools) as (_, client):
        capabilities = (await client.send("server/discover", {})).result["capabilities"]

        assert capabilities["extensions"] == {TASKS: {}}
        assert "tasks" not in capabilities


@covers("P02", "C01")
async def test_a_declaration_counts_for_its_own_request_only(settings: Settings) -> None:
    """SEP-2663: capabilities are per request; what an earlier request on the connection declared is not declared."""
    async with house(settings, tools) as (home, client), home.fleet.delivering():
        declared = (await client.call("optional", {"word": "a"})).result
        undeclared = (await client.undeclared().call("optional", {"word": "b"})).result

        assert declared["resultType"] == "task"
        assert undeclared["resultType"] == "complete" and undeclared["structuredContent"] == {"result": "b"}
        assert "taskId" not in undeclared


@covers("P03", "C01")
async def test_a_required_tool_names_the_extension_that_the_client_lacks(settings: Settings, raw: redis.Redis) -> None:
    """SEP-2663: -32021 with the missing capability as data; over HTTP that is status 400."""
    async with house(settings, tools) as (_, client):
        reply = await client.undeclared().call("required", {"word": "a"})

        assert (reply.status, reply.error["code"], reply.error["data"]) == (400, -32021, MISSING)
        assert stored(raw, settings) == 0


@covers("P04", "C01")
async def test_task_methods_are_closed_to_a_request_that_does_not_declare(settings: Settings) -> None:
    """SEP-2663: -32021 from get, update and cancel, with a live id and a fitting answer; the task does not change."""
    async with house(settings, tools) as (home, client):
        task_id = await client.start("ask_first")
        await home.fleet.settle()
        before = await client.get(task_id)
        [key] = before.result["inputRequests"]
        unaware = client.undeclared()

        replies = [
            await unaware.get(task_id),
            await unaware.update(task_id, {key: {"action": "accept", "content": {"word": "x"}}}),
            await unaware.cancel(task_id),
        ]

        assert [(reply.status, reply.error["code"], reply.error["data"]) for reply in replies] == [
            (400, -32021, MISSING)
        ] * 3
        assert before == await client.get(task_id)
        assert home.fleet.messages == []


@covers("P05", "C02")
@pytest.mark.parametrize("junk", JUNK, ids=repr)
async def test_the_old_task_hint_changes_nothing_whatever_it_holds(settings: Settings, junk: Any) -> None:
    """SEP-2663: the server alone decides; the hint of the 2025 draft neither makes nor prevents nor disturbs a task."""
    async with house(settings, tools) as (home, client), home.fleet.delivering():
        assert (await client.call("optional", {"word": "a"}, task=junk)).result["resultType"] == "task"
        for caller, tool in ((client, "plain"), (client.undeclared(), "plain"), (client.undeclared(), "optional")):
            without = await caller.call(tool, {"word": "a"})
            assert without == await caller.call(tool, {"word": "a"}, task=junk)
            assert without.result["resultType"] == "complete"


@covers("P06", "C02")
@pytest.mark.parametrize("method", ["tasks/list", "tasks/result"])
async def test_methods_of_the_old_design_do_not_exist(settings: Settings, method: str) -> None:
    """SEP-2663 removed them: -32601, to clients that declare and to clients that do not."""
    async with house(settings, tools) as (_, client):
        task_id = await client.start("optional", {"word": "a"})
        for caller in (client, client.undeclared()):
            reply = await caller.send(method, {"taskId": task_id})
            assert (reply.status, reply.error["code"]) == (404, -32601)
            assert task_id.encode() not in reply.raw


async def legacy(client: RawClient, capabilities: dict[str, Any] | None = None) -> LegacyClient:
    """A client of 2025-11-25 on the same server."""
    return await LegacyClient(client.http).connect(capabilities)


@covers("P06")
@pytest.mark.parametrize(
    ("declared", "refused"), [({}, -32021), ({"extensions": {TASKS: {}}}, -32602)], ids=["as it was", "smuggled"]
)
async def test_a_client_of_an_older_version_never_sees_a_task(
    settings: Settings, raw: redis.Redis, declared: dict[str, Any], refused: int
) -> None:
    """SEP-2663 belongs to 2026-07-28: before it nothing is advertised, no call becomes a task, no method is served.

    Not even where the old handshake's capabilities carry the extension's name.
    """
    async with house(settings, tools) as (home, client):
        old = await legacy(client, declared)
        assert TASKS not in str(old.greeting) and "tasks" not in old.greeting["capabilities"]

        task_id = await client.start("optional", {"word": "a"})
        record = raw.hgetall(f"{settings.prefix}task:{{{task_id}}}")
        for method in ("tasks/get", "tasks/update", "tasks/cancel", "tasks/list", "tasks/result"):
            reply = await old.send(method, {"taskId": task_id, "inputResponses": {}})
            assert reply.error["code"] == -32601
        assert record == raw.hgetall(f"{settings.prefix}task:{{{task_id}}}")

        async with home.fleet.delivering():
            answer = (await old.send("tools/call", {"name": "optional", "arguments": {"word": "b"}})).body["result"]
        tasks_before = tasks_of(raw, settings)
        refusal = (await old.send("tools/call", {"name": "required", "arguments": {"word": "c"}})).error
        assert answer == {
            "content": [{"type": "text", "text": "b"}],
            "structuredContent": {"result": "b"},
            "isError": False,
        }
        assert refusal["code"] == refused
        assert tasks_before == tasks_of(raw, settings) and len(tasks_before) == 2


@covers("P05", "C02")
@pytest.mark.parametrize("junk", JUNK, ids=repr)
async def test_an_older_clients_task_hint_is_tolerated(settings: Settings, junk: Any) -> None:
    """Ours: 2025-11-25 knew the hint and would have objected to junk in it; here nobody looks at it in any version."""
    async with house(settings, tools) as (home, client), home.fleet.delivering():
        old = await legacy(client)
        for tool in ("plain", "optional"):
            reply = await old.send("tools/call", {"name": tool, "arguments": {"word": "a"}, "task": junk})
            assert reply.body["result"]["structuredContent"] == {"result": "a"}
