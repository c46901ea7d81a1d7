"""reload: the claim that stands now, for a process that runs it on behalf of the one that holds it. Writes nothing."""

from __future__ import annotations

import pytest

from mcptasks.policy import Policy
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import ANN, claimed, parked, queued

pytestmark = pytest.mark.anyio


async def test_it_is_the_claim_as_its_holder_has_it(store: TaskStore, open_store: OpenStore, peek: Peek) -> None:
    """The lone process of a last attempt gets only id and token; everything else it reads here."""
    first = await parked(store, "q", policy=Policy(time_limit_ms=60_000), topic="tides")
    await store.answer(first.task_id, ANN, {"q": 1})
    claim = await claimed(store, first.task_id, run=2)
    before = peek.stored(claim.task_id)
    assert await open_store().reload(claim.task_id) == claim
    assert peek.stored(claim.task_id) == before


@covers("N6")
async def test_a_claim_that_another_run_has_shows_by_its_token(store: TaskStore) -> None:
    """The caller compares: a lone process that comes too late must not run."""
    task_id = await queued(store)
    claim = await claimed(store, task_id)
    await store.release(claim)
    later = await claimed(store, task_id, run=2)
    reloaded = await store.reload(task_id)
    assert reloaded is not None
    assert (reloaded.token, reloaded.token == claim.token) == (later.token, False)


async def test_what_was_recorded_since_the_claim_is_there(store: TaskStore) -> None:
    """A step that was done once is not done again in another process."""
    claim = await claimed(store, await queued(store))
    await store.step(claim, "charge#1", "7")
    await store.progress(claim, "Half", 1.5, 3)
    reloaded = await store.reload(claim.task_id)
    assert reloaded is not None
    assert (reloaded.journal.steps, reloaded.progress) == ({"charge#1": 7}, 1.5)


async def test_no_task_is_none(store: TaskStore, peek: Peek) -> None:
    """It expired meanwhile."""
    task_id = await queued(store)
    peek.raw.delete(peek.keys.task(task_id))
    assert await store.reload(task_id) is None


@covers("B03")
async def test_a_damaged_call_is_a_claim_without_a_submission(store: TaskStore, peek: Peek) -> None:
    """As `claim` has it: the run can only fail the task."""
    claim = await claimed(store, await queued(store))
    peek.raw.delete(peek.keys.call(claim.task_id))
    reloaded = await store.reload(claim.task_id)
    assert reloaded is not None
    assert (reloaded.submission, reloaded.token) == (None, claim.token)
