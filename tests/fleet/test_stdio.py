"""`mcptasks dev TARGET --stdio`, as a desktop client runs it (issue 4, part 7)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import stdio_client
from mcp_types import ElicitRequestParams, ElicitResult

from mcptasks.client import TaskCancelled, TasksClient
from tests.fleet.desk import ENDS, Desk, End, desk_in
from tests.fleet.system import ROOT, answer, new_key, outcome, questions, text
from tests.requirements import covers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SAMPLES: Final = "workers.server:mcp"
NOISY: Final = "tests.fleet.noisy:mcp"
TOOLS: Final = "tests.fleet.tools:mcp"


@pytest.fixture
def desk(tmp_path: Path) -> Generator[Desk]:
    """Windows on one data folder; none of their processes lives after the test."""
    with desk_in(tmp_path) as desk:
        yield desk


@asynccontextmanager
async def tasks_client(desk: Desk) -> AsyncGenerator[tuple[Client, TasksClient]]:
    """A client in a new window, whose tasks only go on where they were given back or are told of an answer."""
    slow = {"MCPTASKS_LEASE_MS": "600000", "MCPTASKS_RESEND_MS": "600000"}
    extension, transport = TasksClient(), stdio_client(desk.parameters(TOOLS, **slow))
    # The callback says that it can be asked; the tests answer by hand.
    async with Client(transport, extensions=[extension], elicitation_callback=approve) as client:
        yield client, extension


@pytest.fixture
def wire_errors(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """The SDK's client, which only logs what it cannot read, has read everything."""
    yield
    assert not [record for record in caplog.get_records("call") if record.name == "mcp.client.stdio"]


async def approve(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """The person says yes."""
    return ElicitResult(action="accept", content={"approve": True})


# ------------------------------------------------------------------------------------------------ a whole life


@pytest.mark.usefixtures("wire_errors")
async def test_a_client_with_the_tasks_extension_lives_a_whole_life(desk: Desk) -> None:
    """Issue 4: a durable call, an answered question and a cancel, on the embedded worker."""
    extension = TasksClient()
    transport = stdio_client(desk.parameters(SAMPLES))
    async with Client(transport, extensions=[extension], elicitation_callback=approve) as client:
        assert client.protocol_version == "2026-07-28"
        assert not (await client.call_tool("index_files", {"folder": str(ROOT / "docs")})).is_error
        release = await extension.start(client, "deploy_release", {"version": "1.4"})
        assert release.task_id
        assert "release 1.4 is live" in text(await release.result(60))
        order = await extension.start(client, "order_supplies", {"items": [{"article": "pens", "quantity": 1}]})
        await questions(order)
        await order.cancel()
        with pytest.raises(TaskCancelled):
            await order.result(60)


@pytest.mark.usefixtures("wire_errors")
async def test_an_older_client_lives_a_whole_life(desk: Desk) -> None:
    """Issue 4: the same for a client of 2025-11-25, to which these are calls like any other."""
    asked, never = asyncio.Event(), asyncio.Event()

    async def hesitate(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        if "2.0" in params.message:
            asked.set()
            await never.wait()
        return await approve(context, params)

    transport = stdio_client(desk.parameters(SAMPLES))
    async with Client(transport, mode="legacy", elicitation_callback=hesitate) as client:
        assert client.protocol_version == "2025-11-25"
        assert not (await client.call_tool("index_files", {"folder": str(ROOT / "docs")})).is_error
        assert "release 1.4 is live" in text(await client.call_tool("deploy_release", {"version": "1.4"}))
        call = asyncio.create_task(client.call_tool("deploy_release", {"version": "2.0"}))
        await asked.wait()
        call.cancel()
        assert not (await client.call_tool("word_count", {"text": "still there"})).is_error


# ------------------------------------------------------------------------------------------------ the wire


def test_nothing_but_the_protocol_goes_over_the_wire(desk: Desk) -> None:
    """Issue 4: whatever prints, in whatever way, in whatever process. And nobody reads what goes to stderr."""
    window = desk.open(NOISY)
    window.begin()
    window.call("murmur")
    assert window.text() == "read ''", "what the client sends is for the server alone"
    window.call("shout", times=500)
    assert window.text() == "heard 500 times"
    window.leave("closes its input")
    code, said = window.await_end()
    assert (code, window.dirt()) == (0, [])
    for way in ("print", "sys.stdout", "fd 1", "C", "a child"):
        assert f"import by {way}" in said and f"tool in the server by {way}" in said
        assert f"tool on a worker by {way}" in desk.log
    assert f"the log of its workers is {desk.folder / 'data' / 'workers.log'}" in said


def test_a_command_that_cannot_serve_says_why_on_stderr_alone(desk: Desk) -> None:
    """DESIGN 7: exit code 2, and one sentence; a client sees no message that is none."""
    window = desk.open("tests.fleet.nowhere:mcp")
    code, said = window.await_end()
    assert (code, window.wire) == (2, [])
    assert "There is no module tests.fleet.nowhere" in said


# ------------------------------------------------------------------------------------------------ the start


def test_the_server_answers_before_its_worker_is_up_and_a_durable_call_waits_for_it(desk: Desk) -> None:
    """A client gives up on a server that is silent for long; the worker cannot be up, for its import waits for us."""
    gate = desk.folder / "gate"
    window = desk.open(NOISY, NOISY_GATE=str(gate))
    window.begin()
    window.call("shout")
    assert "ready." not in desk.log
    gate.touch()
    assert window.text() == "heard 1 times"
    window.leave("closes its input")
    assert window.await_end()[0] == 0


@covers("R9", "W1")
@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL"])
async def test_the_next_start_goes_on_with_what_ran_and_what_waited(desk: Desk, end: End) -> None:
    """Issue 4: the tasks are durable, and the store outlives the workers, who give back what they run."""
    path, key = desk.folder / "gate", new_key()
    async with tasks_client(desk) as (client, extension):
        runs = await extension.start(client, "gate", {"key": key, "path": str(path)})
        waits = await extension.start(client, "ask1", {"key": key, "x": 7})
        await questions(waits)
        await asyncio.to_thread(desk.ledger.await_event, key, "begin")
        # The second signal and all further ones come while the first one is obeyed.
        await asyncio.to_thread(desk.insist, desk.kin.named("--stdio"), end)
    async with tasks_client(desk) as (client, extension):
        await asyncio.to_thread(desk.ledger.await_event, key, "begin", times=2)
        path.touch()
        assert await outcome(extension.attach(client, runs.task_id)) == f"passed {key}"
        again = extension.attach(client, waits.task_id)
        await answer(again, "yes")
        assert await outcome(again) == "7 yes"


# ------------------------------------------------------------------------------------------------ two windows


@covers("W1")
async def test_two_windows_share_the_store_and_either_goes_on_when_the_other_is_killed(desk: Desk) -> None:
    """Desktop clients start the same command twice. The one that began the store goes first, in the worst way."""
    path, key = desk.folder / "gate", new_key()
    async with tasks_client(desk) as (first, extension):
        began = desk.kin.named("--stdio")
        runs = await extension.start(first, "gate", {"key": key, "path": str(path)})
        await asyncio.to_thread(desk.ledger.await_event, key, "begin")
        async with tasks_client(desk) as (second, other):
            waits = await other.start(second, "ask1", {"key": key, "x": 7})
            await questions(waits)
            await asyncio.to_thread(desk.insist, began, "SIGKILL")
            path.touch()
            assert await outcome(other.attach(second, runs.task_id)) == f"passed {key}"
            await answer(waits, "yes")
            assert await outcome(waits) == "7 yes"


# ------------------------------------------------------------------------------------------------ the end


@pytest.mark.parametrize(
    ("victim", "says"),
    [
        ("celery", "worker1 was ended by signal 9 (Killed); its last words are in {data}/workers.log"),
        ("valkey-server", "The embedded Valkey has ended; its log is {data}/valkey/valkey.log"),
    ],
)
def test_a_part_that_dies_ends_the_command_with_its_name(desk: Desk, victim: str, says: str) -> None:
    """Issue 4: a server whose calls would wait for ever is worse than none."""
    window = desk.open(NOISY)
    window.begin()
    desk.kin.named(victim).kill()
    code, said = window.await_end()
    assert (code, window.dirt()) == (1, [])
    assert says.format(data=desk.folder / "data") in said


def test_a_server_that_fails_ends_the_command(desk: Desk) -> None:
    """Its lifespan raises: nobody will ever answer."""
    window = desk.open(NOISY, NOISY_LIFESPAN="fails")
    code, said = window.await_end()
    assert (code, window.wire) == (1, [])
    assert "RuntimeError: no database today" in said and "The MCP server failed; its traceback is above." in said


def test_a_tool_that_blocks_a_thread_of_the_server_does_not_keep_the_command(desk: Desk) -> None:
    """The client is gone, and nothing can stop a thread: the process ends without it."""
    window, running = desk.open(NOISY), desk.folder / "running"
    window.begin()
    window.call("hang", path=str(running))
    wait_until(running.exists, description="the tool runs")
    window.leave("closes its input")
    assert window.await_end()[0] == 0


def test_each_way_to_end_leaves_no_process_and_a_clean_wire(desk: Desk) -> None:
    """Issue 4, one of each; `test_a_hundred_starts` has the rest."""
    for number in range(len(ENDS)):
        one_life(desk, number)


@pytest.mark.slow
@covers("R9")
def test_a_hundred_starts_and_ends_leave_no_process_and_a_clean_wire(tmp_path: Path) -> None:
    """Issue 4: SIGTERM, SIGKILL and a closed input in turn, at all times of a life. Two folders, for the two cores."""

    def lives(lane: int) -> None:
        folder = tmp_path / str(lane)
        folder.mkdir()
        with desk_in(folder) as desk:
            for number in range(lane, 100, 2):
                one_life(desk, number)

    with ThreadPoolExecutor(2) as lanes:
        list(lanes.map(lives, range(2)))


def one_life(desk: Desk, number: int) -> None:
    """The command was started, used and ended; in which way and how early depends on the number."""
    end, moment = ENDS[number % 3], number // 3 % 3
    window = desk.open(NOISY)
    window.begin()
    if moment > 0:
        window.call("shout")
    if moment > 1:
        assert window.text() == "heard 1 times"
    window.leave(end)
    code, _ = window.await_end()
    assert (code, window.dirt()) == (-signal.SIGKILL if end == "SIGKILL" else 0, [])
    # Every other time the next one starts into the end of this one, as a client does that restarts its servers.
    if number // 2 % 2:
        desk.await_nobody()
