"""progress: the client sees what the tool reports, while its run holds the token."""

from __future__ import annotations

import pytest

from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import parked, read, running

pytestmark = pytest.mark.anyio


async def test_progress_is_the_status_message(store: TaskStore, peek: Peek) -> None:
    """A task has no progress notifications (SEP-2663); its status message tells."""
    claim = await running(store)
    assert await store.progress(claim, "Two of three", 2, 3) == "SAVED"
    record = await read(store, claim.task_id)
    assert record.status_message == "Two of three"
    assert (peek.field(claim.task_id, "progress"), peek.field(claim.task_id, "total")) == ("2", "3")


async def test_progress_without_a_total_clears_the_old_one(store: TaskStore, peek: Peek) -> None:
    """The numbers of one report belong together."""
    claim = await running(store)
    await store.progress(claim, "a", 1, 3)
    await store.progress(claim, "b", 2, None)
    assert (peek.field(claim.task_id, "progress"), peek.field(claim.task_id, "total")) == ("2", "")


@covers("P35")
async def test_the_same_message_again_is_no_update(store: TaskStore, peek: Peek) -> None:
    """lastUpdatedAt moves when the client could see a difference: the message, not the numbers behind it."""
    claim = await running(store)
    peek.age(claim.task_id)
    assert await store.progress(claim, "Half", 1, 2) == "SAVED"
    assert peek.updated(claim.task_id)
    peek.age(claim.task_id)
    assert await store.progress(claim, "Half", 1, 2) == "SAME"
    assert await store.progress(claim, "Half", 1.5, 2) == "SAVED"
    assert not peek.updated(claim.task_id)


@covers("P35")
async def test_a_clock_that_was_set_back_does_not_move_last_updated_at_back(store: TaskStore, peek: Peek) -> None:
    """F10: clients compare these times. It moves as little as it can."""
    claim = await running(store)
    peek.put(claim.task_id, updated="9999999999999")
    await store.progress(claim, "Half", 1, 2)
    assert peek.field(claim.task_id, "updated") == "10000000000000"


async def test_a_held_run_may_still_report(store: TaskStore) -> None:
    """A sibling of the call that asks goes on working."""
    claim = await parked(store, hold=True)
    assert await store.progress(claim, "Still here", 1, 2) == "SAVED"


@covers("F03")
async def test_half_an_emoji_in_a_message_costs_one_character(store: TaskStore) -> None:
    """F03: one bad character must cost one character, not the task."""
    claim = await running(store)
    assert await store.progress(claim, "file \udcff.txt", 1, None) == "SAVED"
    record = await read(store, claim.task_id)
    assert record.status_message == "file \ufffd.txt"


async def test_an_empty_message_is_no_message(store: TaskStore) -> None:
    """Optional fields are absent on the wire, not empty."""
    claim = await running(store)
    await store.progress(claim, "", 1, None)
    record = await read(store, claim.task_id)
    assert record.status_message is None
