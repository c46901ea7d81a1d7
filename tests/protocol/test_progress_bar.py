"""Progress on the client's side: a stream of numbers, and a bar on a terminal. Captures are what a person sees."""

from __future__ import annotations

import io
import re

import anyio
import pytest
from mcp.client import ClientRequestContext
from mcp.server.mcpserver import Context
from mcp_types import ElicitRequestParams, ElicitResult
from rich.console import Console

from mcptasks.client import Progress, TaskFailed, TasksClient, progress_bar
from mcptasks.settings import Settings
from tests.protocol.stub_server import Shot, StubTasks, asking, completed, failed, told, working
from tests.protocol.test_client import connected
from tests.requirements import covers
from tests.support.durable import one
from tests.support.house import Gate, house
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

HALF = told(40, 120, "Indexing", at=1, rate=0.5)
WELL_ON = told(100, 120, "Indexing", at=2, rate=0.5)


_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Eighty columns, and what was painted on them."""

    def __init__(self) -> None:
        self._out = io.StringIO()
        self.console = Console(file=self._out, force_terminal=True, width=80, color_system=None, legacy_windows=False)

    def lines(self) -> list[str]:
        """Every row that was painted; a repainted one stands there more than once."""
        rows = re.split(r"[\r\n]", _CONTROLS.sub("", self._out.getvalue()))
        return [row.rstrip() for row in rows if row.strip()]

    async def shows(self, *words: str) -> str:
        """The row with all these words, once it is painted."""

        async def found() -> str | None:
            return next((line for line in reversed(self.lines()) if all(word in line for word in words)), None)

        return await eventually(found, description=f"the terminal shows {words}") or ""


class Held:
    """A step of the script that waits until the test has seen enough."""

    def __init__(self, shot: Shot) -> None:
        self.shot, self.go = shot, anyio.Event()

    async def __call__(self, stub: StubTasks) -> Shot:
        await self.go.wait()
        return self.shot


# ------------------------------------------------------------------------------------------------ the stream


@covers("R4")
async def test_progress_is_a_stream_that_ends_with_the_task() -> None:
    """Each report once, however often it is seen; what a task does besides is not in it."""
    stub = StubTasks(working(), HALF, HALF, asking("k", at=2), WELL_ON, completed())
    async with connected(stub) as client:
        handle = await TasksClient.start(client, "durable")
        seen = [progress async for progress in handle.progress()]
    assert seen == [Progress(40, 120, "Indexing", 0.5), Progress(100, 120, "Indexing", 0.5)]
    assert [(one.fraction, one.left_s, one.estimate) for one in seen] == [
        (pytest.approx(1 / 3), 160, "about 3 min left"),
        (pytest.approx(5 / 6), 40, "about 40 s left"),
    ]


async def test_who_has_seen_enough_may_leave() -> None:
    """The generator gives back what it waits with."""
    async with connected(StubTasks(HALF)) as client:
        handle = await TasksClient.start(client, "durable")
        stream = handle.progress()
        async for progress in stream:
            assert progress.done == 40
            break
        await stream.aclose()
        assert handle.latest is not None and handle.latest.status == "working"


async def test_a_server_that_tells_no_numbers_tells_no_progress() -> None:
    """Another server's tasks: their words are in `changes`."""
    async with connected(StubTasks(working(message="half"), completed())) as client:
        handle = await TasksClient.start(client, "durable")
        assert [progress async for progress in handle.progress()] == []


@covers("R4")
async def test_a_tool_that_reports_is_followed_to_its_end(settings: Settings) -> None:
    """The whole way: the tool, the store, the wire, the handle."""
    gates = [Gate(), Gate()]

    async def tool(ctx: Context) -> str:
        for number, gate in enumerate(gates, 1):
            await ctx.report_progress(number, 4, f"part {number}")
            await gate.wait()
        return "done"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        run = home.fleet.begin()
        for number, gate in enumerate(gates, 1):
            await gate.arrival()
            state = await client.until(task_id, lambda state, n=number: "_meta" in state and f"part {n}" in str(state))
            assert state["_meta"]["mcptasks/progress"]["progress"] == number
            assert state["statusMessage"] == f"part {number}: {number} of 4 ({25 * number} %)"
            gate.opened.set()
        assert await run == "completed"


# ------------------------------------------------------------------------------------------------ the bar


@covers("R4")
async def test_a_bar_shows_how_far_a_task_is_and_then_its_end() -> None:
    """Issue 5, part 4: what a person sees on a terminal."""
    terminal, more, end = Terminal(), Held(WELL_ON), Held(completed())
    async with connected(StubTasks(working(), HALF, more, end)) as client:
        handle = await TasksClient.start(client, "durable")
        async with progress_bar(handle, "Waiting", console=terminal.console):
            half = await terminal.shows("Indexing", "of 120")
            more.go.set()
            well_on = await terminal.shows("100 of 120")
            end.go.set()
            await handle.result()
    assert [half, well_on, terminal.lines()[-1]] == [
        "Indexing ━━━━━━━━━━                     40 of 120 (33 %) about 3 min left",
        "Indexing ━━━━━━━━━━━━━━━━━━━━━━━━━      100 of 120 (83 %) about 40 s left",
        "Indexing ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ completed",
    ]


async def test_a_bar_leaves_the_terminal_to_whoever_answers_a_question() -> None:
    """Nothing is repainted over what the person types."""
    terminal = Terminal()

    async def person(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        await anyio.sleep(0.1)  # the bar may hear of the question after us
        painted = len(terminal.lines())
        await anyio.sleep(0.3)  # rich repaints ten times a second
        assert len(terminal.lines()) == painted
        return ElicitResult(action="accept", content={"reply": "yes"})

    async def play(stub: StubTasks) -> Shot:
        await anyio.sleep(0.01)
        if not any("40 of 120" in line for line in terminal.lines()):
            return HALF
        return completed() if stub.answers else asking("k", at=2)

    async with connected(StubTasks(play), person) as client:
        handle = await TasksClient.start(client, "durable")
        async with progress_bar(handle, console=terminal.console):
            await handle.result()
    assert terminal.lines()[-1].endswith("completed")


@pytest.mark.parametrize(
    ("script", "last"),
    [
        (
            [working(message="[no markup]"), failed(-32050, "quota")],
            "[no markup] ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ failed",
        ),
        ([HALF, failed(-32050, "quota")], "Indexing ━━━━━━━━━━                     failed"),
    ],
    ids=["words only", "numbers"],
)
async def test_a_bar_says_how_a_task_failed_and_the_wait_raises(script: list[Shot], last: str) -> None:
    """A server that tells no numbers has a bar without an end; an error is the waiter's."""
    terminal, (first, end) = Terminal(), script
    held = Held(end)
    async with connected(StubTasks(first, held)) as client:
        handle = await TasksClient.start(client, "durable")

        async def wait() -> None:
            async with progress_bar(handle, console=terminal.console):
                await terminal.shows(last.split(" ━")[0])
                held.go.set()
                await handle.result()

        with pytest.raises(TaskFailed, match="quota"):
            await wait()
    assert terminal.lines()[-1] == last


async def test_a_bar_in_a_log_is_a_line() -> None:
    """Where there is no terminal nothing is repainted."""
    out = io.StringIO()
    console = Console(file=out, width=80, color_system=None)
    async with connected(StubTasks(working(), HALF, WELL_ON, completed())) as client:
        handle = await TasksClient.start(client, "durable")
        async with progress_bar(handle, console=console):
            await handle.result()
    assert [line.rstrip() for line in out.getvalue().splitlines() if line.strip()] == [
        "Indexing ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ completed"
    ]


async def test_a_bar_that_cannot_follow_its_task_does_not_end_the_wait() -> None:
    """It is for the eyes only."""
    terminal, looked = Terminal(), anyio.Event()

    async def gone(stub: StubTasks) -> Shot:
        looked.set()
        return ValueError("broken")

    async with connected(StubTasks(gone)) as client:
        handle = TasksClient.attach(client, "task-0123456789-the-secret-rest")
        async with progress_bar(handle, "Waiting", console=terminal.console):
            await looked.wait()
    assert "the-secret-rest" not in "\n".join(terminal.lines())
