"""Deliveries: at least once under one id, growing gaps, dead letters; one consumer that hangs delays its task alone."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import redis

from mcptasks.errors import StoreUnavailable
from mcptasks.settings import Settings
from mcptasks.tracker.consumers import CeleryTask, Function
from mcptasks.tracker.deliverer import Deliverer
from mcptasks.tracker.errors import Refused, Unhandled
from mcptasks.tracker.model import Event, Tracked
from mcptasks.tracker.remote import RemoteStatus, Snapshot
from tests.requirements import covers
from tests.support.tracker_desk import Desk, OneDriver, ScriptedDriver, desk
from tests.support.tracking import ASK, DONE
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def front(settings: Settings, raw: redis.Redis) -> AsyncGenerator[Desk]:
    """A tracker; a delivery may take 300 ms."""
    async with desk(settings, raw, OneDriver(ScriptedDriver()), delivery_ms=300) as made:
        yield made


class Sink:
    """A consumer whose handling of each event is scripted."""

    def __init__(self, *says: BaseException | float | None) -> None:
        self.got: list[tuple[Event, Tracked]] = []
        self._says = list(says)

    async def __call__(self, event: Event, task: Tracked) -> None:
        self.got.append((event, task))
        said = self._says.pop(0) if self._says else None
        if isinstance(said, BaseException):
            raise said
        if said is not None:
            await asyncio.sleep(said)


async def ended(front: Desk, n: int = 1) -> list[str]:
    """Tasks that have just ended, and consumer "hook" is to be told."""
    driver = front.servers.driver("stub")
    assert isinstance(driver, ScriptedDriver)
    task_ids = [(await front.submit(consumers=("hook",))).task_id for _ in range(n)]
    driver.says["look"] = [Snapshot(status=RemoteStatus.COMPLETED, result=DONE)] * n
    await front.poll(*task_ids)
    return task_ids


@covers("D09")
async def test_ten_ends_are_told_although_one_consumer_hangs_and_one_fails_three_times(front: Desk) -> None:
    """D09: nothing lost, one id per end, and the one that hangs delays its own task only."""
    task_ids = await ended(front, 10)
    hung, flaky = task_ids[3], task_ids[7]
    got: list[Event] = []
    fails = {flaky: 3}

    async def sink(event: Event, task: Tracked) -> None:
        got.append(event)
        if event.task_id == hung and len([one for one in got if one.task_id == hung]) == 1:
            await asyncio.sleep(60)
        fails[event.task_id] = fails.get(event.task_id, 0) - 1
        if fails[event.task_id] >= 0:
            raise RuntimeError("not now")

    await front.deliver("hook", Function(sink))
    assert {event.task_id for event in got} == set(task_ids)
    waiting = front.peek.raw.zrange(front.peek.keys.outbox("hook"), 0, -1)
    assert set(waiting) == {hung, flaky}
    for _ in range(3):
        await front.deliver("hook", Function(sink), *front.peek.raw.zrange(front.peek.keys.outbox("hook"), 0, -1))
    assert await front.store.dead() == []
    assert front.peek.raw.zcard(front.peek.keys.outbox("hook")) == 0
    ids = [event.event_id for event in got]
    assert len(set(ids)) == 10
    assert (len([e for e in got if e.task_id == flaky]), len([e for e in got if e.task_id == hung])) == (4, 2)


@covers("D6", "D09")
async def test_a_target_that_is_gone_gets_growing_gaps_and_then_a_dead_letter(front: Desk) -> None:
    """Five attempts, no sixth; replayed, the same event comes again."""
    (task_id,) = await ended(front)
    sink = Sink(*[Unhandled("HTTP 404")] * 5)
    gaps: list[float] = []
    for _ in range(4):
        await front.deliver("hook", Function(sink), task_id)
        score = front.peek.raw.zscore(front.peek.keys.outbox("hook"), task_id)
        gaps.append(score - front.peek.now_ms())
    assert gaps == sorted(gaps) and gaps[0] > 3_000 and gaps[-1] > 120_000
    await front.deliver("hook", Function(sink), task_id)
    (letter,) = await front.store.dead()
    assert (letter.attempts, letter.why, letter.consumer) == (5, "HTTP 404", "hook")
    assert await front.deliver("hook", Function(sink)) == []
    assert await front.store.replay(task_id, "hook") == "REPLAYED"
    await front.deliver("hook", Function(sink))
    assert len(sink.got) == 6
    assert {event for event, _ in sink.got} == {letter.event}
    assert await front.store.dead() == []


@covers("D6")
async def test_a_permanent_refusal_is_a_dead_letter_at_once(front: Desk) -> None:
    """No second attempt."""
    (task_id,) = await ended(front)
    sink = Sink(Refused("HTTP 410"))
    await front.deliver("hook", Function(sink))
    assert [(letter.event.task_id, letter.attempts) for letter in await front.store.dead()] == [(task_id, 1)]


@covers("D09")
async def test_a_mark_that_was_lost_brings_the_same_event_once_more(
    front: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was killed, or the store was away, between the delivery and its mark."""
    (task_id,) = await ended(front)
    sink = Sink()
    (delivery,) = (await front.store.take("hook", 10, 60_000)).deliveries
    await Function(sink).deliver(delivery)  # and then the process is gone
    await front.deliver("hook", Function(sink), task_id)
    assert len(sink.got) == 2
    assert sink.got[0][0] == sink.got[1][0]
    assert await front.deliver("hook", Function(sink)) == []
    # The store is away for a moment only: the mark waits for it.
    (task_id,) = await ended(front)
    real, calls = front.store.delivered, 0

    async def delivered(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StoreUnavailable("away")
        return await real(*args)

    monkeypatch.setattr(front.store, "delivered", delivered)
    await front.deliver("hook", Function(sink))
    assert front.peek.raw.zcard(front.peek.keys.outbox("hook")) == 0


async def test_a_consumers_error_leaves_its_name_alone(front: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """Its text may hold anything, a token too: it is neither stored nor logged."""
    (task_id,) = await ended(front)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            await front.deliver("hook", Function(Sink(ValueError("Bearer hunter2"))), task_id)
    (letter,) = await front.store.dead()
    assert letter.why == "ValueError"
    assert "hunter2" not in caplog.text
    assert "hunter2" not in str(front.peek.everything())


async def test_a_consumer_that_is_cancelled_from_within_has_failed(front: Desk) -> None:
    """It waited for something of its own that was cancelled. Nobody told its delivery to stop: the attempt counts."""
    (task_id,) = await ended(front)
    for _ in range(5):
        await front.deliver("hook", Function(Sink(asyncio.CancelledError())), task_id)
    (letter,) = await front.store.dead()
    assert (letter.attempts, letter.why) == (5, "CancelledError")


async def test_a_function_that_is_not_async_says_so_among_the_dead_letters(front: Desk) -> None:
    """It was called, and is not called again: a mistake in the code, to be mended before a replay."""
    (task_id,) = await ended(front)
    told: list[Event] = []
    plain: Any = lambda event, task: told.append(event)  # noqa: E731 - a def without async, in short
    await front.deliver("hook", Function(plain))
    (letter,) = await front.store.dead()
    assert (letter.attempts, letter.why) == (1, "it is no async function")
    assert [event.task_id for event in told] == [task_id]


async def test_as_many_deliveries_run_as_may_and_the_next_begins_when_one_ends(
    settings: Settings, raw: redis.Redis
) -> None:
    """Many tasks end together: nobody waits for the next look, which is a minute away here."""
    told: list[str] = []
    running = most = 0

    async def sink(event: Event, task: Tracked) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        told.append(event.task_id)

    async with desk(settings, raw, OneDriver(ScriptedDriver()), deliveries=4, look_ms=60_000) as front:
        task_ids = await ended(front, 40)
        deliverer = asyncio.ensure_future(Deliverer("hook", Function(sink), front.store, front.options).run())

        async def all_told() -> bool:
            return len(told) == len(task_ids)

        try:
            await eventually(all_told, description="all are told")
        finally:
            deliverer.cancel()
            await asyncio.gather(deliverer, return_exceptions=True)
    assert sorted(told) == sorted(task_ids)
    assert most == 4


async def test_a_function_sees_the_task_as_it_is_now(front: Desk) -> None:
    """With the result that the event is about."""
    (task_id,) = await ended(front)
    sink = Sink()
    await front.deliver("hook", Function(sink))
    ((event, task),) = sink.got
    assert (event.kind, event.task_id, task.result) == ("completed", task_id, DONE)
    assert event.event_id == f"{task_id}:{task.revision}"


async def test_a_celery_task_is_sent_names_and_no_payloads(front: Desk) -> None:
    """Invariant 10; the event's id is the message's."""
    (task_id,) = await ended(front)
    sent: list[tuple[Any, ...]] = []

    class App:
        def send_task(self, name: str, args: Any, **options: Any) -> None:
            sent.append((name, args, options))

    await front.deliver("hook", CeleryTask(App(), "crm.on_event", queue="crm"))
    ((name, (event,), options),) = sent
    assert (name, options["queue"], options["task_id"]) == ("crm.on_event", "crm", event["event_id"])
    assert event.keys() == {"event_id", "kind", "task_id", "server", "tool", "owner"}
    assert (event["task_id"], event["kind"]) == (task_id, "completed")


async def test_a_broker_that_hangs_holds_its_own_news_alone(settings: Settings, raw: redis.Redis) -> None:
    """Names are resolved meanwhile, of servers and webhooks; and the news come again."""
    async with desk(settings, raw, OneDriver(ScriptedDriver()), delivery_ms=2_000) as front:
        await _hangs_alone(front, await ended(front, 40))


async def _hangs_alone(front: Desk, task_ids: list[str]) -> None:
    broker = threading.Event()

    class App:
        def send_task(self, *_: Any, **__: Any) -> None:
            broker.wait(60)

    try:
        await front.deliver("hook", CeleryTask(App(), "crm.on_event"))
        async with asyncio.timeout(20):
            await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80)
    finally:
        broker.set()
    assert set(front.peek.raw.zrange(front.peek.keys.outbox("hook"), 0, -1)) == set(task_ids)
    await front.deliver("hook", CeleryTask(App(), "crm.on_event"), *task_ids)
    assert front.peek.raw.zcard(front.peek.keys.outbox("hook")) == 0


async def test_a_question_that_is_over_is_not_told(front: Desk) -> None:
    """A busy consumer gets the newest event in the place of a stale one."""
    driver = front.servers.driver("stub")
    assert isinstance(driver, ScriptedDriver)
    task = await front.submit(consumers=("hook",))
    driver.says["look"] = [
        Snapshot(status=RemoteStatus.INPUT_REQUIRED, questions={"k": ASK}),
        Snapshot(status=RemoteStatus.COMPLETED, result=DONE),
    ]
    await front.poll(task.task_id)
    await front.poll(task.task_id)
    sink = Sink()
    await front.deliver("hook", Function(sink))
    assert [event.kind for event, _ in sink.got] == ["completed"]
