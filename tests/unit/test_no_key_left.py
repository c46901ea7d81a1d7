"""72 hours by a clock that the test moves: of tasks that have a ttl, nothing is left in the store."""

from __future__ import annotations

import pytest

from mcptasks.fleet.sweeper import sweep
from mcptasks.model import Claim, Hint, Reason, Status
from mcptasks.policy import Policy
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from mcptasks.testing.clock import MovableClock
from mcptasks.testing.memory import store_in_memory
from tests.requirements import covers
from tests.store.test_sweeper import Outbox
from tests.support.tasks import (
    ANN,
    TERMINAL,
    asking_and_sleeping,
    claimed,
    create,
    ended,
    parked,
    queued,
    running,
    sleeping,
)

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000


async def one_of_each_kind(store: TaskStore) -> None:
    """Every status, with every key that a task can have."""
    policy = Policy(retry_ms=(HOUR_MS,))
    for make in (queued, running, parked, sleeping, asking_and_sleeping):
        await make(store, policy=policy)
    await parked(store, "a", hold=True, policy=policy)
    for status in TERMINAL:
        await ended(store, status, policy=policy)
    keyed = await create(store, key="k", policy=policy)
    claim = await claimed(store, keyed.task_id)
    await store.step(claim, "charge#1", "1")
    assert (await store.retry(claim, "Busy", '{"code":1,"message":"Busy"}')).outcome == "RETRYING"
    longer = await running(store, policy=policy)
    assert (await store.extend(longer, 20 * HOUR_MS)).outcome == "EXTENDED"


@covers("R7", "P33", "C13")
@pytest.mark.parametrize("swept", [True, False])
async def test_after_72_hours_no_key_is_left(swept: bool) -> None:
    """C13: with a sweeper, which fails what is overdue and forgets what is gone; and where none ever runs."""
    clock = MovableClock()
    with store_in_memory(clock) as url:
        store = TaskStore(Settings(redis_url=url, ttl_ms=HOUR_MS))
        await one_of_each_kind(store)
        before = (await store.count(ANN)).unfinished
        assert before == 8
        for half_hour in range(144):
            clock.move_to(clock.now_ms + HOUR_MS // 2)
            if swept and half_hour < 143:
                outbox = Outbox()
                await sweep(store, "me", outbox)
                for hint in outbox.sent[:1]:
                    await taken(store, hint)
        counts = await store.count(None)
        assert (counts.unfinished, sum(counts.by_status.values())) == (0, 0)
        assert await store.connection.client.keys("*") == []
        await store.aclose()


async def taken(store: TaskStore, hint: Hint) -> None:
    """A worker has the message, and does what it says."""
    claim = await store.claim(hint, "w2")
    if isinstance(claim, Claim):
        await store.finish(claim, Status.COMPLETED, Reason.COMPLETED, payload="{}")
