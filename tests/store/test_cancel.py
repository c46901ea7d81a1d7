"""cancel: the wish is stored; a task without a worker ends at once, a running one is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from mcptasks.model import Reason, Status
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import ANN, TERMINAL, Terminal, claimed, end, ended, hint, parked, queued, read, running

pytestmark = pytest.mark.anyio


async def waiting(store: TaskStore) -> str:
    """A task that waits for a person."""
    return (await parked(store)).task_id


async def between_runs(store: TaskStore) -> str:
    """A task that was given back by its worker."""
    claim = await running(store)
    await store.release(claim)
    return claim.task_id


@covers("P50", "P52", "W5", "A08")
@pytest.mark.parametrize("make", [queued, waiting, between_runs], ids=lambda make: make.__name__)
async def test_a_task_without_a_worker_is_cancelled_at_once(
    store: TaskStore, peek: Peek, make: Callable[[TaskStore], Awaitable[str]]
) -> None:
    """A08: no worker need be there to hear it, and a message that is still in the queue finds the end."""
    task_id = await make(store)
    peek.age(task_id)
    run = int(peek.field(task_id, "token") or 0) + 1
    assert await store.cancel(task_id, ANN, "Cancelled by the client") == "CANCELLED"
    record = await read(store, task_id)
    assert (record.status, record.reason) == (Status.CANCELLED, Reason.CANCELLED)
    assert (record.status_message, record.questions) == ("Cancelled by the client", {})
    assert peek.updated(task_id)
    assert peek.stored(task_id).indexes == {}
    answer = await store.claim(hint(task_id, run), "w2")
    assert getattr(answer, "outcome", None) == "TERMINAL"


@covers("P50", "W5", "A08", "B04")
@pytest.mark.parametrize("hold", [False, True], ids=["running", "held"])
async def test_a_run_is_told_and_the_wish_outlives_every_process(
    store: TaskStore, open_store: OpenStore, peek: Peek, heard: Callable[[], list[str]], hold: bool
) -> None:
    """Invariant 6: told by the channel at once, and by the renewal of the lease when nobody heard it."""
    claim = await parked(store, hold=True) if hold else await running(store)
    before = peek.stored(claim.task_id)
    peek.age(claim.task_id)
    assert await store.cancel(claim.task_id, ANN, "No more") == "REQUESTED"
    assert heard() == [f"cancel {claim.task_id}"]
    record = await open_store().read(claim.task_id, ANN)
    assert record is not None
    assert record.cancel_requested
    assert record.status is (Status.PARKED if hold else Status.RUNNING)
    assert not peek.updated(claim.task_id), "the client sees no difference yet"
    assert peek.stored(claim.task_id).indexes == before.indexes
    assert await open_store().renew([(claim.task_id, claim.token)]) == ["CANCEL"]


@covers("P50")
async def test_a_second_cancel_of_a_run_stores_nothing_and_tells_again(
    store: TaskStore, peek: Peek, heard: Callable[[], list[str]]
) -> None:
    """SEP-2663: idempotent."""
    claim = await running(store)
    await store.cancel(claim.task_id, ANN, "No more")
    before = peek.stored(claim.task_id)
    assert await store.cancel(claim.task_id, ANN, "No more, I say") == "REQUESTED"
    assert peek.stored(claim.task_id) == before
    assert heard() == [f"cancel {claim.task_id}"] * 2


@covers("P50", "C06", "W5")
@pytest.mark.parametrize("status", TERMINAL)
async def test_an_ended_task_is_left_as_it_is(
    store: TaskStore, peek: Peek, heard: Callable[[], list[str]], status: Terminal
) -> None:
    """C06: every cancel is acknowledged, the record is byte-identical before and after."""
    claim = await ended(store, status)
    before = peek.stored(claim.task_id)
    assert [await store.cancel(claim.task_id, ANN, "No more") for _ in range(3)] == ["FINISHED"] * 3
    assert peek.stored(claim.task_id) == before
    assert heard() == []


@covers("P60", "P80", "B01")
@pytest.mark.parametrize("owner", ["bob", "", "ann "], ids=["another", "nobody", "a similar one"])
async def test_a_foreign_task_and_no_task_are_one_answer(
    store: TaskStore, peek: Peek, heard: Callable[[], list[str]], owner: str
) -> None:
    """Invariant 9: another's cancel changes nothing and wakes nobody."""
    claim = await running(store)
    before = peek.stored(claim.task_id)
    assert await store.cancel(claim.task_id, owner, "No more") == "GONE"
    assert await store.cancel("nobody", owner, "No more") == "GONE"
    assert peek.stored(claim.task_id) == before
    assert peek.stored("nobody").task == {}
    assert heard() == []


@covers("P51", "R5")
@pytest.mark.parametrize("status", TERMINAL)
async def test_a_run_that_was_told_may_end_in_its_own_way(store: TaskStore, status: Terminal) -> None:
    """P51: each outcome is recorded as what it was."""
    claim = await running(store)
    await store.cancel(claim.task_id, ANN, "No more")
    assert await end(store, claim, status) == "FINISHED"
    assert (await read(store, claim.task_id)).status is status


async def test_a_cancelled_held_run_that_was_answered_still_knows_of_the_cancel(store: TaskStore) -> None:
    """The two wishes do not eat each other."""
    claim = await parked(store, "q", hold=True)
    await store.cancel(claim.task_id, ANN, "No more")
    assert (await store.answer(claim.task_id, ANN, {"q": 1})).outcome == "WOKEN"
    assert await store.renew([(claim.task_id, claim.token)]) == ["CANCEL"]


async def test_a_task_that_resumes_after_an_answer_is_not_cancelled_by_an_old_run(store: TaskStore) -> None:
    """No flag is left by a cancel that came to nothing for somebody else's task."""
    claim = await parked(store, "q")
    await store.cancel(claim.task_id, "bob", "No more")
    await store.answer(claim.task_id, ANN, {"q": 1})
    assert not (await claimed(store, claim.task_id, run=2)).record.cancel_requested
