"""What those who watch are told of the store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from mcptasks.model import Reason, Status
from mcptasks.store import scripts
from mcptasks.store.registry import WorkerPulse
from mcptasks.store.scripts import Ran
from mcptasks.store.store import TaskStore
from mcptasks.tracker.store.store import TrackStore
from tests.support.peek import Peek
from tests.support.tasks import ended, parked, queued, running
from tests.support.tracking import ASK, TrackPeek, tracked

pytestmark = pytest.mark.anyio

PULSE = WorkerPulse(at_ms=1, host="h", pid=2, slots=4, active=1, received=9, waiting=None, deaf_ms=7)


async def test_an_empty_store_has_nothing_late(store: TaskStore) -> None:
    """And its door is open."""
    seen = await store.levels()
    assert (seen.unsent, dict(seen.late_ms), seen.admission_open, seen.workers) == (
        0,
        {"unsent": 0, "leases": 0, "expiry": 0},
        True,
        {},
    )
    assert (seen.tracked, seen.tracked_late_ms, seen.dead_letters, seen.outboxes) == (0, 0, 0, {})


async def test_levels_tell_what_waits_how_long_and_who_works(store: TaskStore, peek: Peek) -> None:
    """The oldest of each status by its last change; an index's first entry that is overdue; live workers alone."""
    first = await queued(store)
    await queued(store)
    peek.raw.hset(peek.keys.task(first), "updated", peek.now_ms() - 60_000)
    claim = await running(store)
    peek.raw.zadd(peek.keys.leases, {claim.task_id: peek.now_ms() - 5_000})
    await parked(store)
    await ended(store, Status.FAILED)
    await store.close_admission("deploy")
    await store.report("live", replace(PULSE, at_ms=peek.now_ms()))
    await store.report("dead", PULSE)
    seen = await store.levels()
    await store.open_admission()
    assert (seen.counts.by_status[Status.QUEUED], seen.counts.by_status[Status.PARKED]) == (2, 1)
    assert seen.now_ms - seen.counts.since_ms[Status.QUEUED] == pytest.approx(60_000, abs=5_000)
    assert Status.FAILED not in seen.counts.since_ms
    assert seen.late_ms["leases"] == pytest.approx(5_000, abs=4_000)
    assert seen.unsent >= 2
    assert not seen.admission_open
    assert set(seen.workers) == {"live"}


async def test_levels_tell_what_each_consumer_is_owed_and_what_nobody_brings_it(
    store: TaskStore, tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """One has no worker, one is being told, one refused its event, a dead letter now; a fourth has had its news."""
    for _ in range(2):
        await tracked(tracks, status="input_required", questions={"k": ASK}, consumers=("gone", "slow", "bad", "fine"))
    overdue_ms = track_peek.now_ms() - 60_000
    for task_id in track_peek.raw.zrange(track_peek.keys.outbox("gone"), 0, -1):
        track_peek.raw.zadd(track_peek.keys.outbox("gone"), {task_id: overdue_ms})
    assert len((await tracks.take("slow", 10, 60_000)).deliveries) == 2
    for one in (await tracks.take("bad", 10, 60_000)).deliveries:
        assert await tracks.undelivered(one, delay_ms=1, permanent=True, why="410") == "DEAD"
    for one in (await tracks.take("fine", 10, 60_000)).deliveries:
        assert await tracks.delivered(one) == "DELIVERED"
    seen = await store.levels()
    assert {name: box.depth for name, box in seen.outboxes.items()} == {"gone": 2, "slow": 2, "bad": 0, "fine": 0}
    assert seen.outboxes["gone"].late_ms == pytest.approx(60_000, abs=10_000)
    assert [seen.outboxes[name].late_ms for name in ("slow", "bad", "fine")] == [0, 0, 0]
    assert (seen.tracked, seen.dead_letters) == (2, 2)


async def test_an_observer_hears_of_each_end_once_and_callers_see_nothing_of_it(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whichever script a task ends; tool, status, reason and age."""
    heard: list[Ran] = []
    monkeypatch.setattr(scripts, "observers", [heard.append])
    await ended(store)
    await store.cancel(await queued(store), owner="ann")
    assert [(ran.name, *(ran.ended or [])[:3]) for ran in heard if ran.ended] == [
        ("finish", "report", "completed", "completed"),
        ("cancel", "report", "cancelled", "cancelled"),
    ]
    assert all(int((ran.ended or ["", "", "", "0"])[3]) >= 0 for ran in heard)
    assert [ran.reply for ran in heard if ran.ended] == [["FINISHED"], ["CANCELLED"]]


async def test_a_call_that_the_store_does_not_answer_is_heard_of_too(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an empty reply."""
    heard: list[Ran] = []
    monkeypatch.setattr(scripts, "observers", [heard.append])
    runner = store.connection.runner

    async def broken(**_: object) -> None:
        raise OSError("away")

    monkeypatch.setitem(runner._registered, "read", broken)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(Exception, match="does not answer"):
        await store.read("t", None)
    assert [(ran.name, ran.reply) for ran in heard] == [("read", [])]


async def test_a_call_that_its_caller_gives_up_is_no_error_of_the_store(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that hangs up would wake whoever is on call for the store."""
    heard: list[Ran] = []
    monkeypatch.setattr(scripts, "observers", [heard.append])
    begun = asyncio.Event()

    async def slow(**_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setitem(store.connection.runner._registered, "read", slow)  # pyright: ignore[reportPrivateUsage]
    call = asyncio.create_task(store.read("t", None))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert heard == []


async def test_an_observer_that_fails_breaks_nothing_and_is_told_once(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk under the metrics' files must not lose a task's end; the others hear of the call all the same."""
    heard: list[str] = []

    def broken(_: Ran) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(scripts, "observers", [broken, lambda ran: heard.append(ran.name)])
    claim = await running(store)
    assert await store.finish(claim, Status.COMPLETED, Reason.COMPLETED, payload="{}") == "FINISHED"
    assert heard == ["create", "claim", "finish"]
    [told] = [record for record in caplog.records if record.name == "mcptasks.store"]
    assert "incomplete" in told.getMessage() and told.exc_info
