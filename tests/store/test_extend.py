"""extend: the task is kept for at least so long from now, all its keys and entries together; never for less."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from mcptasks.errors import SchemaTooNew
from mcptasks.model import Reason, Status
from mcptasks.policy import Policy
from mcptasks.store.callers import EXPIRY_GRACE_MS
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import TERMINAL, Terminal, create, ended, parked, queued, read, running, sleeping

pytestmark = pytest.mark.anyio

HOUR: Final = 3_600_000
SHORT: Final = Policy(ttl_ms=1_000_000, retry_ms=(1_000,))


def ends(peek: Peek, task_id: str) -> set[int]:
    """When its keys die."""
    return set(peek.stored(task_id).expires.values())


@covers("R7", "P33")
@pytest.mark.parametrize("make", [queued, running, parked, sleeping], ids=lambda make: make.__name__)
async def test_an_unfinished_task_has_a_new_end_with_all_that_belongs_to_it(
    store: TaskStore, peek: Peek, make: Callable[..., Awaitable[Any]]
) -> None:
    """By the operator; the client sees it as another ttlMs, and its index entries live as long."""
    made = await make(store, policy=SHORT)
    task_id = made if isinstance(made, str) else made.task_id
    before = peek.stored(task_id)
    peek.age(task_id)
    now = peek.now_ms()
    answer = await store.extend(task_id, HOUR)
    assert answer.outcome == "EXTENDED"
    assert answer.until_ms is not None
    assert now + HOUR <= answer.until_ms <= peek.now_ms() + HOUR
    record = await read(store, task_id)
    assert record.ttl_ms is not None
    assert record.created_ms + record.ttl_ms == answer.until_ms, "ttlMs counts from creation"
    assert peek.updated(task_id)
    after = peek.stored(task_id)
    gone = answer.until_ms + record.ttl_ms + EXPIRY_GRACE_MS
    assert ends(peek, task_id) == {gone}
    assert after.indexes == before.indexes | {"expiry": answer.until_ms}
    names = [getattr(peek.keys, name) for name in after.indexes]
    names += [peek.keys.ids, peek.keys.drops, peek.keys.active, f"{peek.keys.tasks_of_owner('ann')}active"]
    assert all(peek.raw.pexpiretime(name) >= gone for name in names)
    assert peek.raw.zscore(peek.keys.drops, task_id) == gone


@covers("R7")
async def test_a_task_that_would_have_expired_does_not(store: TaskStore, peek: Peek) -> None:
    """Its old end passes and nothing happens; after its new one it is failed like any other."""
    claim = await running(store, policy=SHORT)
    await store.extend(claim, HOUR)
    peek.make_due("expiry", claim.task_id)
    assert (await store.reap(claim.task_id)).outcome == "NOTHING"
    assert (await read(store, claim.task_id)).status is Status.RUNNING
    peek.expire(claim.task_id)
    assert (await store.reap(claim.task_id)).detail == "expired"


@covers("R7", "N6")
async def test_a_run_may_only_extend_its_own_task(store: TaskStore, peek: Peek) -> None:
    """Fenced, as all that a worker writes."""
    claim = await running(store, policy=SHORT)
    assert (await store.extend(claim, HOUR)).outcome == "EXTENDED"
    await store.release(claim)
    before = peek.stored(claim.task_id)
    assert await store.extend(claim, 2 * HOUR) == ("STALE", None)
    assert peek.stored(claim.task_id) == before


@covers("R7")
@pytest.mark.parametrize("ttl_ms", [1, 999_000])
async def test_a_shorter_time_changes_nothing(store: TaskStore, peek: Peek, ttl_ms: int) -> None:
    """Who was promised a time has it."""
    task_id = await queued(store, policy=SHORT)
    before = peek.stored(task_id)
    assert await store.extend(task_id, ttl_ms) == ("KEPT", int(before.task["expires"]))
    assert peek.stored(task_id) == before


@covers("R7", "P35")
@pytest.mark.parametrize("status", TERMINAL)
async def test_an_ended_task_is_kept_longer_and_stays_as_it_is(store: TaskStore, peek: Peek, status: Terminal) -> None:
    """Invariant 4: what its client reads is what it read before, lastUpdatedAt too."""
    created = await create(store, policy=SHORT, key="k")
    await store.cancel(created.task_id, None, "No more")
    claim = await ended(store, status, policy=SHORT)
    for task_id in (created.task_id, claim.task_id):
        before = await read(store, task_id)
        answer = await store.extend(task_id, HOUR)
        assert answer.outcome == "EXTENDED"
        assert ends(peek, task_id) == {answer.until_ms}, "the idempotency key too"
        assert await read(store, task_id) == before
        assert peek.raw.zscore(peek.keys.drops, task_id) == answer.until_ms
        assert (await store.extend(task_id, 1)).outcome == "KEPT"
    assert await store.extend(claim, HOUR) == ("TERMINAL", None), "its run is over"


@pytest.mark.unlimited
async def test_an_unlimited_task_stays_unlimited(store: TaskStore, peek: Peek) -> None:
    """There is nothing to extend."""
    task_id = await queued(store, policy=Policy(unlimited=True))
    assert await store.extend(task_id, HOUR) == ("UNLIMITED", None)
    assert ends(peek, task_id) == {-1}


async def test_what_is_not_there_or_too_new_is_not_extended(store: TaskStore, peek: Peek) -> None:
    """W9: and not touched."""
    assert await store.extend("nobody", HOUR) == ("GONE", None)
    task_id = await queued(store)
    peek.put(task_id, v="2")
    before = peek.stored(task_id)
    assert (await store.run_script("extend", *_call(store, task_id)))[0] == "NEWER"
    with pytest.raises(SchemaTooNew):
        await store.extend(task_id, HOUR)
    assert peek.stored(task_id) == before


def _call(store: TaskStore, task_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    keys = store.own(task_id, "task", "call", "journal", "result")
    args = {"task_id": task_id, "token": None, "operator": "1", "ttl_ms": HOUR, "grace_ms": 1}
    return {**keys, **store.fleet("unsent", "leases", "expiry", "countdowns")}, args


async def test_after_its_end_an_extended_task_is_kept_for_its_new_ttl(store: TaskStore, peek: Peek) -> None:
    """P33: one more ttl."""
    claim = await running(store, policy=SHORT)
    await store.extend(claim, HOUR)
    peek.age(claim.task_id)
    await store.finish(claim, Status.COMPLETED, Reason.COMPLETED, payload="{}")
    record = await read(store, claim.task_id)
    assert record.ttl_ms is not None
    assert ends(peek, claim.task_id) == {record.updated_ms + record.ttl_ms}
