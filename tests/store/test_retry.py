"""retry: the task waits for its next retry, or has failed with this error because none is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mcptasks.model import Hint, Reason, Status
from mcptasks.policy import Policy
from mcptasks.store.base import Next
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import ANN, claimed, hint, parked, read, running

pytestmark = pytest.mark.anyio

ERROR = '{"code":-32050,"message":"Busy"}'


def policy(*delays_ms: int, max_attempts: int = 3) -> Policy:
    """Retries after these delays."""
    return Policy(retry_ms=delays_ms, max_attempts=max_attempts)


async def test_a_retry_is_counted_down_when_it_is_short(store: TaskStore, peek: Peek) -> None:
    """N4: the delays are the task's own list; the sweeper has every one of them, should the message get lost."""
    claim = await running(store, policy=policy(1_000, 5_000))
    peek.age(claim.task_id)
    before = peek.now_ms()
    answer = await store.retry(claim, "Busy", ERROR)
    message = Hint(task_id=claim.task_id, run=2, tool="report", queue="mcptasks", countdown_ms=1_000)
    assert answer == Next("RETRYING", message)
    record = await read(store, claim.task_id)
    assert (record.status, record.status_message, record.worker) == (Status.RETRYING, "Busy", None)
    assert peek.updated(claim.task_id), "the message is new to the client"
    found = peek.stored(claim.task_id)
    assert found.indexes.keys() == {"unsent", "countdowns", "expiry"}
    assert before <= found.indexes["unsent"] - 1_000 - store.settings.resend_ms <= peek.now_ms()


async def test_a_long_retry_is_left_to_the_sweeper(store: TaskStore, peek: Peek) -> None:
    """Delays live in the store's index: no message sits in a worker's memory for an hour."""
    claim = await running(store, policy=policy(3_600_000))
    before = peek.now_ms()
    assert await store.retry(claim, "Busy", ERROR) == Next("RETRYING")
    found = peek.stored(claim.task_id)
    assert found.indexes.keys() == {"unsent", "expiry"}
    assert before <= found.indexes["unsent"] - 3_600_000 <= peek.now_ms()
    peek.make_due("unsent", claim.task_id)
    assert await store.reap(claim.task_id) == Next("DUE", hint(claim.task_id, 2))


@pytest.mark.parametrize("changed", [{"countdown_budget": 0}, {"countdowns_ms": ()}], ids=str)
async def test_past_the_budget_a_short_retry_is_left_to_the_sweeper_too(
    open_store: OpenStore, changed: dict[str, object]
) -> None:
    """One budget for all countdown messages of the fleet, and an operator may want none at all."""
    store = open_store(**changed)
    claim = await running(store, policy=policy(1_000))
    assert await store.retry(claim, "Busy", ERROR) == Next("RETRYING")


async def test_a_retry_never_runs_before_its_time(store: TaskStore, peek: Peek) -> None:
    """N4: by the store's clock; a message that comes early is sent again for the rest of the time."""
    claim = await running(store, policy=policy(60_000))
    await store.retry(claim, "Busy", ERROR)
    before = peek.stored(claim.task_id)
    early = await store.claim(hint(claim.task_id, 2), "w2")
    assert isinstance(early, Next)
    assert (early.outcome, early.hint is None) == ("EARLY", False)
    assert early.hint is not None
    assert (early.hint.run, early.hint.tool, 0 < early.hint.countdown_ms <= 60_000) == (2, "report", True)
    assert peek.stored(claim.task_id) == before
    peek.put(claim.task_id, due="1")
    assert (await claimed(store, claim.task_id, run=2)).token == 2


async def test_when_no_retry_is_left_the_task_has_failed_with_its_error(
    store: TaskStore, peek: Peek, heard: Callable[[], list[str]]
) -> None:
    """N4: the same transition ends it. Two delays are two retries, three runs."""
    claim = await running(store, policy=policy(1, 1))
    for run in (2, 3):
        assert (await store.retry(claim, f"Busy {run}", ERROR)).outcome == "RETRYING"
        peek.put(claim.task_id, due="1")
        claim = await claimed(store, claim.task_id, run=run)
    assert await store.retry(claim, "Busy for good", ERROR) == Next("EXHAUSTED")
    record = await read(store, claim.task_id)
    assert (record.status, record.reason) == (Status.FAILED, Reason.RETRIES_EXHAUSTED)
    assert (record.status_message, record.error) == ("Busy for good", {"code": -32050, "message": "Busy"})
    assert peek.stored(claim.task_id).indexes == {}


async def test_a_tool_without_a_list_has_no_retries(store: TaskStore) -> None:
    """The first one asked for fails the task."""
    assert await store.retry(await running(store), "Busy", ERROR) == Next("EXHAUSTED")


async def test_a_retry_is_no_lost_attempt_and_a_lost_attempt_no_retry(store: TaskStore, peek: Peek) -> None:
    """N4: crashes do not consume the list, and asking for a retry does not consume the attempts."""
    claim = await running(store, policy=policy(1, max_attempts=2))
    await store.retry(claim, "Busy", ERROR)
    peek.put(claim.task_id, due="1")
    second = await claimed(store, claim.task_id, run=2)
    assert second.record.attempt == 1
    peek.make_due("leases", claim.task_id)
    assert (await store.reap(claim.task_id)).outcome == "LOST"
    third = await claimed(store, claim.task_id, run=3)
    assert third.record.attempt == 2
    assert peek.field(claim.task_id, "retries") == "1"


async def test_steps_and_answers_survive_a_retry(store: TaskStore, peek: Peek) -> None:
    """E10: a person who approved once is not asked again."""
    claim = await parked(store, "q", policy=policy(1))
    await store.answer(claim.task_id, ANN, {"q": 1})
    second = await claimed(store, claim.task_id, run=2)
    await store.step(second, "charge#1", "7")
    await store.retry(second, "Busy", ERROR)
    peek.put(claim.task_id, due="1")
    third = await claimed(store, claim.task_id, run=3)
    assert (third.journal.answers, third.journal.steps) == ({"q": 1}, {"charge#1": 7})


@covers("P50", "P52")
async def test_a_task_between_two_retries_is_cancelled_at_once(store: TaskStore, peek: Peek) -> None:
    """It has no worker."""
    claim = await running(store, policy=policy(60_000))
    await store.retry(claim, "Busy", ERROR)
    assert await store.cancel(claim.task_id, ANN, "No more") == "CANCELLED"
    assert peek.stored(claim.task_id).indexes == {}


@covers("P50", "A08")
async def test_a_run_that_was_cancelled_and_asks_for_a_retry_has_ended_its_task(store: TaskStore) -> None:
    """Invariant 6: what was acknowledged is not put off."""
    claim = await running(store, policy=policy(60_000))
    await store.cancel(claim.task_id, ANN, "No more")
    assert await store.retry(claim, "Busy", ERROR) == Next("CANCELLED")
    assert (await read(store, claim.task_id)).status is Status.CANCELLED


async def test_a_held_run_that_asks_for_a_retry_leaves_its_questions_answerable(store: TaskStore, peek: Peek) -> None:
    """E05: the last answer is the next try; a question the client has seen is never thrown away."""
    claim = await parked(store, "q", hold=True, policy=policy(60_000))
    assert await store.retry(claim, "Busy", ERROR) == Next("COLD")
    record = await read(store, claim.task_id)
    assert (record.status, set(record.questions)) == (Status.PARKED, {"q"})
    assert peek.stored(claim.task_id).indexes.keys() == {"expiry"}
    assert (await store.answer(claim.task_id, ANN, {"q": 1})).hint == hint(claim.task_id, 2)


@covers("F03")
async def test_half_an_emoji_in_the_message_costs_one_character(store: TaskStore) -> None:
    """F03: exceptions name files that no encoding fits."""
    claim = await running(store, policy=policy(60_000))
    await store.retry(claim, "no \udcff", ERROR)
    assert (await read(store, claim.task_id)).status_message == "no \ufffd"
