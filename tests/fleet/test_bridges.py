"""Clients that know no tasks call durable tools of a real fleet, over HTTP and stdio, and notice nothing of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, InputRequiredResult, InputResponses

from mcptasks.model import Record, Status
from tests.fleet.conftest import Running, on_running
from tests.fleet.system import ROOT, Fleet, new_key, text
from tests.requirements import covers
from tests.support.person import person
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:The (roots|sampling) capability is deprecated"),
]

#: Every way a tool can ask, and what it comes to when each question is answered with itself.
ASKING: Final = {
    "ask1": "7 {key}?",
    "ask1_held": "{key}?",
    "fan2": "one? two?",
    "ask_by_resolver": "{key}?",
    "ask_by_returning": "first? second?",
    "ask_the_model": "ha",
    "ask_for_roots": "file:///home",
}
VERSIONS: Final = {"auto": "2026-07-28", "legacy": "2025-11-25"}


async def echo(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """The answer to a question is the question."""
    return ElicitResult(action="accept", content={"value": params.message})


def address(running: Running, doors: Mapping[str, str], transport: str) -> str | StdioServerParameters:
    """Where the fleet's tools can be called: one of its HTTP servers, or one of the client's own on stdio."""
    if transport in doors:
        return doors[transport]
    serve = "from tests.fleet.tools import mcp; mcp.run()"
    return StdioServerParameters(
        command=sys.executable, args=["-c", serve], env=running.fleet.environment(), cwd=str(ROOT)
    )


def arguments_of(tool: str) -> dict[str, Any]:
    """What one of the tools that ask is called with."""
    return {"key": new_key()} | ({"x": 7} if tool == "ask1" else {})


def tasks_of(fleet: Fleet) -> set[str]:
    """The ids of all tasks there are."""
    return {key.partition("{")[2].partition("}")[0] for key in fleet.task_keys()}


def new_task(fleet: Fleet, known: set[str]) -> str:
    """The id of the one task that is not among the known ones."""
    [task_id] = wait_until(lambda: tasks_of(fleet) - known, description="there is a new task")
    return task_id


def await_end(fleet: Fleet, task_id: str) -> Record:
    """The task, once it has ended."""

    def ended() -> Record | None:
        record = fleet.record(task_id)
        return record if record.status.terminal else None

    return wait_until(ended, description="the task has ended")


@on_running
@covers("R3", "P32", "C09", "C14", "B08")
@pytest.mark.parametrize(
    ("mode", "transport"),
    [*product(["auto"], ["http", "stateless", "json", "stdio"]), *product(["legacy"], ["http", "stdio"])],
)
async def test_every_tool_that_asks_completes_for_every_client_that_can_be_asked(
    with_threads: Running, doors: Mapping[str, str], mode: Any, transport: str
) -> None:
    """Issue 4: elicit, sampling, roots, resolver and guard tools; 2026-07-28 without the extension, and 2025-11-25."""
    async with person(address(with_threads, doors, transport), mode=mode, elicitation_callback=echo) as client:
        assert client.protocol_version == VERSIONS[mode]
        for tool, expected in ASKING.items():
            arguments = arguments_of(tool)
            key = arguments["key"]
            assert text(await client.call_tool(tool, arguments)) == expected.format(key=key), tool
            where = {line["pid"] for line in with_threads.fleet.ledger.of(key)}
            assert where == {with_threads.worker.pid}, f"{tool} ran on the fleet, each time"


@on_running
@covers("P32", "C14")
@pytest.mark.parametrize("transport", ["stateless", "json"])
async def test_every_tool_that_asks_says_so_where_nothing_reaches_an_older_client(
    with_threads: Running, doors: Mapping[str, str], transport: str
) -> None:
    """Issue 4: the SDK's own error of a live call, at once, and no task that waits; what need not ask completes."""
    fleet = with_threads.fleet
    async with person(doors[transport], mode="legacy") as client:
        known = tasks_of(fleet)
        for tool in ASKING:
            with pytest.raises(MCPError, match="has no back-channel for server-initiated requests") as told:
                await client.call_tool(tool, arguments_of(tool))
            assert told.value.error.code == -32600, tool
        assert {fleet.record(task_id).status for task_id in tasks_of(fleet) - known} == {Status.FAILED}
        key = new_key()
        assert text(await client.call_tool("ledger", {"key": key})) == f"ran {key}"


@on_running
@covers("P53")
@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize("mode", VERSIONS)
async def test_a_client_that_goes_away_in_the_middle_leaves_its_task_running(
    with_threads: Running, doors: Mapping[str, str], transport: str, mode: Any, tmp_path: Path
) -> None:
    """Issue 4: the client disconnects, the task goes on; over stdio even the server is gone with it."""
    key, gate, fleet = new_key(), tmp_path / "gate", with_threads.fleet
    known = tasks_of(fleet)
    async with person(address(with_threads, doors, transport), mode=mode) as client:
        call = asyncio.create_task(client.call_tool("gate", {"key": key, "path": str(gate)}))
        await asyncio.to_thread(fleet.ledger.await_event, key, "begin")
        call.cancel()
    gate.touch()
    record = await asyncio.to_thread(await_end, fleet, new_task(fleet, known))
    assert (record.status, fleet.ledger.events(key)) == (Status.COMPLETED, ["begin", "end"])


async def one_round(
    client: Client, before: InputRequiredResult | None, value: str = "", **arguments: Any
) -> CallToolResult | InputRequiredResult:
    """What a round of `fan2` is answered with; it answers the first question of the round before."""
    answers: InputResponses = {}
    if before is not None:
        answers = {key: accepted(value) for key in list(before.input_requests or {})[:1]}
    return await client.session.call_tool(
        "fan2",
        arguments,
        input_responses=answers or None,
        request_state=None if before is None else before.request_state,
        allow_input_required=True,
    )


def accepted(value: str) -> ElicitResult:
    """An accepted answer."""
    return ElicitResult(action="accept", content={"value": value})


@covers("C09", "P20", "B01")
async def test_a_call_goes_on_at_another_server_after_everything_was_restarted(fleet: Fleet) -> None:
    """C09: after the first of two answers all servers and workers are new; the second one completes the call."""
    shared, key = {"MCPTASKS_REQUEST_STATE_KEYS": "a secret of at least thirty-two bytes"}, new_key()
    server, worker = fleet.start_server(**shared), fleet.start_worker()
    async with person(fleet.ready(worker, server)) as client:
        both = await one_round(client, None, key=key)
        assert isinstance(both, InputRequiredResult)
        rest = await one_round(client, both, "a", key=key)
        assert isinstance(rest, InputRequiredResult) and len(rest.input_requests or {}) == 1
    server.kill()
    worker.kill()

    alone, other, again = fleet.start_server(), fleet.start_server(**shared), fleet.start_worker()
    fleet.ready(again)
    async with person(fleet.ready(alone)) as client:
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await one_round(client, rest, "b", key=key)
    async with person(fleet.ready(other)) as client:
        done = await one_round(client, rest, "b", key=key)
    assert isinstance(done, CallToolResult) and sorted(text(done).split()) == ["a", "b"]
    assert len(tasks_of(fleet)) == 1


@covers("P20", "W1")
async def test_a_server_that_goes_down_sends_its_waiting_callers_to_another_one(fleet: Fleet, tmp_path: Path) -> None:
    """Ours: uvicorn waits for open requests, and these would wait for their tasks."""
    shared, key = {"MCPTASKS_REQUEST_STATE_KEYS": "a secret of at least thirty-two bytes"}, new_key()
    first, second = fleet.start_server(**shared), fleet.start_server(**shared)
    url = fleet.ready(fleet.start_worker(), first)
    arguments = {"key": key, "path": str(tmp_path / "gate")}
    async with person(url) as client, person(fleet.ready(second)) as elsewhere:
        call = asyncio.create_task(client.session.call_tool("gate", arguments, allow_input_required=True))
        await asyncio.to_thread(fleet.ledger.await_event, key, "begin")
        first.terminate()
        told = await call
        assert isinstance(told, InputRequiredResult) and not told.input_requests
        await asyncio.to_thread(first.await_end)
        (tmp_path / "gate").touch()
        done = await elsewhere.session.call_tool(
            "gate", arguments, request_state=told.request_state, allow_input_required=True
        )
    assert isinstance(done, CallToolResult) and text(done) == f"passed {key}"
    assert fleet.ledger.events(key) == ["begin", "end"]


@covers("P53", "W1")
async def test_a_server_that_goes_down_tells_an_older_caller_where_its_task_is(fleet: Fleet, tmp_path: Path) -> None:
    """Ours: it cannot be sent anywhere; the task goes on, and the same call with its key finds it."""
    key, gate = new_key(), tmp_path / "gate"
    server = fleet.start_server()
    async with person(fleet.ready(fleet.start_worker(), server), mode="legacy") as client:
        call = asyncio.create_task(client.call_tool("gate", {"key": key, "path": str(gate)}))
        await asyncio.to_thread(fleet.ledger.await_event, key, "begin")
        server.terminate()
        with pytest.raises(MCPError, match="The server goes down") as cut:
            await call
        await asyncio.to_thread(server.await_end)
    task_id = new_task(fleet, set())
    assert (cut.value.error.code, cut.value.error.data) == (-32000, {"mcptasks/taskId": task_id})
    gate.touch()
    assert (await asyncio.to_thread(await_end, fleet, task_id)).status is Status.COMPLETED
