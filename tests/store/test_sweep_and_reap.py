"""sweep: one worker of the fleet has what is overdue. reap: one overdue task is brought to where it must be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from mcptasks.model import Hint, Reason, Status, new_task_id
from mcptasks.policy import Policy
from mcptasks.store.base import Next
from mcptasks.store.store import TaskStore
from mcptasks.store.upkeep import SWEEP_BATCH
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import INDEXES, Peek
from tests.support.tasks import (
    ANN,
    TERMINAL,
    Terminal,
    claimed,
    end,
    ended,
    hint,
    parked,
    queued,
    read,
    running,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


# ------------------------------------------------------------------------------------------------ sweep


async def test_what_is_overdue_in_any_index_is_found_once_and_nothing_else(store: TaskStore, peek: Peek) -> None:
    """A task may be overdue in two ways at once."""
    expired, dead, unsent = await running(store), await running(store), await queued(store)
    for make in (queued, running, parked):
        await make(store)
    peek.expire(expired.task_id)
    peek.make_due("leases", expired.task_id)
    peek.make_due("leases", dead.task_id)
    peek.make_due("unsent", unsent)
    found = await store.sweep("me")
    assert found is not None
    assert sorted(found) == sorted([expired.task_id, dead.task_id, unsent])


async def test_one_worker_of_the_fleet_sweeps_until_its_term_is_over(store: TaskStore, peek: Peek) -> None:
    """Three sweeps long: whoever misses them is replaced."""
    assert await store.run_script(
        "sweep", store.fleet("sweeper", "unsent", "leases", "expiry"), {"me": "a", "term_ms": 50_000, "batch": 1}
    ) == ["SWEEP"]
    assert await store.run_script(
        "sweep", store.fleet("sweeper", "unsent", "leases", "expiry"), {"me": "b", "term_ms": 50_000, "batch": 1}
    ) == ["BUSY"]
    assert await store.sweep("b") is None
    assert await store.sweep("a") == []
    assert 0 < peek.raw.pttl(peek.keys.sweeper) <= 3 * store.settings.sweep_ms


@covers("A03")
async def test_another_worker_takes_over_when_the_sweeper_is_gone(open_store: OpenStore) -> None:
    """Its term ends by itself, without anybody's help."""
    store = open_store(sweep_ms=10)
    assert await store.sweep("a") == []

    async def taken_over() -> bool:
        return await store.sweep("b") is not None

    await eventually(taken_over, description="the second worker has the sweep")


async def test_a_long_backlog_is_taken_in_parts(store: TaskStore, peek: Peek) -> None:
    """The store answers others between two sweeps."""
    members = {new_task_id(): 1 for _ in range(SWEEP_BATCH + 1)}
    peek.raw.zadd(peek.keys.unsent, members)
    peek.raw.expire(peek.keys.unsent, 1000)
    found = await store.sweep("me")
    assert found is not None
    assert len(found) == SWEEP_BATCH
    for task_id in found:
        await store.reap(task_id)
    assert await store.sweep("me") == list(members.keys() - set(found))


# ------------------------------------------------------------------------------------------------ reap: lost messages


@covers("A03")
async def test_a_message_that_no_worker_claimed_is_sent_again_and_again(store: TaskStore, peek: Peek) -> None:
    """Invariant 1. The distances double up to five minutes, so that a fleet that is down is not flooded."""
    task_id = await queued(store)
    message = Hint(task_id=task_id, run=1, tool="report", queue="mcptasks")
    waits: list[float] = []
    for _ in range(9):
        peek.make_due("unsent", task_id)
        before = peek.now_ms()
        assert await store.reap(task_id) == Next("RESEND", message)
        due = peek.score("unsent", task_id)
        assert due is not None
        waits.append(due - before)
    ideal = [min(store.settings.resend_ms * 2**n, 300_000) for n in range(1, 10)]
    assert all(want <= got < want + 5_000 for got, want in zip(waits, ideal, strict=True))
    assert all(earlier < later for earlier, later in pairwise(waits[:6]))


async def test_a_run_starts_the_distances_afresh(store: TaskStore, peek: Peek) -> None:
    """They belong to one message, not to the task."""
    task_id = await queued(store)
    for _ in range(4):
        peek.make_due("unsent", task_id)
        await store.reap(task_id)
    claim = await claimed(store, task_id)
    await store.release(claim)
    assert peek.field(task_id, "resends") == "0"


async def test_a_task_whose_message_is_not_due_is_left_alone(store: TaskStore, peek: Peek) -> None:
    """Its worker may be just about to claim it."""
    task_id = await queued(store)
    before = peek.stored(task_id)
    assert await store.reap(task_id) == Next("NOTHING")
    assert peek.stored(task_id) == before


async def test_a_message_is_sent_with_the_tasks_queue_and_limit(store: TaskStore, peek: Peek) -> None:
    """The sweeper knows nothing of the task but what the store says."""
    task_id = await queued(store, policy=Policy(queue="slow", time_limit_ms=1_000))
    peek.make_due("unsent", task_id)
    message = Hint(task_id=task_id, run=1, tool="report", queue="slow", hard_limit_s=16.0)
    assert await store.reap(task_id) == Next("RESEND", message)


@covers("A07")
async def test_a_message_that_stands_in_a_long_queue_is_not_sent_again(store: TaskStore, peek: Peek) -> None:
    """It would make the wait longer for all, the calls behind it most of all."""
    waiting = [await queued(store, policy=Policy(queue="slow")) for _ in range(3)]
    list_of_queue = f"{peek.keys.prefix}slow"
    peek.raw.lpush(list_of_queue, *["a message"] * 300)
    peek.raw.expire(list_of_queue, 1_000)
    peek.make_due("unsent", waiting[0])
    before, then = peek.stored(waiting[0]), peek.now_ms()
    assert await store.reap(waiting[0]) == Next("WAITING")
    after = peek.stored(waiting[0])
    assert after.task == before.task, "it is sent again as soon as ever once the queue is short"
    # A queue of 300 takes longer than one of three.
    assert after.indexes["unsent"] - then >= 4 * store.settings.resend_ms


async def test_a_queue_that_is_short_of_messages_gets_those_that_it_lacks(store: TaskStore, peek: Peek) -> None:
    """Who died with messages in hand took them from a queue where others still wait."""
    waiting = [await queued(store) for _ in range(3)]
    peek.raw.lpush(f"{peek.keys.prefix}{store.settings.queue}", *["a message"] * 2)
    peek.raw.expire(f"{peek.keys.prefix}{store.settings.queue}", 1_000)
    peek.make_due("unsent", waiting[0])
    assert (await store.reap(waiting[0])).outcome == "RESEND"


async def test_what_is_due_goes_out_however_long_the_queue_is(store: TaskStore, peek: Peek) -> None:
    """It has no message yet."""
    claim = await running(store, policy=Policy(retry_ms=(500_000,)))
    await store.retry(claim, "Busy", '{"code":-32051,"message":"Busy"}')
    peek.raw.lpush(f"{peek.keys.prefix}{store.settings.queue}", *["a message"] * 300)
    peek.raw.expire(f"{peek.keys.prefix}{store.settings.queue}", 1_000)
    peek.make_due("unsent", claim.task_id)
    assert (await store.reap(claim.task_id)).outcome == "DUE"


async def test_a_queue_on_another_broker_is_not_looked_at(open_store: OpenStore, peek: Peek) -> None:
    """A list of that name is none of its queues."""
    store = open_store(broker_url="amqp://elsewhere")
    task_id = await queued(store)
    peek.raw.lpush(f"{peek.keys.prefix}{store.settings.queue}", "a message")
    peek.raw.expire(f"{peek.keys.prefix}{store.settings.queue}", 1_000)
    peek.make_due("unsent", task_id)
    assert (await store.reap(task_id)).outcome == "RESEND"


# ------------------------------------------------------------------------------------------------ reap: lost workers


@covers("W3", "N6", "A05")
async def test_a_run_whose_worker_died_is_run_again_within_its_attempts_and_then_given_up(
    store: TaskStore, peek: Peek, heard: Callable[[], list[str]]
) -> None:
    """A05: a job that kills its worker must not take the fleet down one by one."""
    task_id = await queued(store, policy=Policy(max_attempts=2))
    await claimed(store, task_id, run=1)
    peek.make_due("leases", task_id)
    peek.age(task_id)
    assert await store.reap(task_id) == Next("LOST", Hint(task_id=task_id, run=2, tool="report", queue="mcptasks"))
    assert heard() == [f"lost {task_id} 1"]
    assert not peek.updated(task_id)
    assert peek.stored(task_id).indexes.keys() == {"unsent", "expiry"}
    assert (await claimed(store, task_id, run=2)).record.attempt == 2
    peek.make_due("leases", task_id)
    assert await store.reap(task_id) == Next("FAILED", detail="worker_lost")
    assert heard() == [f"lost {task_id} 2"]
    record = await read(store, task_id)
    assert (record.status, record.reason) == (Status.FAILED, Reason.WORKER_LOST)
    assert record.error is not None
    assert record.error["code"] == -32603
    assert "lost 2 times" in record.error["message"]
    assert record.error["message"] == record.status_message
    assert peek.stored(task_id).indexes == {}


@covers("W3", "B06")
@pytest.mark.parametrize("hold", [False, True], ids=["running", "held"])
async def test_a_live_owner_is_never_robbed(store: TaskStore, peek: Peek, hold: bool) -> None:
    """W3: whatever else makes the sweeper look at the task."""
    claim = await parked(store, hold=True) if hold else await running(store)
    before = peek.stored(claim.task_id)
    assert await store.reap(claim.task_id) == Next("NOTHING")
    assert peek.stored(claim.task_id) == before


@covers("W4")
async def test_a_lost_run_whose_time_was_up_is_a_time_out(store: TaskStore, peek: Peek) -> None:
    """A prefork child that was killed at its hard limit, not a crash: running it again would end the same way."""
    claim = await running(store, policy=Policy(time_limit_ms=1_000))
    peek.put(claim.task_id, deadline="1")
    peek.make_due("leases", claim.task_id)
    assert await store.reap(claim.task_id) == Next("FAILED", detail="wall_timeout")
    record = await read(store, claim.task_id)
    assert (record.status, record.reason) == (Status.FAILED, Reason.WALL_TIMEOUT)
    assert record.error == {"code": -32603, "message": "The task ran into its time limit and its worker was lost"}


@covers("A08", "P50")
@pytest.mark.parametrize("hold", [False, True], ids=["running", "held"])
async def test_a_lost_run_that_was_cancelled_stays_cancelled(store: TaskStore, peek: Peek, hold: bool) -> None:
    """A08: the flag is checked before anything else begins."""
    claim = await parked(store, hold=True) if hold else await running(store)
    await store.cancel(claim.task_id, ANN, "No more")
    peek.make_due("leases", claim.task_id)
    assert await store.reap(claim.task_id) == Next("CANCELLED")
    record = await read(store, claim.task_id)
    assert (record.status, record.reason, record.questions) == (Status.CANCELLED, Reason.CANCELLED, {})
    assert peek.stored(claim.task_id).indexes == {}


@covers("W4")
@pytest.mark.parametrize("limit_ms", [None, 1_000], ids=["no limit", "limit passed"])
async def test_a_lost_held_run_goes_on_waiting_for_its_person(
    store: TaskStore, peek: Peek, limit_ms: int | None
) -> None:
    """Invariant 12: human time is free. It costs neither attempts nor the tool's time, and no question is lost."""
    claim = await parked(store, "a", "b", hold=True, policy=Policy(max_attempts=1, time_limit_ms=limit_ms))
    await store.answer(claim.task_id, ANN, {"a": 1})
    if limit_ms is not None:
        peek.put(claim.task_id, deadline="1")
    peek.make_due("leases", claim.task_id)
    peek.age(claim.task_id)
    assert await store.reap(claim.task_id) == Next("COLD")
    record = await read(store, claim.task_id)
    assert (record.status, set(record.questions), record.worker) == (Status.PARKED, {"b"}, None)
    assert not peek.updated(claim.task_id)
    assert peek.stored(claim.task_id).indexes.keys() == {"expiry"}
    assert await end(store, claim) == "STALE"
    answer = await store.answer(claim.task_id, ANN, {"b": 2})
    assert answer.hint is not None
    again = await claimed(store, claim.task_id, run=answer.hint.run)
    assert (again.record.attempt, again.journal.answers) == (1, {"a": 1, "b": 2})


@covers("B06")
async def test_a_worker_that_was_only_slow_has_lost_its_claim(store: TaskStore, peek: Peek) -> None:
    """B06: stalled, then back. Its writes are refused before and after the next run began."""
    slow = await running(store)
    peek.make_due("leases", slow.task_id)
    await store.reap(slow.task_id)
    assert await store.renew([(slow.task_id, slow.token)]) == ["LOST"]
    assert await end(store, slow) == "STALE"
    await claimed(store, slow.task_id, run=2, worker="w2")
    assert await end(store, slow) == "STALE"
    assert (await read(store, slow.task_id)).status is Status.RUNNING


async def test_a_run_that_stands_in_no_index_any_more_is_taken_for_lost(store: TaskStore, peek: Peek) -> None:
    """A store that came back with a part of its data; the task must not rest in running for ever."""
    claim = await running(store)
    peek.raw.zrem(peek.keys.leases, claim.task_id)
    assert (await store.reap(claim.task_id)).outcome == "LOST"


# ------------------------------------------------------------------------------------------------ reap: time is up


async def _held(store: TaskStore) -> str:
    return (await parked(store, hold=True)).task_id


async def _parked(store: TaskStore) -> str:
    return (await parked(store)).task_id


async def _running(store: TaskStore) -> str:
    return (await running(store)).task_id


@covers("P33", "R7")
@pytest.mark.parametrize("make", [queued, _running, _held, _parked], ids=["queued", "running", "held", "parked"])
async def test_an_overdue_task_fails_as_expired_and_its_run_is_stopped(
    store: TaskStore,
    peek: Peek,
    heard: Callable[[], list[str]],
    make: Callable[[TaskStore], Awaitable[str]],
) -> None:
    """P33: overdue work is failed, also while a live worker renews its lease; nobody need poll for it."""
    task_id = await make(store)
    token = peek.field(task_id, "token")
    peek.expire(task_id)
    assert await store.sweep("me") == [task_id]
    assert await store.reap(task_id) == Next("FAILED", detail="expired")
    record = await read(store, task_id)
    assert (record.status, record.reason, record.questions) == (Status.FAILED, Reason.EXPIRED, {})
    assert record.error == {
        "code": -32603,
        "message": "The task expired: its time to live ran out before it was done",
    }
    assert heard() == [f"lost {task_id} {token}"]
    assert peek.stored(task_id).indexes == {}
    assert await store.sweep("me") == []


# ------------------------------------------------------------------------------------------------ reap: nothing to do


@pytest.mark.parametrize("status", TERMINAL)
async def test_what_is_left_of_an_ended_task_in_the_indexes_is_cleared(
    store: TaskStore, peek: Peek, status: Terminal
) -> None:
    """Invariant 4: the record is not touched."""
    claim = await ended(store, status)
    before = peek.stored(claim.task_id)
    for index in INDEXES:
        peek.raw.zadd(getattr(peek.keys, index), {claim.task_id: 1})
    assert await store.reap(claim.task_id) == Next("NOTHING")
    assert peek.stored(claim.task_id) == before


async def test_what_is_left_of_a_task_that_is_gone_is_cleared(store: TaskStore, peek: Peek) -> None:
    """Else every later sweep would find it."""
    for index in INDEXES:
        peek.raw.zadd(getattr(peek.keys, index), {"nobody": 1})
    assert await store.reap("nobody") == Next("NOTHING")
    assert peek.stored("nobody").indexes == {}
    assert peek.all_keys() == set()


async def test_a_parked_task_is_not_moved_by_a_leftover(store: TaskStore, peek: Peek) -> None:
    """It waits for a person, whatever else an index says."""
    claim = await parked(store)
    before = peek.stored(claim.task_id)
    peek.raw.zadd(peek.keys.unsent, {claim.task_id: 1})
    peek.raw.expire(peek.keys.unsent, 1000)
    assert await store.reap(claim.task_id) == Next("NOTHING")
    assert peek.stored(claim.task_id) == before


@covers("W9")
@pytest.mark.parametrize("make", [queued, _running, _parked], ids=["queued", "running", "parked"])
async def test_a_record_of_a_newer_schema_is_left_to_newer_workers(
    store: TaskStore, peek: Peek, make: Callable[[TaskStore], Awaitable[str]]
) -> None:
    """W9: also when it is long overdue. Only its place in the indexes is postponed, for a worker that can read it."""
    task_id = await make(store)
    peek.expire(task_id)
    peek.put(task_id, v="2")
    before, now = peek.stored(task_id), peek.now_ms()
    assert await store.reap(task_id) == Next("NEWER", detail="2")
    after = peek.stored(task_id)
    assert (after.task, after.call, after.journal) == (before.task, before.call, before.journal)
    assert now + 60_000 <= after.indexes.pop("expiry") <= peek.now_ms() + 60_000
    del before.indexes["expiry"]
    assert after.indexes == before.indexes, "what is not overdue stands where it stood"


async def test_two_sweepers_that_reap_one_task_send_one_message(
    store: TaskStore, open_store: OpenStore, peek: Peek
) -> None:
    """The sweep's lease may change hands in the middle; each decision is one script."""
    claim = await running(store)
    peek.make_due("leases", claim.task_id)
    answers = await asyncio.gather(*(one.reap(claim.task_id) for one in (store, open_store(), open_store())))
    assert sorted(answer.outcome for answer in answers) == ["LOST", "NOTHING", "NOTHING"]
    assert [answer.hint for answer in answers if answer.hint is not None] == [hint(claim.task_id, 2)]
