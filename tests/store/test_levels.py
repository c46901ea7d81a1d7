"""What those who watch are told of the store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcptasks.model import Status
from mcptasks.store import scripts
from mcptasks.store.registry import WorkerPulse
from mcptasks.store.scripts import Ran
from mcptasks.store.store import TaskStore
from tests.support.peek import Peek
from tests.support.tasks import ended, parked, queued, running

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
    assert (seen.tracked, seen.tracked_late_ms, seen.dead_letters) == (0, 0, 0)


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
