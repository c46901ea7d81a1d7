"""park: a hold is over and the worker has let go of the task, unless the answers came first."""

from __future__ import annotations

import pytest

from mcptasks.model import Status
from mcptasks.store.base import Next
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import ANN, claimed, hint, parked, read

pytestmark = pytest.mark.anyio


async def test_after_a_hold_the_task_waits_without_a_worker(store: TaskStore, peek: Peek) -> None:
    """The client saw input_required before and sees it after, so lastUpdatedAt stays."""
    claim = await parked(store, "a", "b", hold=True)
    peek.age(claim.task_id)
    answer = await store.park(claim)
    assert answer.outcome == "PARKED"
    assert answer.hint is not None
    assert (answer.hint.run, answer.hint.look, answer.hint.countdown_ms) == (2, 1, store.settings.countdowns_ms[0])
    record = await read(store, claim.task_id)
    assert (record.status, record.worker, set(record.questions)) == (Status.PARKED, None, {"a", "b"})
    assert not peek.updated(claim.task_id)
    assert peek.stored(claim.task_id).indexes.keys() == {"countdowns", "expiry"}


async def test_a_task_that_was_held_resumes_like_any_other(store: TaskStore) -> None:
    """The next run replays from the journal, and is no new attempt."""
    claim = await parked(store, "q", hold=True)
    await store.park(claim)
    answer = await store.answer(claim.task_id, ANN, {"q": 1})
    assert answer.outcome == "QUEUED"
    again = await claimed(store, claim.task_id, run=2)
    assert (again.record.attempt, again.journal.answers) == (1, {"q": 1})


async def test_answers_that_came_first_win(store: TaskStore, peek: Peek) -> None:
    """Being visible means being answerable: the run goes on live although its hold has just ended."""
    claim = await parked(store, "q", hold=True)
    await store.answer(claim.task_id, ANN, {"q": 1})
    before = peek.stored(claim.task_id)
    assert await store.park(claim) == Next("ANSWERED")
    assert peek.stored(claim.task_id) == before
    assert (await store.journal(claim.task_id)).answers == {"q": 1}


async def test_some_of_the_answers_are_not_enough_to_go_on(store: TaskStore) -> None:
    """A run resumes when every open question is answered; what was answered stays answered."""
    claim = await parked(store, "a", "b", hold=True)
    await store.answer(claim.task_id, ANN, {"a": 1})
    assert (await store.park(claim)).outcome == "PARKED"
    record = await read(store, claim.task_id)
    assert list(record.questions) == ["b"]


async def test_past_the_budget_a_held_task_goes_cold(open_store: OpenStore) -> None:
    """As one that never held."""
    store = open_store(countdown_budget=0)
    claim = await parked(store, hold=True)
    assert await store.park(claim) == Next("PARKED")


async def test_a_task_that_was_parked_already_is_let_go_of_once(store: TaskStore, peek: Peek) -> None:
    """A second park of the same run, whose first answer got lost, must not begin a second chain of looks."""
    claim = await parked(store, hold=True)
    await store.park(claim)
    before = peek.stored(claim.task_id)
    assert await store.park(claim) == Next("STALE")
    assert peek.stored(claim.task_id) == before


@covers("P50", "A08")
async def test_a_held_run_that_was_cancelled_and_lets_go_has_ended_its_task(store: TaskStore, peek: Peek) -> None:
    """Invariant 6: an acknowledged cancel must not rest in a parked task that no run will look at."""
    claim = await parked(store, "q", hold=True)
    assert await store.cancel(claim.task_id, ANN, "No more") == "REQUESTED"
    assert await store.park(claim) == Next("CANCELLED")
    record = await read(store, claim.task_id)
    assert (record.status, record.questions) == (Status.CANCELLED, {})
    assert peek.stored(claim.task_id).indexes == {}
    assert await store.claim(hint(claim.task_id, 2, 1), "w2") == Next("TERMINAL", detail="cancelled")
