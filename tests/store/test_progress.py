"""progress: the client sees what the tool reports, while its run holds the token."""

from __future__ import annotations

import pytest

from mcptasks.model import Reason, Status
from mcptasks.policy import Policy
from mcptasks.progress import Progress
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import asking, parked, question, read, running, timer

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
async def test_the_same_report_again_is_no_update(store: TaskStore, peek: Peek) -> None:
    """lastUpdatedAt moves when the client could see a difference: in the message, the numbers, or the rate."""
    claim = await running(store)
    reports: list[tuple[str, float, float, float | None]] = [
        ("Half", 1, 2, None),
        ("Half", 1.5, 2, None),
        ("More", 1.5, 2, None),
        ("More", 1.5, 3, None),
        ("More", 1.5, 3, 0.1),
    ]
    for report in reports:
        peek.age(claim.task_id)
        assert await store.progress(claim, *report) == "SAVED"
        assert peek.updated(claim.task_id)
        peek.age(claim.task_id)
        assert await store.progress(claim, *report) == "SAME"
        assert not peek.updated(claim.task_id)


@covers("P35")
@pytest.mark.parametrize("letting_go", ["release", "sleep", "park", "retry", "finish", "reap"])
async def test_who_lets_go_of_a_task_takes_its_rate_along(store: TaskStore, peek: Peek, letting_go: str) -> None:
    """Nobody works on it, so nobody says how long it will take; and a client that was told sees the task updated."""
    claim = await running(store, policy=Policy(retry_ms=(60_000,)))
    await store.progress(claim, "Half: 1 of 2", 1, 2, 0.5)
    assert (await read(store, claim.task_id)).progress == Progress(
        1, 2, "Half: 1 of 2", 0.5, int(peek.field(claim.task_id, "progressed") or 0)
    )
    peek.age(claim.task_id)
    match letting_go:
        case "release":
            await store.release(claim)
        case "sleep":
            await store.sleep(claim, [timer()], hold=False)
        case "park":
            await store.ask(claim, asking(question()), guard=None, hold=False)
        case "retry":
            await store.retry(claim, "Busy", "{}")
        case "finish":
            await store.finish(claim, Status.COMPLETED, Reason.COMPLETED, payload="{}")
        case _:
            peek.raw.zadd(store.keys.leases, {claim.task_id: 1})
            assert (await store.reap(claim.task_id)).outcome == "LOST"
    progress = (await read(store, claim.task_id)).progress
    assert progress is not None and (progress.done, progress.total, progress.rate) == (1, 2, None)
    assert peek.updated(claim.task_id)


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
