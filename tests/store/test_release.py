"""release: the run gives its claim back unfinished, and another worker continues."""

from __future__ import annotations

import pytest

from mcptasks.model import Hint, Reason, Status
from mcptasks.policy import Policy
from mcptasks.store.base import Next
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN, claimed, parked, read, running

pytestmark = pytest.mark.anyio


@covers("R9", "P35")
async def test_a_released_task_is_queued_for_its_next_run(store: TaskStore, peek: Peek) -> None:
    """R9: a shutdown leaves no orphan. Working before and after: lastUpdatedAt stays."""
    claim = await running(store, policy=Policy(queue="slow", time_limit_ms=1_000))
    peek.age(claim.task_id)
    message = Hint(task_id=claim.task_id, run=2, tool="report", queue="slow", hard_limit_s=16.0)
    assert await store.release(claim) == Next("RELEASED", message)
    record = await read(store, claim.task_id)
    assert (record.status, record.worker) == (Status.QUEUED, None)
    assert not peek.updated(claim.task_id)
    assert peek.stored(claim.task_id).indexes.keys() == {"unsent", "expiry"}
    again = await claimed(store, claim.task_id, run=2)
    assert (again.token, again.record.attempt) == (2, 1)


async def test_a_held_task_goes_on_waiting_for_its_answers(store: TaskStore, peek: Peek) -> None:
    """E05: being visible means being answerable. A worker that goes down during a hold takes no question with it."""
    claim = await parked(store, "q", hold=True)
    peek.age(claim.task_id)
    assert await store.release(claim) == Next("COLD")
    record = await read(store, claim.task_id)
    assert (record.status, record.worker, set(record.questions)) == (Status.PARKED, None, {"q"})
    assert not peek.updated(claim.task_id)
    assert peek.stored(claim.task_id).indexes.keys() == {"expiry"}
    answer = await store.answer(claim.task_id, ANN, {"q": 1})
    assert answer.outcome == "QUEUED"
    assert answer.hint is not None
    again = await claimed(store, claim.task_id, run=answer.hint.run)
    assert (again.record.attempt, again.journal.answers) == (1, {"q": 1})


@covers("R9", "W3")
async def test_what_must_not_be_begun_twice_fails_with_the_shutdown(store: TaskStore, peek: Peek) -> None:
    """`on_worker_lost="fail"`: half of it may have happened, whether its worker died or was told to go."""
    claim = await running(store, policy=Policy(max_attempts=1))
    assert await store.release(claim) == Next("FAILED")
    record = await read(store, claim.task_id)
    assert (record.status, record.reason) == (Status.FAILED, Reason.SHUTDOWN)
    assert record.error == {"code": -32603, "message": record.status_message}
    assert "must not be begun twice" in (record.status_message or "")
    assert peek.stored(claim.task_id).indexes == {}
    held = await parked(store, "q", hold=True, policy=Policy(max_attempts=1))
    assert await store.release(held) == Next("COLD"), "one that waits for a person has nothing under way"


async def test_what_was_stored_by_the_run_stays(store: TaskStore) -> None:
    """Steps and progress belong to the task."""
    claim = await running(store)
    await store.step(claim, "charge#1", '"receipt"')
    await store.progress(claim, "Charged", 1, 2)
    await store.release(claim)
    again = await claimed(store, claim.task_id, run=2)
    assert (again.journal.steps, again.record.status_message) == ({"charge#1": "receipt"}, "Charged")


async def test_a_claim_that_was_given_back_is_gone_for_its_run(store: TaskStore, peek: Peek) -> None:
    """Giving it back twice must not queue a second run."""
    claim = await running(store)
    await store.release(claim)
    before = peek.stored(claim.task_id)
    assert await store.release(claim) == Next("STALE")
    assert peek.stored(claim.task_id) == before


@covers("A08", "P50")
async def test_a_run_that_was_cancelled_and_gives_its_claim_back_has_ended_its_task(
    store: TaskStore, peek: Peek
) -> None:
    """A08 (b): the worker goes down before its tool stopped; no other worker may begin what was cancelled."""
    claim = await running(store)
    await store.cancel(claim.task_id, ANN, "No more")
    assert await store.release(claim) == Next("CANCELLED")
    assert (await read(store, claim.task_id)).status is Status.CANCELLED
    assert peek.stored(claim.task_id).indexes == {}
