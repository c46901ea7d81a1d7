"""A whole tracker in this process: it polls what is due, tells the news, and ends without a trace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from mcptasks.errors import AmbiguousTask, BadAnswer, ConfigurationError, UnknownTask
from mcptasks.settings import Settings
from mcptasks.tracker import loop, pushes
from mcptasks.tracker.model import Event, Tracked, TrackStatus
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.store.store import TrackStore
from mcptasks.tracker.tracker import Tracker
from tests.requirements import covers
from tests.support import stub_faults
from tests.support.stub_server import StubServer
from tests.support.stub_steps import asking, cancelled, completed, working
from tests.support.tracker_desk import stub_servers
from tests.support.tracking import TrackPeek
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def stub() -> Generator[StubServer]:
    """A task server that wants to be asked once an hour."""
    with StubServer() as server:
        server.script, server.hint = [working(), completed("42")], 3_600_000
        yield server


@pytest.fixture
def peek(raw: redis.Redis, settings: Settings) -> TrackPeek:
    """What is really stored."""
    return TrackPeek(raw, settings.prefix)


def tracker_of(stub: StubServer, settings: Settings, **given: Any) -> Tracker:
    """A tracker whose server "stub" is this one; it looks often."""
    options = TrackOptions(look_ms=30, **given.pop("options", {}))
    return Tracker(lambda: stub_servers(stub), settings=settings, options=options, **given)


@asynccontextmanager
async def running(tracker: Tracker) -> AsyncGenerator[None]:
    """Inside the block it tracks; after it, it has ended."""
    run = asyncio.ensure_future(tracker.run())
    try:
        yield
    finally:
        run.cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(run, return_exceptions=True)


@covers("D7")
async def test_start_polls_what_is_due_at_once_and_the_news_are_told(
    stub: StubServer, settings: Settings, peek: TrackPeek
) -> None:
    """Submitted here, ended there, told to the consumer, and waited for."""
    told: list[tuple[Event, Tracked]] = []

    async def hook(event: Event, task: Tracked) -> None:
        told.append((event, task))

    async with tracker_of(stub, settings, consumers={"hook": hook}) as tracker:
        tasks = [await tracker.submit("stub", "export", {"n": n}) for n in range(3)]
        peek.make_due(*(task.task_id for task in tasks))
        async with running(tracker):
            for task in tasks:
                peek.make_due(task.task_id)
                first = await tracker.get(task.task_id)
                assert first.status is TrackStatus.WORKING

                async def polled(task_id: str = task.task_id) -> bool:
                    return (await tracker.get(task_id)).polls > 0

                await eventually(polled, description="the task is polled")
                peek.make_due(task.task_id)
                done = await tracker.wait(task.task_id, 20)
                assert done.status is TrackStatus.COMPLETED

            async def all_told() -> bool:
                return len(told) == 3

            await eventually(all_told, description="the consumer is told")
    assert {event.task_id for event, _ in told} == {task.task_id for task in tasks}
    assert {event.kind for event, _ in told} == {"completed"}


@covers("D7", "D4")
async def test_stop_cancels_a_hung_poll_and_leaves_nothing_running(
    stub: StubServer, settings: Settings, peek: TrackPeek
) -> None:
    """Its sibling was polled meanwhile; its claim is given back."""
    async with tracker_of(stub, settings) as tracker:
        hung = await tracker.submit("stub", "hung")
        other = await tracker.submit("stub", "other")
        stub.fault("tasks/get", stub_faults.silent(60))
        before = asyncio.all_tasks()
        async with running(tracker):
            peek.make_due(hung.task_id)
            await eventually(lambda: _seen(stub, "tasks/get", 1), description="the poll hangs")
            peek.make_due(other.task_id)

            async def polled() -> bool:
                return (await tracker.get(other.task_id)).polls > 0

            await eventually(polled, description="its sibling is polled")
            started = time.monotonic()
        assert time.monotonic() - started < 8
        assert asyncio.all_tasks() - before <= {asyncio.current_task()}
        assert (peek.due(hung.task_id) or 0) <= peek.now_ms(), "the next tracker need not wait for the lease"
        assert (await tracker.get(hung.task_id)).polls == 0


async def _seen(stub: StubServer, method: str, times: int) -> bool:
    return len(stub.asked(method)) >= times


@covers("D7")
@pytest.mark.parametrize("crowded", [False, True])
async def test_a_tracker_that_is_stopped_while_it_claims_gives_back_what_it_gets(
    stub: StubServer, settings: Settings, peek: TrackPeek, monkeypatch: pytest.MonkeyPatch, crowded: bool
) -> None:
    """Else a deploy leaves up to a hundred tasks for a lease, two minutes, with nobody; so with a crowded server's."""
    claimed, gate = asyncio.Event(), asyncio.Event()
    name = "release" if crowded else "claim"
    real = getattr(TrackStore, name)

    async def slow(store: TrackStore, *args: Any) -> Any:
        answer = None if crowded else await real(store, *args)
        claimed.set()
        await gate.wait()
        return await real(store, *args) if crowded else answer

    options = {"polls_per_server": 1} if crowded else {}
    async with tracker_of(stub, settings, options=options) as tracker:
        tasks = [await tracker.submit("stub", "export") for _ in range(5)]
        peek.make_due(*(task.task_id for task in tasks))
        stub.always("tasks/get", stub_faults.silent(60))
        monkeypatch.setattr(TrackStore, name, slow)
        run = asyncio.ensure_future(tracker.run())
        await claimed.wait()
        run.cancel()
        await asyncio.sleep(0)
        gate.set()
        async with asyncio.timeout(10):
            await asyncio.gather(run, return_exceptions=True)
    # The last of four that wait for one slot is put off by five seconds, give or take a half.
    soon = peek.now_ms() + (10_000 if crowded else 5_000)
    assert all((peek.due(task.task_id) or 0) <= soon for task in tasks)


@covers("D4")
async def test_no_part_of_a_tracker_ends_for_good_by_one_error(
    stub: StubServer, settings: Settings, peek: TrackPeek, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither polls, nor news, nor what is minded in between: each fails once, by a bug, and goes on."""
    failed: list[str] = []
    monkeypatch.setattr(loop, "_AGAIN_S", 0.01)
    monkeypatch.setattr(loop, "_ORPHANS_S", 0.01)
    monkeypatch.setattr(loop, "_FORGET_S", 0.01)
    went_on: set[str] = set()
    for name in ("claim", "take", "orphans", "forget"):
        real = getattr(TrackStore, name)

        async def once(store: Any, *args: Any, name: str = name, real: Any = real) -> Any:
            if name not in failed:
                failed.append(name)
                raise RuntimeError("a bug")
            went_on.add(name)
            return await real(store, *args)

        monkeypatch.setattr(TrackStore, name, once)
    told: list[Event] = []

    async def hook(event: Event, _: Tracked) -> None:
        told.append(event)

    async with tracker_of(stub, settings, consumers={"hook": hook}) as tracker:
        task = await tracker.submit("stub", "export")
        async with running(tracker):
            for _ in range(2):
                polls = (await tracker.get(task.task_id)).polls
                peek.make_due(task.task_id)

                async def polled(polls: int = polls) -> bool:
                    return (await tracker.get(task.task_id)).polls > polls

                await eventually(polled, description="the task is polled")

            async def all_went_on() -> bool:
                return bool(told) and len(went_on) == 4

            await eventually(all_went_on, description="the end is told, and all is minded")
    assert sorted(failed) == sorted(went_on)


async def test_a_push_makes_its_task_due_at_once(stub: StubServer, settings: Settings, peek: TrackPeek) -> None:
    """An hour before its next poll."""
    stub.script = [working()]
    async with tracker_of(stub, settings) as tracker:
        task = await tracker.submit("stub", "export")
        async with running(tracker):
            peek.make_due(task.task_id)

            async def listening() -> bool:
                return any(task.handle in ids for ids in stub.listening())

            await eventually(listening, description="the server is listened to")
            stub.push(task.handle or "", completed("pushed"))
            assert (await tracker.wait(task.task_id, 20)).status is TrackStatus.COMPLETED
            assert len(stub.listening()) == 1


async def test_a_task_that_has_ended_is_listened_to_no_more(
    stub: StubServer, settings: Settings, peek: TrackPeek, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll found its end; the next subscription is of the others."""
    monkeypatch.setattr(pushes, "_AGAIN_S", 0.05)
    stub.script = lambda tool, arguments: [working(), completed("42")] if tool == "short" else [working()]
    async with tracker_of(stub, settings) as tracker:
        short, *others = [await tracker.submit("stub", tool) for tool in ("short", "long", "longer")]

        async def listens_to(*tasks: Tracked) -> None:
            async def so() -> bool:
                # The stub notices a stream that was closed when it writes to it: the last one counts.
                return bool(ids := stub.listening()) and sorted(ids[-1]) == sorted(task.handle or "" for task in tasks)

            await eventually(so, description=f"it listens to {len(tasks)}")

        async with running(tracker):
            peek.make_due(short.task_id, others[0].task_id)
            await listens_to(short, others[0])
            peek.make_due(short.task_id)
            await tracker.wait(short.task_id, 20)
            peek.make_due(others[1].task_id)
            await listens_to(*others)


@covers("D08")
async def test_a_cancel_without_a_tracker_says_so_and_is_delivered_by_a_later_one(
    stub: StubServer, settings: Settings
) -> None:
    """Recorded, no active tracker."""
    stub.script = [working()]
    async with tracker_of(stub, settings) as tracker:
        task = await tracker.submit("stub", "export")
        answer = await tracker.cancel(task.task_id)
        assert (answer.outcome, answer.trackers) == ("REQUESTED", 0)
        async with running(tracker):
            done = await tracker.wait(task.task_id[:10], 20)
            assert done.status is TrackStatus.CANCELLED
            answer = await tracker.cancel(task.task_id)
            assert (answer.outcome, answer.status) == ("FINISHED", TrackStatus.CANCELLED)
    assert len(stub.asked("tasks/cancel")) == 1


@covers("D06")
async def test_a_question_is_answered_by_hand_or_by_the_handler(
    stub: StubServer, settings: Settings, peek: TrackPeek
) -> None:
    """Checked against its schema before it is stored."""
    stub.script = [asking("k"), completed("thanks")]
    async with tracker_of(stub, settings) as tracker:
        task = await tracker.submit("stub", "export")
        async with running(tracker):
            peek.make_due(task.task_id)
            asked = await tracker.wait(task.task_id, 20, question=True)
            assert set(asked.questions) == {"k"}
            with pytest.raises(BadAnswer, match="reply"):
                await tracker.answer(task.task_id, {"k": {"action": "accept", "content": {"reply": 7}}})
            with pytest.raises(BadAnswer, match="no open question"):
                await tracker.answer(task.task_id, {"other": {"action": "accept"}})
            answer = {"action": "accept", "content": {"reply": "yes"}}
            assert await tracker.answer(task.task_id, {"k": answer}) == ["k"]
            await eventually(lambda: _seen(stub, "tasks/update", 1), description="the answer is delivered")
            assert stub.asked("tasks/update")[0].params["inputResponses"] == {"k": answer}

            async def recorded() -> bool:
                return (await tracker.get(task.task_id)).answered == ()

            await eventually(recorded, description="that is recorded")

    async def handler(task: Tracked, key: str, question: dict[str, Any]) -> Any:
        return {"action": "accept", "content": {"reply": f"{task.tool} {key}"}}

    async with tracker_of(stub, settings, on_question=handler) as tracker:
        task = await tracker.submit("stub", "import")
        async with running(tracker):
            peek.make_due(task.task_id)
            await eventually(lambda: _seen(stub, "tasks/update", 2), description="the handler's answer is delivered")
    assert stub.asked("tasks/update")[1].params["inputResponses"]["k"]["content"] == {"reply": "import k"}


async def test_a_slow_server_takes_no_more_than_its_share(
    stub: StubServer, settings: Settings, peek: TrackPeek
) -> None:
    """Its other tasks are put back; another server's are polled meanwhile."""
    with StubServer() as quick:
        both = {
            name: {"url": one.url, "mcptasks": {"driver": "tasks", "honours_key": True, "max_concurrency": 64}}
            for name, one in (("stub", stub), ("quick", quick))
        }
        options = TrackOptions(look_ms=30, polls=4, polls_per_server=2)
        async with Tracker({"mcpServers": both}, settings=settings, options=options) as tracker:
            slow = [(await tracker.submit("stub", "export")).task_id for _ in range(6)]
            task = await tracker.submit("quick", "export")
            stub.always("tasks/get", stub_faults.silent(60))
            async with running(tracker):
                peek.make_due(*slow, task.task_id)

                async def polled() -> bool:
                    return (await tracker.get(task.task_id)).polls > 0

                await eventually(polled, description="the other server's task is polled")
                await eventually(lambda: _seen(stub, "tasks/get", 2), description="the slow one is asked")
                assert len(stub.asked("tasks/get")) == 2


async def test_events_are_read_from_any_place(stub: StubServer, settings: Settings, peek: TrackPeek) -> None:
    """Whoever reads them; what came before is there too."""
    stub.script = [working(), cancelled()]
    async with tracker_of(stub, settings) as tracker:
        task = await tracker.submit("stub", "export")
        async with running(tracker):

            async def one() -> Event:
                async for _, event in tracker.events("0"):
                    return event
                raise AssertionError

            reading = asyncio.ensure_future(one())
            for _ in range(2):
                peek.make_due(task.task_id)
                await eventually(lambda: _settled(tracker, task.task_id, peek), description="a poll is done")
            async with asyncio.timeout(20):
                event = await reading
        assert (event.kind, event.task_id) == ("cancelled", task.task_id)
        assert await one() == event


async def _settled(tracker: Tracker, task_id: str, peek: TrackPeek) -> bool:
    found = await tracker.get(task_id)
    return found.status.terminal or (peek.due(task_id) or 0) > peek.now_ms() + 1_000_000


async def test_a_key_names_one_submission_also_in_another_process(stub: StubServer, settings: Settings) -> None:
    """The same owner, server and key: the same task, and one call."""
    async with tracker_of(stub, settings) as one, tracker_of(stub, settings) as two:
        first = await one.submit("stub", "export", {"n": 1}, key="2026", owner="ann")
        assert await two.submit("stub", "export", {"n": 1}, key="2026", owner="ann") == first
        other = await two.submit("stub", "export", {"n": 1}, key="2026", owner="bob")
        assert other.task_id != first.task_id
    assert len(stub.asked("tools/call")) == 2


async def test_names_that_cannot_be_stored_and_tasks_that_are_not_there(stub: StubServer, settings: Settings) -> None:
    """Each error says what is wrong."""
    with pytest.raises(ConfigurationError, match="consumer"):
        tracker_of(stub, settings, consumers={"a b": _nothing})
    with pytest.raises(ConfigurationError, match="questions"):
        tracker_of(stub, settings, consumers={"questions": _nothing})
    async with tracker_of(stub, settings) as tracker:
        with pytest.raises(ConfigurationError, match="consumer"):
            await tracker.submit("stub", "export", notify=["a b"])
        with pytest.raises(ConfigurationError, match="server"):
            await tracker.submit("a b", "export")
        with pytest.raises(UnknownTask, match="4 characters"):
            await tracker.get("abc")
        for call in (tracker.get("x" * 32), tracker.cancel("x" * 32), tracker.answer("x" * 32, {"k": 1})):
            with pytest.raises(UnknownTask):
                await call
        with pytest.raises(TimeoutError):
            await tracker.wait((await tracker.submit("stub", "export")).task_id, 0.05)
        assert len({(await tracker.submit("stub", "export")).task_id[:2] for _ in range(3)}) > 0
        with pytest.raises((AmbiguousTask, UnknownTask)):
            await tracker.get("zzzz")
    async with Tracker(settings=settings, options=TrackOptions()) as tracker:
        with pytest.raises(ConfigurationError, match="MCPTASKS_TRACK_SERVERS"):
            await tracker.submit("stub", "export")
        assert (await tracker.list()).tasks


async def _nothing(event: Event, task: Tracked) -> None:
    pass
