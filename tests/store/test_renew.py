"""renew: the leases of all these runs are extended, and each run learns what happened to it meanwhile."""

from __future__ import annotations

import pytest

from mcptasks.policy import Policy
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN, claimed, ended, parked, running

pytestmark = pytest.mark.anyio


@covers("N6")
async def test_every_run_of_a_process_hears_its_own_news_in_order(store: TaskStore, peek: Peek) -> None:
    """One round trip for all runs of a worker; a lost wake is repaired here at the latest."""
    live, told, held = await running(store), await running(store), await parked(store, hold=True)
    over, left, gone = await ended(store), await parked(store), await running(store)
    await store.cancel(told.task_id, ANN, "No more")
    peek.raw.delete(peek.keys.task(gone.task_id))
    runs = [(claim.task_id, claim.token) for claim in (live, told, held, over, left, gone)]
    assert await store.renew([*runs, (live.task_id, 2)]) == [
        "RUNNING",
        "CANCEL",
        "WAITING",
        "LOST",
        "LOST",
        "LOST",
        "LOST",
    ]


async def test_a_held_run_that_was_cancelled_hears_of_the_cancel_first(store: TaskStore) -> None:
    """R6: a cancel wakes a run that waits for input, with a way out."""
    claim = await parked(store, hold=True)
    await store.cancel(claim.task_id, ANN, "No more")
    assert await store.renew([(claim.task_id, claim.token)]) == ["CANCEL"]


async def test_only_the_lease_of_a_live_run_is_extended(store: TaskStore, peek: Peek) -> None:
    """A stale worker must not keep its successor's task from the sweeper."""
    slow = await running(store)
    await store.release(slow)
    await claimed(store, slow.task_id, run=2, worker="w2")
    peek.make_due("leases", slow.task_id)
    assert await store.renew([(slow.task_id, 1)]) == ["LOST"]
    assert peek.score("leases", slow.task_id) == 1
    before = peek.now_ms()
    assert await store.renew([(slow.task_id, 2)]) == ["RUNNING"]
    lease = peek.score("leases", slow.task_id)
    assert lease is not None
    assert before <= lease - store.settings.lease_ms <= peek.now_ms()


@covers("P35")
async def test_a_renewal_leaves_the_record_as_it_is(store: TaskStore, peek: Peek) -> None:
    """A heartbeat is nothing a client could see."""
    claim = await running(store)
    before = peek.stored(claim.task_id).task
    await store.renew([(claim.task_id, claim.token)])
    assert peek.stored(claim.task_id).task == before


async def test_no_runs_have_no_news(store: TaskStore, peek: Peek) -> None:
    """An idle worker may ask."""
    assert await store.renew([]) == []
    assert await store.run_script("renew", {"leases": peek.keys.leases, "tasks": []}, {"lease_ms": 1, "runs": []}) == [
        "RENEWED"
    ]


async def test_hundreds_of_runs_are_renewed_at_once(store: TaskStore) -> None:
    """An asyncio worker holds many; Lua's unpack has a limit far above."""
    claim = await running(store)
    assert await store.renew([(claim.task_id, claim.token)] * 2_000) == ["RUNNING"] * 2_000


@covers("W4")
async def test_a_run_over_its_hard_limit_keeps_the_lease_it_has_and_no_more(store: TaskStore, peek: Peek) -> None:
    """A tool that nothing in its process can stop: the sweeper ends the task when that lease is over."""
    claim = await running(store, policy=Policy(time_limit_ms=60_000))
    before = peek.score("leases", claim.task_id)
    peek.put(claim.task_id, deadline="1")
    assert await store.renew([(claim.task_id, claim.token)]) == ["RUNNING"]
    assert peek.score("leases", claim.task_id) == before
