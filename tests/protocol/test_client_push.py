"""The client where the server tells of changes: told instead of asking, never worse off when it is not told."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from weakref import ref

import anyio
import anyio.lowlevel
import pytest
from mcp.client import Client, ClientRequestContext
from mcp.client.session import ElicitationFnT
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    TextContent,
)

from mcptasks.client import TaskHandle, TasksClient
from mcptasks.client import push as module
from mcptasks.client.polling import DEFAULT_MS, QUIET_MS, Bell
from mcptasks.wire import DetailedTask
from tests.protocol.stub_listen import Stream, Streams, serve_pushing
from tests.protocol.stub_server import TASK_ID, Shot, StubTasks, asking, completed, working
from tests.requirements import covers
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
async def _nothing_hangs(anyio_backend: str) -> AsyncGenerator[None]:
    """A wait that never ends fails its test by name instead of stopping the run."""
    with anyio.fail_after(60):
        yield


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that broke is asked for again soon."""
    monkeypatch.setattr(module, "FIRST_AGAIN_S", 0.01)


class Rests:
    """Makes no pause, except where a wait is told of everything: then it lasts until somebody rings."""

    def __init__(self) -> None:
        self.ms: list[int] = []
        #: How many waits rest, because they trust to be told.
        self.resting = 0

    async def __call__(self, delay_ms: int, bell: Bell, heard: int) -> None:
        """The pause."""
        self.ms.append(delay_ms)
        await anyio.lowlevel.checkpoint()
        if delay_ms >= QUIET_MS:
            self.resting += 1
            try:
                await bell.wait(heard)
            finally:
                self.resting -= 1

    async def all(self, count: int = 1) -> None:
        """So many waits rest."""

        async def resting() -> bool:
            return self.resting == count

        await eventually(resting, description=f"{count} wait(s) are told instead of asking")


class Told:
    """A client of a server that pushes."""

    def __init__(self, client: Client, streams: Streams, rests: Rests) -> None:
        self.client, self.streams, self.rests = client, streams, rests

    async def trusting(self, state: Shot | None = None) -> Stream:
        """The stream, once the one wait there is was told something on it, and rests."""
        stream = await self.streams.open()
        assert not isinstance(state, Exception)
        await stream.push(working() if state is None else state)
        await self.rests.all()
        return stream


@asynccontextmanager
async def told(stub: StubTasks, elicitation: ElicitationFnT | None = None, **options: Any) -> AsyncGenerator[Told]:
    """A client whose waits make no pauses but the long ones."""
    mcp, streams = serve_pushing(stub)
    rests = Rests()
    options.setdefault("pause", rests)
    async with Client(mcp, extensions=[TasksClient(**options)], elicitation_callback=elicitation) as client:
        yield Told(client, streams, rests)


@asynccontextmanager
async def during(wait: Callable[[], Awaitable[Any]]) -> AsyncGenerator[list[Any]]:
    """Inside the block the wait goes on; after it, it is over, and its value stands in the list."""
    found: list[Any] = []

    async def run() -> None:
        found.append(await wait())

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        yield found


def text(result: CallToolResult) -> str:
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


def noticed(seen: list[str]) -> Callable[[DetailedTask], Awaitable[None]]:
    """An `on_status` that writes down what it is shown."""

    async def on_status(task: DetailedTask) -> None:
        seen.append(f"{task.status} {task.last_updated_at[17:19]} {task.status_message or ''}".strip())

    return on_status


# ------------------------------------------------------------------------------------------------ told


@covers("P70", "P34")
async def test_a_call_that_is_told_of_its_end_asks_no_more() -> None:
    """SEP-2663: a client may go on polling while it listens, but need not."""
    stub = StubTasks(working())
    async with told(stub) as here:
        async with during(lambda: here.client.call_tool("durable")) as found:
            stream = await here.trusting()
            assert stream.task_ids == [TASK_ID]
            asked = stub.count("tasks/get")
            await stream.push(working(at=1, message="half"))
            await here.rests.all()
            await stream.push(completed("told"))
        assert text(found[0]) == "told"
        assert stub.count("tasks/get") == asked
        await here.streams.none()


async def test_a_question_that_is_told_is_asked_and_its_answer_sent() -> None:
    """Push and poll lead to the same callbacks."""

    async def person(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="accept", content={"reply": params.message})

    stub = StubTasks(working())
    async with told(stub, person) as here:
        async with during(lambda: here.client.call_tool("durable")) as found:
            stream = await here.trusting()
            stub.play(asking("k"))
            await stream.push(asking("k"))

            async def answered() -> bool:
                return "k" in stub.answers

            await eventually(answered, description="the answer has arrived")
            await stream.push(completed())
        assert text(found[0]) == "done"
    assert stub.count("tasks/update") == 1


async def test_changes_and_wait_are_told_too() -> None:
    """Every way of waiting."""
    stub = StubTasks(working())
    async with told(stub) as here:
        handle = TasksClient.attach(here.client, TASK_ID)
        seen: list[str] = []

        async def changes() -> None:
            async for task in handle.changes():
                seen.append(f"{task.status} {task.status_message or ''}".strip())

        async with during(changes), during(lambda: handle.wait(until=["input_required"])) as waited:
            stream = await here.streams.open()
            await stream.push(working())
            await here.rests.all(2)
            asked = stub.count("tasks/get")
            await stream.push(working(at=1, message="half"))
            await here.rests.all(2)
            await stream.push(asking("k", at=2))
            await here.rests.all(1)
            await stream.push(completed(at=3))
        assert waited[0].status == "input_required"
        assert seen == ["working", "working half", "input_required", "completed"]
        assert stub.count("tasks/get") == asked


async def test_a_task_that_is_over_soon_costs_no_stream() -> None:
    """Most calls end before a stream would pay."""
    async with told(StubTasks(working(), completed())) as here:
        await here.client.call_tool("durable")
        await anyio.sleep(2 * module.SETTLE_S)
        assert here.streams.asked == []


async def test_who_does_not_want_to_listen_polls() -> None:
    """`listen=False`."""
    stub = StubTasks(working())

    async def settled(stub: StubTasks) -> Shot:
        await anyio.sleep(2 * module.SETTLE_S)
        return completed()

    stub.play(working(), settled)
    async with told(stub, listen=False) as here:
        await here.client.call_tool("durable")
        assert here.streams.asked == []


# ------------------------------------------------------------------------------------------------ order


@covers("P70")
async def test_a_late_push_undoes_neither_an_end_nor_anything_newer() -> None:
    """Polls and pushes overtake each other; `lastUpdatedAt` says which state is the later one."""
    seen: list[str] = []
    stub = StubTasks(working(at=5))
    async with told(stub, on_status=noticed(seen)) as here:
        handle = await TasksClient.start(here.client, "durable")
        async with during(handle.result) as found:
            stream = await here.trusting(working(at=5))
            await stream.push(asking("k", at=3))
            await here.rests.all()
            await stream.push(working(at=4, message="late"))
            await here.rests.all()
            await stream.push(completed(at=9))
            await stream.push(working(at=9, message="too late"))
        assert text(found[0]) == "done"
        assert seen == ["working 05", "completed 09"]
        assert (await handle.get()).status == "completed"
        assert (await handle.wait()).status == "completed"


async def test_a_late_poll_does_not_undo_an_end_that_was_told() -> None:
    """The answer was under way when the push came."""
    asked, told_end = anyio.Event(), anyio.Event()

    async def slow(stub: StubTasks) -> Shot:
        asked.set()
        await told_end.wait()
        return working(at=1)

    seen: list[str] = []
    stub = StubTasks(working())
    async with told(stub, on_status=noticed(seen)) as here:
        handle = await TasksClient.start(here.client, "durable")
        async with during(handle.result) as found:
            stream = await here.trusting()
            stub.play(slow)
            stream.end()  # who is not told any more asks
            await asked.wait()
            await (await here.streams.open()).push(completed(at=9))
            told_end.set()
        assert text(found[0]) == "done"
        assert seen == ["working 00", "completed 09"]
        assert (await handle.get()).status == "completed"


async def test_times_that_nobody_can_read_hide_no_news() -> None:
    """A server that is careless with its times is believed in the order in which it speaks."""
    stub = StubTasks(working() | {"lastUpdatedAt": "yesterday"})
    async with told(stub) as here:
        async with during(lambda: here.client.call_tool("durable")) as found:
            stream = await here.trusting(working() | {"lastUpdatedAt": "now"})
            await stream.push(completed() | {"lastUpdatedAt": "2026-08-01T00:00:00"})
        assert text(found[0]) == "done"


# ------------------------------------------------------------------------------------------------ not told


@pytest.mark.parametrize(
    "failure", [None, MCPError(CONNECTION_CLOSED, "reset"), MCPError(INTERNAL_ERROR, "limit"), ValueError("junk")]
)
async def test_when_the_stream_ends_the_wait_asks_at_once_and_listens_again(failure: Exception | None) -> None:
    """In order, broken, or refused for now: nothing is missed, and the next stream is trusted as the first one was."""
    stub = StubTasks(working())
    async with told(stub) as here:
        async with during(lambda: here.client.call_tool("durable")) as found:
            stream = await here.trusting()
            asked = stub.count("tasks/get")
            stream.end(failure)
            again = await here.trusting(working(at=1))
            assert again is not stream
            assert stub.count("tasks/get") > asked
            asked = stub.count("tasks/get")
            await again.push(completed())
        assert text(found[0]) == "done"
        assert stub.count("tasks/get") == asked


async def test_an_end_that_comes_while_the_stream_is_broken_is_found_by_asking() -> None:
    """Without waiting for a new stream."""
    stub = StubTasks(working())
    async with told(stub) as here:
        async with during(lambda: here.client.call_tool("durable")) as found:
            stream = await here.trusting()
            stub.play(completed("asked"))
            here.streams.refusal = MCPError(INTERNAL_ERROR, "limit")
            stream.end(MCPError(CONNECTION_CLOSED, "reset"))
        assert text(found[0]) == "asked"


async def test_streams_that_break_before_they_tell_anything_are_asked_for_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server at its limit is not stormed."""
    waits: list[float] = []
    sleep = anyio.sleep

    async def noted(delay: float) -> None:
        waits.append(delay)
        await sleep(0)

    monkeypatch.setattr(module, "LAST_AGAIN_S", 0.05)
    stub = StubTasks(working())
    async with told(stub) as here:
        here.streams.refusal = MCPError(INTERNAL_ERROR, "Subscription limit reached")
        async with during(lambda: here.client.call_tool("durable")):
            monkeypatch.setattr(anyio, "sleep", noted)

            async def enough() -> bool:
                return len(waits) > 6

            await eventually(enough, description="it was refused some times")
            monkeypatch.undo()
            stub.play(completed())
    assert waits[-6:-1] == sorted(waits[-6:-1])
    assert waits[-1] == 0.05


async def test_a_server_that_never_tells_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """-32601: the method does not exist, and will not exist a second later."""
    stub = StubTasks(working())
    async with told(stub) as here:
        here.streams.refusal = MCPError(METHOD_NOT_FOUND, "Method not found")
        for _ in range(2):
            async with during(lambda: here.client.call_tool("durable")):
                await anyio.sleep(2 * module.SETTLE_S)
                stub.play(completed())
            stub.play(working())
        assert len(here.streams.asked) == 1


async def test_a_stream_that_says_nothing_changes_nothing() -> None:
    """The SDK acknowledges streams whose tasks it has never heard of: only what was told is trusted."""
    stub = StubTasks(working())
    async with told(stub) as here:
        async with during(lambda: here.client.call_tool("durable")) as found:
            await here.streams.open()
            asked = stub.count("tasks/get")

            async def goes_on() -> bool:
                return stub.count("tasks/get") > asked + 20

            await eventually(goes_on, description="it goes on asking")
            stub.play(completed())
        assert text(found[0]) == "done"
        assert max(here.rests.ms) == DEFAULT_MS


async def test_a_wait_that_finds_what_it_was_not_told_trusts_no_more() -> None:
    """Notifications get lost: the SDK's queue drops the oldest, a connection dies without a word."""
    woken: list[int] = []

    async def impatient(delay_ms: int, bell: Bell, heard: int) -> None:
        woken.append(delay_ms)
        await anyio.lowlevel.checkpoint()

    stub = StubTasks(working())
    async with told(stub, pause=impatient) as here, during(lambda: here.client.call_tool("durable")):
        stream = await here.streams.open()
        await stream.push(working())

        async def trusts() -> bool:
            return woken[-1] == QUIET_MS

        await eventually(trusts, description="it trusts to be told")
        assert woken[-1] == QUIET_MS, "asking in vain is no reason for doubt"
        stub.play(working(at=1))

        async def doubts() -> bool:
            return woken[-1] < QUIET_MS

        await eventually(doubts, description="it asks as if there were no stream")
        await stream.push(working(at=2))
        stub.play(working(at=2))
        await eventually(trusts, description="it trusts again")
        stub.play(completed())


# ------------------------------------------------------------------------------------------------ many


def several(client: Client, count: int, first: int = 0) -> list[TaskHandle]:
    """Handles on that many tasks."""
    return [TasksClient.attach(client, f"task-{number}") for number in range(first, first + count)]


async def test_all_tasks_that_are_waited_for_share_one_stream() -> None:
    """One listen stream per session, re-opened where tasks come, kept where they go, closed with the last of them."""
    stub = StubTasks(working())
    async with told(stub) as here, anyio.create_task_group() as group:
        first, more = several(here.client, 5), several(here.client, 3, 5)
        for handle in first:
            group.start_soon(handle.wait)
        stream = await here.streams.open(*(f"task-{n}" for n in range(5)))
        for n in range(5):
            await stream.push(working(), taskId=f"task-{n}")
        await here.rests.all(5)
        for handle in more:
            group.start_soon(handle.wait)
        both = await here.streams.open(*(f"task-{n}" for n in range(8)))
        await stream.push(working(at=1), taskId="task-0")
        assert not stream.closed, "the new stream has not told anything yet"
        for n in range(8):
            await both.push(working(at=1), taskId=f"task-{n}")
        await here.rests.all(8)

        async def replaced() -> bool:
            return stream.closed

        await eventually(replaced, description="the first stream is closed")
        for n in range(7):
            await both.push(completed(), taskId=f"task-{n}")
        await here.rests.all(1)
        assert not both.closed
        await both.push(completed(), taskId="task-7")
        await here.streams.none()
    assert len(here.streams.asked) == 2


async def test_a_stream_that_cannot_be_replaced_goes_on_and_is_not_stormed_about() -> None:
    """A server at its limit refuses the stream of more tasks: the old one stays, the new task polls."""
    stub = StubTasks(working())
    async with told(stub) as here, anyio.create_task_group() as group:
        first, second = several(here.client, 2)
        group.start_soon(first.wait)
        stream = await here.streams.open("task-0")
        await stream.push(working(), taskId="task-0")
        await here.rests.all(1)
        here.streams.refusal = MCPError(INTERNAL_ERROR, "limit")
        group.start_soon(second.wait)

        async def refused() -> bool:
            return len(here.streams.asked) > 1

        await eventually(refused, description="the second stream is refused")
        assert not stream.closed and here.rests.resting == 1
        here.streams.refusal = None
        both = await here.streams.open("task-0", "task-1")
        for n in range(2):
            await both.push(completed(), taskId=f"task-{n}")
    assert len(here.streams.asked) < 20


async def test_two_waits_for_one_task_are_both_told_and_the_stream_outlives_the_first() -> None:
    """The handle of one process may be used from several coroutines."""
    stub = StubTasks(working())
    async with told(stub) as here:
        handle = TasksClient.attach(here.client, TASK_ID)
        async with during(lambda: handle.wait(until=["input_required"])) as first, during(handle.wait) as second:
            stream = await here.streams.open()
            await stream.push(working())
            await here.rests.all(2)
            with pytest.raises(TimeoutError):
                await handle.wait(0)
            await stream.push(asking("k"))
            await here.rests.all(1)
            assert not stream.closed
            await stream.push(completed())
        assert (first[0].status, second[0].status) == ("input_required", "completed")


async def test_a_wait_that_is_given_up_closes_the_stream_and_the_next_one_listens_again() -> None:
    """A time-out of the caller's own, then a second try."""
    stub = StubTasks(working())
    async with told(stub) as here:
        handle = TasksClient.attach(here.client, TASK_ID)
        async with anyio.create_task_group() as group:
            group.start_soon(handle.wait)
            await here.trusting()
            group.cancel_scope.cancel()
        await here.streams.none()
        async with during(handle.result) as found:
            stream = await here.trusting()
            await stream.push(completed())
        assert text(found[0]) == "done"


async def test_clients_that_share_the_extension_are_each_told_of_their_own() -> None:
    """The task's id says whose a notification is."""
    extension = TasksClient(pause=(rests := Rests()))
    servers = [serve_pushing(StubTasks(working())) for _ in range(2)]
    async with (
        Client(servers[0][0], extensions=[extension]) as one,
        Client(servers[1][0], extensions=[extension]) as two,
        during(TasksClient.attach(one, "task-1").wait) as first,
        during(TasksClient.attach(two, "task-2").wait) as second,
    ):
        streams = [await streams.open() for _, streams in servers]
        for number, stream in enumerate(streams, 1):
            assert stream.task_ids == [f"task-{number}"]
            await stream.push(working(), taskId=f"task-{number}")
        await rests.all(2)
        await streams[0].push(completed(), taskId="task-1")
        await rests.all(1)
        await streams[1].push(completed(), taskId="task-2")
    assert (first[0].status, second[0].status) == ("completed", "completed")


async def test_an_extension_that_is_used_again_keeps_no_session() -> None:
    """One object may serve many connections, one after the other."""
    extension = TasksClient(pause=Rests())
    async with Client(serve_pushing(StubTasks(completed()))[0], extensions=[extension]) as client:
        await client.call_tool("durable")
        session = ref(client.session)
    del client
    gc.collect()
    assert session() is None
