"""reserve: the task's folder stands in the index of those that are to be removed."""

from __future__ import annotations

import pytest

from mcptasks.model import Status
from mcptasks.policy import Policy
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN, TERMINAL, end, parked, read, running

pytestmark = pytest.mark.anyio

MONTH_MS = 30 * 86_400_000


@covers("W7")
async def test_a_folder_is_to_be_removed_when_the_keys_of_its_task_are_gone(store: TaskStore, peek: Peek) -> None:
    """From before its first file on, so that a crash leaves nothing; and the record says that there may be files."""
    claim = await running(store)
    assert not (await read(store, claim.task_id)).artifacts
    assert await store.reserve(claim) == "RESERVED"
    assert (await read(store, claim.task_id)).artifacts
    assert peek.score("artifacts", claim.task_id) == float(peek.field(claim.task_id, "gone") or 0)


@covers("W7")
@pytest.mark.parametrize("status", TERMINAL)
async def test_the_end_of_a_task_moves_the_end_of_its_files(store: TaskStore, peek: Peek, status: Status) -> None:
    """It is kept for one more ttl from then on, its artifacts' names included."""
    claim = await running(store)
    await store.reserve(claim)
    peek.put(claim.task_id, gone="1")
    await end(store, claim, status)  # pyright: ignore[reportArgumentType]
    gone = float(peek.field(claim.task_id, "gone") or 0)
    assert peek.score("artifacts", claim.task_id) == gone > peek.now_ms()


@covers("W7")
async def test_the_end_of_a_parked_task_moves_the_end_of_its_files_too(store: TaskStore, peek: Peek) -> None:
    """Whoever ends it."""
    claim = await parked(store, hold=True)
    await store.reserve(claim)
    await store.park(claim)
    peek.put(claim.task_id, gone="1")
    assert await store.cancel(claim.task_id, ANN, "No more") == "CANCELLED"
    assert peek.score("artifacts", claim.task_id) == float(peek.field(claim.task_id, "gone") or 0) > 1


async def test_the_index_outlives_its_tasks_by_a_month(store: TaskStore, peek: Peek) -> None:
    """Redis drops a task without a word: whoever sweeps next must still find what was its."""
    claim = await running(store)
    await store.reserve(claim)
    expires = int(peek.raw.pexpiretime(peek.keys.artifacts))
    assert expires >= int(peek.field(claim.task_id, "gone") or 0) + MONTH_MS


@pytest.mark.unlimited
async def test_files_of_an_unlimited_task_are_kept_for_as_long_as_it_is(store: TaskStore, peek: Peek) -> None:
    """For ever, also after its end."""
    claim = await running(store, policy=Policy(unlimited=True))
    await store.reserve(claim)
    await end(store, claim)
    assert peek.score("artifacts", claim.task_id) == 9e15
    assert peek.raw.ttl(peek.keys.artifacts) == -1
    assert await store.discard() == []


@covers("W7", "R7")
async def test_files_stay_as_long_as_a_task_whose_time_was_extended(store: TaskStore, peek: Peek) -> None:
    """While it runs, and after its end."""
    claim = await running(store, policy=Policy(ttl_ms=60_000))
    await store.reserve(claim)
    await store.extend(claim.task_id, 3_600_000)
    assert peek.score("artifacts", claim.task_id) == float(peek.field(claim.task_id, "gone") or 0)
    await end(store, claim)
    await store.extend(claim.task_id, 36_000_000)
    gone = float(peek.field(claim.task_id, "gone") or 0)
    assert peek.score("artifacts", claim.task_id) == gone > peek.now_ms() + 35_000_000
