"""What has to be true before a handle leaves, and what never becomes a task (SEP-2663, task creation)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import pytest
import redis
from mcp.server.mcpserver import MCPServer
from pydantic import BeforeValidator

from mcptasks import Tasks
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import house
from tests.support.raw_client import RawClient
from tests.support.tools import ask_by_resolver, ask_by_returning

pytestmark = pytest.mark.anyio

ACCEPT: Final = {"action": "accept", "content": {"word": "hi"}}


def refuses(value: Any) -> Any:
    """A user's validator that breaks instead of judging."""
    raise RuntimeError("secret detail of the validator")


def tools(mcp: MCPServer, tasks: Tasks) -> None:
    """Tools whose calls can be wrong in several ways."""

    @mcp.tool()
    @tasks.durable()
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @mcp.tool()
    @tasks.durable(mode="required")
    async def add_required(a: int, b: int = 1) -> int:
        return a + b

    @mcp.tool()
    @tasks.durable()
    async def picky(value: Annotated[Any, BeforeValidator(refuses)]) -> str:
        raise NotImplementedError

    mcp.tool(name="by_resolver")(tasks.durable(prelude=True)(ask_by_resolver))
    mcp.tool(name="by_returning")(tasks.durable(prelude=True, mode="required")(ask_by_returning))


def records(raw: redis.Redis, settings: Settings) -> list[str]:
    """Everything under the test's prefix."""
    return sorted(raw.scan_iter(f"{settings.prefix}*"))


@covers("P20", "R1")
async def test_a_handle_resolves_at_once_on_every_server_of_the_store(settings: Settings) -> None:
    """SEP-2663: the server must not answer with a task before tasks/get would find it. No worker has seen it yet."""
    async with house(settings, tools) as (home, first):
        second = await home.open()
        for maker, reader in ((first, second), (second, first)):
            created = (await maker.call("add", {"a": 1})).result
            assert await reader.state(created["taskId"]) == {**created, "resultType": "complete"}


@covers("P24")
async def test_ids_are_long_and_random(settings: Settings) -> None:
    """SEP-2663: at least 128 bits of chance. 32 characters out of 64 carry 192, if no place in them is fixed."""
    async with house(settings, tools) as (_, client):
        ids = [await client.start("add", {"a": 1}) for _ in range(64)]

        assert all(re.fullmatch(r"[A-Za-z0-9_-]{32}", task_id) for task_id in ids)
        # With 64 ids a free place shows fewer than 8 different characters once in 10^60 runs.
        assert min(len(set(column)) for column in zip(*ids, strict=True)) >= 8


BAD_CALLS: Final = [
    ("add", {}),
    ("add", {"a": "one"}),
    ("add", {"a": 1, "b": None}),
    ("add", {"a": {"deep": [1]}}),
    ("add", [1]),
    ("add", "a"),
    ("add_required", {}),
    ("picky", {"value": 1}),
    ("no_such_tool", {"a": 1}),
]


@covers("P22", "C03")
@pytest.mark.parametrize(("tool", "arguments"), BAD_CALLS)
@pytest.mark.parametrize("declares", [True, False])
async def test_a_bad_call_gets_the_live_answer_byte_for_byte_and_makes_no_task(
    settings: Settings, raw: redis.Redis, tool: str, arguments: Any, declares: bool
) -> None:
    """Ours: a task that could only fail helps nobody, so the call is answered as a server without tasks answers it."""
    async with house(settings, tools) as (home, client):
        ordinary = await home.open_ordinary(declares_tasks=declares)

        live = await ordinary.call(tool, arguments)
        assert live == await client.with_(declares_tasks=declares).call(tool, arguments)
        assert live.body.get("error") or live.result["isError"]
        assert b"secret" not in live.raw
        assert records(raw, settings) == []


@covers("P22")
async def test_arguments_reach_the_tool_as_the_live_call_would_read_them(settings: Settings) -> None:
    """Ours: what validation lets pass (a number as text, an unknown name) is passed on, and means the same there."""
    async with house(settings, tools) as (home, client):
        ordinary = await home.open_ordinary()
        for arguments in ({"a": "2", "b": 3}, {"a": 2.0}, {"a": 1, "unknown": 5}):
            live = (await ordinary.call("add", arguments)).result
            task_id = await client.start("add", arguments)
            await home.fleet.settle()
            assert live == (await client.state(task_id))["result"]


async def two_rounds(client: RawClient, tool: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer to the second round of a call whose first one asks."""
    asked = (await client.call(tool, {"suffix": "!"})).result
    assert asked["resultType"] == "input_required"
    [key] = asked["inputRequests"]
    second = await client.call(tool, {"suffix": "!"}, inputResponses={key: answer}, requestState=asked["requestState"])
    return second.result


@covers("P21")
@pytest.mark.parametrize("tool", ["by_resolver", "by_returning"])
@pytest.mark.parametrize(
    "answer",
    [ACCEPT, {"action": "decline"}, {"action": "cancel"}, {"action": "accept", "content": {"word": ""}}],
    ids=["accepted", "declined", "cancelled", "does not fit"],
)
async def test_questions_before_the_task_are_settled_on_the_request(
    settings: Settings, raw: redis.Redis, tool: str, answer: dict[str, Any]
) -> None:
    """SEP-2663: multi-round-trip first, then the task, whose result reflects the answers as the live call's does."""
    async with house(settings, tools) as (home, client):
        live = await two_rounds(await home.open_ordinary(), tool, answer)
        assert records(raw, settings) == []

        created = await two_rounds(client, tool, answer)
        assert created["resultType"] == "task"
        await home.fleet.settle()
        state = await client.state(created["taskId"])
        assert (state["status"], state["result"]) == ("completed", live)


@covers("P21")
async def test_a_first_round_that_asks_stores_nothing(settings: Settings, raw: redis.Redis) -> None:
    """SEP-2663: the task is created on the final round; a client that never answers leaves nothing behind."""
    async with house(settings, tools) as (home, client):
        for tool in ("by_resolver", "by_returning"):
            assert (await client.call(tool, {"suffix": "!"})).result["resultType"] == "input_required"
        assert records(raw, settings) == [] and home.fleet.messages == []


@covers("P21")
async def test_a_forged_state_makes_no_task(settings: Settings, raw: redis.Redis) -> None:
    """The SDK seals the state between rounds; a task must not be made from one that it does not accept."""
    async with house(settings, tools) as (_, client):
        asked = (await client.call("by_resolver", {"suffix": "!"})).result
        responses = dict.fromkeys(asked["inputRequests"], ACCEPT)
        for state, suffix in (("v1.forged", "!"), (asked["requestState"], "?")):
            reply = await client.call("by_resolver", {"suffix": suffix}, inputResponses=responses, requestState=state)
            assert (reply.status, reply.error["code"]) == (400, -32602)
        assert records(raw, settings) == []
