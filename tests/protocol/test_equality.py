"""A tool's result is the same live and as a task, byte for byte except for the server's stamp (SEP-2663, P32)."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import pytest
from mcp.server.mcpserver import MCPServer

from mcptasks.client import TasksClient
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.equality_tools import ASKING, QUIET, REFUSED, RETURNING, lifespan, register
from tests.support.house import House, NoTasks, house
from tests.support.person import person
from tests.support.raw_client import LegacyClient, RawClient, Reply

pytestmark = pytest.mark.anyio

HEADERS: Final = {"X-Tenant": "blue"}


def _name(call: tuple[str, dict[str, Any]]) -> str:
    return f"{call[0]}({', '.join(call[1])})"


@asynccontextmanager
async def both(settings: Settings) -> AsyncGenerator[tuple[House, RawClient, RawClient]]:
    """The same tools on a server with tasks and on an ordinary one, for one authenticated caller."""
    keeping = settings.model_copy(update={"headers": ("x-tenant",)})
    async with house(keeping, register, auth=True, lifespan=lifespan, token="ann") as (home, client):
        yield home, client, await home.open_ordinary(token="ann")


def unstamped(reply: Reply) -> bytes:
    """The response's own bytes, its stamp cut out and nothing else touched."""
    stamp = json.dumps(reply.body.get("result", {}).get("_meta", {}).get("io.modelcontextprotocol/serverInfo"))
    return reply.raw.replace(b"io.modelcontextprotocol/serverInfo", b"").replace(stamp.encode(), b"")


@covers("P32", "P31", "C03", "F05", "F09")
@pytest.mark.parametrize("call", QUIET, ids=_name)
async def test_a_task_ends_with_the_very_bytes_of_the_live_answer(
    settings: Settings, call: tuple[str, dict[str, Any]]
) -> None:
    """SEP-2663: the result of a task is exactly what the request would have returned. Order of members included."""
    tool, arguments = call
    async with both(settings) as (home, client, ordinary):
        live = (await ordinary.call(tool, arguments, headers=HEADERS)).body
        task_id = await client.start(tool, arguments, headers=HEADERS)
        assert await home.fleet.deliver() in ("completed", "failed")
        task = await client.state(task_id)
        if "error" in live:
            assert (task["status"], task["error"]) == ("failed", live["error"])
            return
        meta = live["result"].pop("_meta")
        del meta["io.modelcontextprotocol/serverInfo"]
        expected = live["result"] | ({"_meta": meta} if meta else {})
        assert task["status"] == "completed"
        assert _ordered(task["result"]) == _ordered(expected)


def _ordered(value: dict[str, Any]) -> str:
    """JSON in which the place of `_meta` alone does not count: the live answer's stamp moves it."""
    return json.dumps({name: value[name] for name in sorted(value, key=lambda name: name == "_meta")})


@covers("P32", "P31", "C03", "F05", "F09")
@pytest.mark.parametrize("call", QUIET, ids=_name)
async def test_a_client_that_knows_no_tasks_gets_the_very_bytes_of_the_live_answer(
    settings: Settings, call: tuple[str, dict[str, Any]]
) -> None:
    """Ours: the call waits for its task on the fleet; what it is answered with tells nothing of it."""
    async with both(settings) as (home, client, ordinary), home.fleet.delivering():
        live = await ordinary.call(*call, headers=HEADERS)
        assert await client.undeclared().call(*call, headers=HEADERS) == live
        older = await LegacyClient(client.http, token="ann").connect()
        older_live = await LegacyClient(ordinary.http, token="ann").connect()
        params = {"name": call[0], "arguments": call[1]}
        assert await older.send("tools/call", params) == await older_live.send("tools/call", params)


@covers("P22")
@pytest.mark.parametrize("call", REFUSED, ids=_name)
async def test_a_call_that_cannot_run_gets_the_live_answer_and_no_task(
    settings: Settings, call: tuple[str, dict[str, Any]]
) -> None:
    """Ours: arguments are validated before anything is stored, and the SDK itself words the refusal."""
    async with both(settings) as (home, client, ordinary):
        assert unstamped(await client.call(*call)) == unstamped(await ordinary.call(*call))
        assert home.fleet.messages == []


# ------------------------------------------------------------------------------------------------ tools that ask


def _ordinary() -> MCPServer:
    server = MCPServer("house", lifespan=lifespan)
    register(server, cast("Any", NoTasks()))
    return server


#: Each with the client that can answer it live. Only an older one can be asked in line, only a modern one by returning.
_LIVE: Final = [
    *((call, "auto") for call in RETURNING),
    *((call, "legacy") for call in ASKING),
    *((call, "legacy") for call in RETURNING if call[0] != "ask_by_returning"),
]


@covers("P32", "R3")
@pytest.mark.filterwarnings("ignore:The (roots|sampling) capability is deprecated")
@pytest.mark.parametrize(("call", "live_mode"), _LIVE, ids=lambda value: value if isinstance(value, str) else value[0])
async def test_a_tool_that_asks_comes_to_the_live_result(
    settings: Settings, call: tuple[str, dict[str, Any]], live_mode: str
) -> None:
    """The three ways to ask work unmodified, and the answers lead to what they lead to live."""
    async with person(_ordinary(), mode=live_mode) as live_client:
        live = await live_client.call_tool(*call)
    async with (
        house(settings, register, lifespan=lifespan) as (home, _),
        home.fleet.delivering(),
        person(home.mcp, extensions=[TasksClient()]) as client,
    ):
        durable = await client.call_tool(*call)
        for unaware in ("auto", "legacy"):
            async with person(home.mcp, mode=unaware) as other:
                bridged = await other.call_tool(*call)
                assert bridged.model_dump(exclude={"meta"}) == durable.model_dump(exclude={"meta"}), unaware
    assert durable.model_dump(exclude={"meta", "result_type"}) == live.model_dump(exclude={"meta", "result_type"})
    assert not durable.is_error
