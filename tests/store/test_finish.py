"""finish: the task has ended with this outcome, if the run still holds its token."""

from __future__ import annotations

import pytest

from mcptasks.model import Reason, Status
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN, TERMINAL, Terminal, end, parked, read, running

pytestmark = pytest.mark.anyio


@covers("P30", "P31")
@pytest.mark.parametrize(
    ("status", "reason", "result", "error"),
    [
        (Status.COMPLETED, Reason.COMPLETED, {"n": 1}, None),
        (Status.FAILED, Reason.WALL_TIMEOUT, None, {"n": 1}),
        (Status.CANCELLED, Reason.CANCEL_TIMEOUT, None, None),
    ],
    ids=str,
)
async def test_a_task_ends_with_its_reason_and_exactly_the_payload_of_its_status(
    store: TaskStore,
    peek: Peek,
    status: Terminal,
    reason: Reason,
    result: dict[str, int] | None,
    error: dict[str, int] | None,
) -> None:
    """SEP-2663: a result with completed, an error with failed, neither with cancelled."""
    claim = await running(store)
    peek.age(claim.task_id)
    payload = '{"n":1}' if status is not Status.CANCELLED else ""
    assert await store.finish(claim, status, reason, message="Over", payload=payload) == "FINISHED"
    record = await read(store, claim.task_id)
    assert (record.status, record.reason, record.status_message) == (status, reason, "Over")
    assert (record.result, record.error, record.worker) == (result, error, None)
    assert peek.updated(claim.task_id)


@pytest.mark.parametrize("status", TERMINAL)
async def test_what_only_runs_needed_goes_with_the_end(store: TaskStore, peek: Peek, status: Terminal) -> None:
    """Ended tasks are kept in their thousands: the record is small again. To retry a failed one its call is kept."""
    claim = await parked(store, "a", hold=True)
    assert peek.raw.object("encoding", peek.keys.task(claim.task_id)) == "hashtable"
    await end(store, claim, status)
    assert peek.raw.object("encoding", peek.keys.task(claim.task_id)) == "listpack"
    assert (peek.stored(claim.task_id).call is None) == (status != Status.FAILED)


async def test_an_ended_task_stands_in_no_index(store: TaskStore, peek: Peek) -> None:
    """Nobody will ever have to move it on."""
    claim = await running(store)
    await end(store, claim)
    assert peek.stored(claim.task_id).indexes == {}


async def test_a_task_that_ends_without_a_message_keeps_its_last_one(store: TaskStore) -> None:
    """The last progress is better than nothing."""
    claim = await running(store)
    await store.progress(claim, "Three of three", 3, 3)
    await store.finish(claim, Status.COMPLETED, Reason.COMPLETED, payload="{}")
    assert (await read(store, claim.task_id)).status_message == "Three of three"


@pytest.mark.parametrize("status", TERMINAL)
async def test_a_held_run_may_end_and_closes_its_questions(store: TaskStore, peek: Peek, status: Terminal) -> None:
    """A tool that gives up waiting: what it asked is not shown any more, and can not be answered."""
    claim = await parked(store, "a", "b", hold=True)
    assert await end(store, claim, status) == "FINISHED"
    record = await read(store, claim.task_id)
    assert (record.status, record.questions) == (status, {})
    assert not {name for name in peek.stored(claim.task_id).task if name[:2] in ("q:", "d:")}
    assert (await store.answer(claim.task_id, ANN, {"a": 1})).outcome == "IGNORED"


async def test_a_task_that_waits_for_a_person_has_no_run_to_end_it(store: TaskStore, peek: Peek) -> None:
    """The run let go: whatever its tool still returns is void."""
    claim = await parked(store)
    before = peek.stored(claim.task_id)
    assert await end(store, claim) == "STALE"
    assert peek.stored(claim.task_id) == before


@covers("N5")
async def test_the_same_end_twice_is_stored_once(store: TaskStore, peek: Peek) -> None:
    """N5; also what a worker does whose first answer got lost."""
    claim = await running(store)
    await end(store, claim)
    before = peek.stored(claim.task_id)
    assert await end(store, claim) == "TERMINAL"
    assert peek.stored(claim.task_id) == before


@covers("F03")
async def test_half_an_emoji_in_an_exceptions_text_costs_one_character(store: TaskStore) -> None:
    """F03: an exception's text is the status message, and names files that no encoding fits."""
    claim = await running(store)
    assert await store.finish(claim, Status.FAILED, Reason.FAILED, message="no \ud83d", payload="{}") == "FINISHED"
    assert (await read(store, claim.task_id)).status_message == "no \ufffd"
