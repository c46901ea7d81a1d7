"""All keys of a task live and die as one unit, and every key has an expiry unless the task's ttl is unlimited."""

from __future__ import annotations

import pytest

from mcptasks.policy import Policy
from mcptasks.store.callers import EXPIRY_GRACE_MS
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import INDEXES, Peek
from tests.support.tasks import (
    ANN,
    TERMINAL,
    Terminal,
    asking,
    claimed,
    create,
    end,
    ended,
    hint,
    parked,
    question,
    queued,
    read,
    running,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

UNLIMITED = Policy(unlimited=True)


def one_end(peek: Peek, task_id: str) -> int:
    """The moment at which every key of the task dies."""
    ends = set(peek.stored(task_id).expires.values())
    assert len(ends) == 1
    return ends.pop()


async def whole(store: TaskStore, policy: Policy | None = None) -> str:
    """A task that has every key a task can have: record, call, journal, idempotency key."""
    created = await create(store, policy=policy, key="k")
    claim = await claimed(store, created.task_id)
    await store.step(claim, "s#1", "1")
    await store.ask(claim, asking(question("q")), guard=None, hold=False)
    return created.task_id


@covers("P33")
async def test_every_key_of_an_unfinished_task_dies_at_one_moment_which_nothing_moves(
    store: TaskStore, peek: Peek
) -> None:
    """Invariant 7, through every transition that writes a key."""
    created = await create(store, key="k")
    task_id = created.task_id
    planned = one_end(peek, task_id)
    assert created.record is not None
    assert planned == created.record.created_ms + 2 * store.settings.ttl_ms + EXPIRY_GRACE_MS
    claim = await claimed(store, task_id)
    await store.progress(claim, "Half", 1, 2)
    await store.step(claim, "s#1", "1")
    assert one_end(peek, task_id) == planned
    await store.ask(claim, asking(question("q")), guard=None, hold=True)
    await store.park(claim)
    await store.claim(hint(task_id, 2, 1), "w2")
    await store.answer(task_id, ANN, {"q": 1})
    assert one_end(peek, task_id) == planned
    again = await claimed(store, task_id, run=2)
    await store.renew([(task_id, 2)])
    await store.release(again)
    assert one_end(peek, task_id) == planned
    assert len(peek.stored(task_id).expires) == 5


@covers("P33", "R7")
@pytest.mark.parametrize("how", ["finished", "cancelled", "expired"])
async def test_an_ended_task_is_kept_one_more_ttl_as_one_unit(store: TaskStore, peek: Peek, how: str) -> None:
    """P33: a terminal task is kept one more ttl after it ended, its idempotency key with it."""
    task_id = await whole(store)
    peek.age(task_id)
    match how:
        case "finished":
            await store.answer(task_id, ANN, {"q": 1})
            await end(store, await claimed(store, task_id, run=2))
        case "cancelled":
            await store.cancel(task_id, ANN, "No more")
        case _:
            peek.expire(task_id)
            await store.reap(task_id)
    # Record, journal, timeline and idempotency key, the payload where there is one, and what was called if it failed.
    assert len(peek.stored(task_id).expires) == {"cancelled": 4, "finished": 5, "expired": 6}[how]
    assert one_end(peek, task_id) == int(peek.field(task_id, "updated") or 0) + store.settings.ttl_ms


@covers("P33")
async def test_a_task_that_ends_at_once_is_readable_for_its_whole_ttl_from_creation(
    store: TaskStore, peek: Peek
) -> None:
    """SEP-2663: ttlMs counts from creation; the end never makes it shorter."""
    claim = await ended(store)
    record = await read(store, claim.task_id)
    assert record.ttl_ms is not None
    assert one_end(peek, claim.task_id) >= record.created_ms + record.ttl_ms


@covers("P33", "P60")
@pytest.mark.parametrize("status", TERMINAL)
async def test_when_its_time_is_over_nothing_is_left_of_an_ended_task(
    store: TaskStore, peek: Peek, status: Terminal
) -> None:
    """C13: no key left at the end; then the task is as unknown as one that never was."""
    policy = Policy(ttl_ms=1)
    claim = await ended(store, status, policy=policy)
    own = {peek.keys.task(claim.task_id), peek.keys.result(claim.task_id)}
    wait_until(lambda: not peek.all_keys() & own, description="Redis has removed the task")
    assert await store.read(claim.task_id, ANN) is None
    assert await store.cancel(claim.task_id, ANN, "No more") == "GONE"
    assert (await store.answer(claim.task_id, ANN, {"q": 1})).outcome == "GONE"
    await store.forget()
    assert peek.all_keys() == set()


@covers("P23")
async def test_when_the_task_is_gone_its_idempotency_key_is_free(store: TaskStore, peek: Peek) -> None:
    """C12 (e): same key after the ttl is a new task."""

    async def call() -> tuple[str, str]:
        created = await create(store, policy=Policy(ttl_ms=1), key="k")
        return created.outcome, created.task_id

    _, first = await call()
    await end(store, await claimed(store, first))
    wait_until(lambda: not peek.stored(first).task, description="Redis has removed the task")
    outcome, second = await call()
    assert outcome == "CREATED"
    assert second != first


async def test_a_late_write_does_not_bring_a_dead_task_back(store: TaskStore, peek: Peek) -> None:
    """C13: the worker's late write is a quiet refusal and re-creates no key."""
    claim = await parked(store, "q", hold=True)
    peek.raw.flushall()
    await store.step(claim, "s#1", "1")
    await store.progress(claim, "Late", 1, 2)
    await store.answer(claim.task_id, ANN, {"q": 1})
    await end(store, claim)
    assert await store.renew([(claim.task_id, claim.token)]) == ["LOST"]
    assert peek.all_keys() == set()


# ------------------------------------------------------------------------------------------------ indexes


async def test_an_index_lives_as_long_as_the_longest_of_its_tasks(store: TaskStore, peek: Peek) -> None:
    """An index that died before its member would lose it from the sweeper's sight."""
    names = [peek.keys.unsent, peek.keys.expiry, peek.keys.ids, peek.keys.drops]
    names += [f"{each}active" for each in (peek.keys.tasks, peek.keys.tasks_of_owner(ANN))]
    for ttl_ms in (10_000_000, 1_000, 20_000_000, 20_000_001):
        await queued(store, policy=Policy(ttl_ms=ttl_ms))
        longest = max(int(peek.field(task_id, "gone") or 0) for task_id in await store.active())
        left = longest - peek.now_ms()
        for name in names:
            # A little longer, so that not every task moves it.
            assert longest <= peek.raw.pexpiretime(name) <= longest + left / 10


async def test_every_index_a_task_can_stand_in_has_an_expiry(store: TaskStore, peek: Peek) -> None:
    """Invariant 7: every key, the fleet's own included."""
    for make in (queued, running, parked):
        await make(store)
    await store.sweep("me")
    assert all(peek.raw.pttl(key) > 0 for key in peek.all_keys())
    assert {getattr(peek.keys, index) for index in INDEXES} | {peek.keys.sweeper} < peek.all_keys()


# ------------------------------------------------------------------------------------------------ unlimited


@covers("P33")
@pytest.mark.unlimited
async def test_an_unlimited_task_is_never_removed_by_time(store: TaskStore, peek: Peek) -> None:
    """P33: ttlMs null; before and after its end, the idempotency key too."""
    task_id = await whole(store, UNLIMITED)
    assert one_end(peek, task_id) == -1
    assert peek.stored(task_id).indexes.keys() == {"countdowns"}, "it never expires"
    await store.cancel(task_id, ANN, "No more")
    assert one_end(peek, task_id) == -1
    assert (await read(store, task_id)).ttl_ms is None


@pytest.mark.unlimited
async def test_an_index_with_an_unlimited_task_stays(store: TaskStore, peek: Peek) -> None:
    """Also when limited tasks come and go beside it."""
    await queued(store)
    unlimited = await queued(store, policy=UNLIMITED)
    await queued(store)
    assert peek.raw.pttl(peek.keys.unsent) == -1
    claim = await claimed(store, unlimited)
    await running(store)
    assert peek.raw.pttl(peek.keys.leases) == -1
    await store.ask(claim, asking(question("q")), guard=None, hold=False)
    await parked(store)
    assert peek.raw.pttl(peek.keys.countdowns) == -1


@pytest.mark.unlimited
async def test_an_index_gets_an_end_again_when_its_unlimited_task_has_left_and_it_was_empty(
    store: TaskStore, peek: Peek
) -> None:
    """Nothing for ever stays behind for ever."""
    claim = await running(store, policy=UNLIMITED)
    await end(store, claim)
    await running(store)
    assert peek.raw.pttl(peek.keys.leases) > 0


@pytest.mark.unlimited
async def test_an_unlimited_task_is_still_swept(store: TaskStore, peek: Peek) -> None:
    """No ttl does not mean no lease."""
    claim = await running(store, policy=UNLIMITED)
    peek.make_due("leases", claim.task_id)
    assert await store.sweep("me") == [claim.task_id]
    assert (await store.reap(claim.task_id)).outcome == "LOST"
