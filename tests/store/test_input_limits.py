"""ask, answer, reap: a question that may be open only for so long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from mcptasks.model import Claim, Reason, Status
from mcptasks.policy import Policy
from mcptasks.store.base import Next
from mcptasks.store.store import TaskStore
from mcptasks.times import InputLimit
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN, asking, claimed, hint, question, read, running, timer

pytestmark = pytest.mark.anyio

DAY_MS: Final = 86_400_000
CANCELS: Final = InputLimit(ms=DAY_MS // 2, failure=None)
FAILS: Final = InputLimit(ms=DAY_MS // 2, failure='Nobody answered "a/b"')
WEEK: Final = Policy(ttl_ms=7 * DAY_MS)


async def limited(store: TaskStore, *limits: InputLimit | None, hold: bool = False, policy: Policy = WEEK) -> Claim:
    """A new task with questions `q0`, `q1`, ... of these limits."""
    claim = await running(store, policy=policy)
    await ask(store, claim, *limits, hold=hold)
    return claim


async def ask(store: TaskStore, claim: Claim, *limits: InputLimit | None, hold: bool = False) -> Next:
    """The run has asked them."""
    asked = asking(*(replace(question(f"q{n}"), limit=limit) for n, limit in enumerate(limits)))
    return await store.ask(claim, asked, guard=None, hold=hold)


def run_out(peek: Peek, task_id: str, *keys: str, at: int = 1) -> None:
    """The time of these questions is up."""
    for key in keys:
        _, _, what = (peek.field(task_id, f"d:{key}") or "").partition(" ")
        peek.put(task_id, **{f"d:{key}": f"{at} {what}"})
    peek.make_due("expiry", task_id)


@covers("W4")
async def test_an_operator_sees_until_when_a_question_is_open(store: TaskStore, peek: Peek) -> None:
    """By the store's clock, from the first time it is asked."""
    before = peek.now_ms()
    claim = await limited(store, CANCELS, None)
    record = await read(store, claim.task_id)
    assert record.answer_by_ms.keys() == {"q0"}
    assert before <= record.answer_by_ms["q0"] - CANCELS.ms <= peek.now_ms()
    assert peek.score("expiry", claim.task_id) == record.answer_by_ms["q0"]
    await store.answer(claim.task_id, ANN, {"q0": 1})
    assert (await read(store, claim.task_id)).answer_by_ms == {}


@covers("W4")
async def test_a_later_run_that_asks_again_moves_no_limit(store: TaskStore, peek: Peek) -> None:
    """Neither a restart nor a timer gives a person more time, or less."""
    claim = await running(store, policy=WEEK)
    await store.sleep(claim, [timer()], hold=True)
    await ask(store, claim, CANCELS)
    peek.put(claim.task_id, wake="1", **{"d:q0": "5000000000000 cancel"})
    second = await claimed(store, claim.task_id, run=2)
    await ask(store, second, replace(CANCELS, ms=5))
    assert (await read(store, claim.task_id)).answer_by_ms == {"q0": 5_000_000_000_000}


@covers("W4")
async def test_nothing_happens_before_the_time_is_up(store: TaskStore, peek: Peek) -> None:
    """A sweeper that looks too early finds when to look next."""
    claim = await limited(store, FAILS)
    due = peek.score("expiry", claim.task_id)
    peek.make_due("expiry", claim.task_id)
    assert (await store.reap(claim.task_id)).outcome == "NOTHING"
    assert peek.score("expiry", claim.task_id) == due
    assert (await read(store, claim.task_id)).status is Status.PARKED


@covers("W4", "P31")
async def test_a_question_that_nobody_answered_fails_its_task(store: TaskStore, peek: Peek) -> None:
    """The error names the question; what it says is data, whatever is in it."""
    claim = await limited(store, FAILS, CANCELS)
    run_out(peek, claim.task_id, "q0", "q1")
    assert await store.sweep("me") == [claim.task_id]
    assert await store.reap(claim.task_id) == Next("FAILED", detail="input_timeout")
    record = await read(store, claim.task_id)
    assert (record.status, record.reason) == (Status.FAILED, Reason.INPUT_TIMEOUT)
    assert record.error == {"code": -32603, "message": FAILS.failure}
    assert (record.questions, record.answer_by_ms) == ({}, {})
    assert peek.stored(claim.task_id).indexes == {}
    assert await store.answer(claim.task_id, ANN, {"q0": 1}) == Next("IGNORED")


async def test_the_first_that_ran_out_names_the_failure(store: TaskStore, peek: Peek) -> None:
    """One error names one question."""
    claim = await limited(store, FAILS, replace(FAILS, failure="The other"))
    run_out(peek, claim.task_id, "q0", at=2)
    run_out(peek, claim.task_id, "q1", at=1)
    await store.reap(claim.task_id)
    assert (await read(store, claim.task_id)).status_message == "The other"


@covers("W4", "P43")
async def test_a_question_may_be_answered_by_the_clock(store: TaskStore, peek: Peek) -> None:
    """As a person who cancels would; with the last one the task is queued."""
    claim = await limited(store, CANCELS, CANCELS)
    run_out(peek, claim.task_id, "q0")
    peek.age(claim.task_id)
    assert await store.reap(claim.task_id) == Next("PARTIAL")
    assert peek.updated(claim.task_id)
    assert peek.score("expiry", claim.task_id) == (await read(store, claim.task_id)).answer_by_ms["q1"]
    assert await store.answer(claim.task_id, ANN, {"q0": 1}) == Next("IGNORED"), "it comes too late"
    run_out(peek, claim.task_id, "q1")
    assert await store.reap(claim.task_id) == Next("QUEUED", hint(claim.task_id, 2))
    assert peek.score("expiry", claim.task_id) == int(peek.field(claim.task_id, "expires") or 0)
    again = await claimed(store, claim.task_id, run=2)
    assert again.journal.answers == {"q0": {"action": "cancel"}, "q1": {"action": "cancel"}}
    assert again.record.attempt == 1


@covers("W4", "P41", "P43")
@pytest.mark.parametrize("owner", [ANN, None], ids=["caller", "operator"])
async def test_an_answer_that_comes_too_late_is_none_though_no_sweep_has_closed_its_question(
    store: TaskStore, peek: Peek, owner: str | None
) -> None:
    """W4: an approval has its own deadline, by the store's clock, however long no sweeper comes by."""
    claim = await limited(store, CANCELS, CANCELS, None)
    run_out(peek, claim.task_id, "q0", at=peek.now_ms())
    before = peek.stored(claim.task_id)
    assert await store.answer(claim.task_id, owner, {"q0": "late"}) == Next("IGNORED")
    assert peek.stored(claim.task_id) == before
    assert await store.answer(claim.task_id, owner, {"q0": "late", "q1": "in time"}) == Next("PARTIAL")
    assert (await store.answer(claim.task_id, owner, {"q2": "at any time"})).outcome == "PARTIAL"
    assert await store.reap(claim.task_id) == Next("QUEUED", hint(claim.task_id, 2))
    assert (await store.journal(claim.task_id)).answers == {
        "q0": {"action": "cancel"},
        "q1": "in time",
        "q2": "at any time",
    }


@covers("W4")
async def test_a_held_run_goes_on_with_the_clocks_answer(
    store: TaskStore, peek: Peek, heard: Callable[[], list[str]]
) -> None:
    """It is woken, as by any answer."""
    claim = await limited(store, CANCELS, hold=True)
    run_out(peek, claim.task_id, "q0")
    assert await store.reap(claim.task_id) == Next("WOKEN")
    assert heard() == [f"answer {claim.task_id}"]
    assert (await read(store, claim.task_id)).status is Status.RUNNING


@covers("W4", "R7")
async def test_a_held_run_whose_question_ran_out_is_told(
    store: TaskStore, peek: Peek, heard: Callable[[], list[str]]
) -> None:
    """Its task has failed: what it still does counts for nothing."""
    claim = await limited(store, FAILS, hold=True)
    run_out(peek, claim.task_id, "q0")
    assert await store.reap(claim.task_id) == Next("FAILED", detail="input_timeout")
    assert heard() == [f"lost {claim.task_id} {claim.token}"]


async def test_a_held_run_that_lost_its_worker_goes_cold_first(store: TaskStore, peek: Peek) -> None:
    """Waiting costs no attempt, so the answer must not be given to a dead run."""
    claim = await limited(store, CANCELS, hold=True, policy=replace(WEEK, max_attempts=1))
    run_out(peek, claim.task_id, "q0")
    peek.make_due("leases", claim.task_id)
    assert await store.reap(claim.task_id) == Next("COLD")
    assert (await store.reap(claim.task_id)).outcome == "QUEUED"


@covers("P50", "A08")
async def test_an_acknowledged_cancel_goes_before_the_end_of_time(store: TaskStore, peek: Peek) -> None:
    """Invariant 6."""
    claim = await limited(store, FAILS, hold=True)
    assert await store.cancel(claim.task_id, ANN, "No more") == "REQUESTED"
    run_out(peek, claim.task_id, "q0")
    assert await store.reap(claim.task_id) == Next("CANCELLED")
    record = await read(store, claim.task_id)
    assert (record.status, record.status_message) == (Status.CANCELLED, "No more")


@pytest.mark.unlimited
async def test_a_task_without_a_ttl_is_watched_while_it_asks(store: TaskStore, peek: Peek) -> None:
    """And stands in no index of times afterwards."""
    claim = await limited(store, CANCELS, policy=Policy(unlimited=True))
    run_out(peek, claim.task_id, "q0")
    assert (await store.reap(claim.task_id)).outcome == "QUEUED"
    assert peek.score("expiry", claim.task_id) is None


@covers("P41")
async def test_the_operator_answers_anybodys_question_and_the_next_sweep_sends_the_task(
    store: TaskStore, peek: Peek
) -> None:
    """An operator has nothing to send with; nobody else may answer."""
    claim = await limited(store, None)
    assert await store.answer(claim.task_id, "bob", {"q0": 1}) == Next("GONE")
    assert (await store.answer(claim.task_id, None, {"q0": 1})).outcome == "QUEUED"
    assert await store.sweep("me") == [claim.task_id]
    assert await store.reap(claim.task_id) == Next("RESEND", hint(claim.task_id, 2))
