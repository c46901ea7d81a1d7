"""claim: this worker runs the task once, or learns why not; a parked task only says when to look again."""

from __future__ import annotations

import pytest

from mcptasks.model import Claim, Hint, Status
from mcptasks.policy import Policy
from mcptasks.store.base import Next
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import (
    ANN,
    TERMINAL,
    Terminal,
    asking,
    claimed,
    end,
    ended,
    hint,
    parked,
    question,
    queued,
    running,
)

pytestmark = pytest.mark.anyio


async def refusal(store: TaskStore, message: Hint) -> Next:
    """What a worker hears that may not run the task."""
    answer = await store.claim(message, "w2")
    assert isinstance(answer, Next)
    return answer


async def test_a_claim_is_a_lease_a_token_and_an_attempt(store: TaskStore, peek: Peek) -> None:
    """Invariant 3: every write of the run carries what is given here."""
    task_id = await queued(store, policy=Policy(time_limit_ms=1_000))
    before = peek.now_ms()
    claim = await claimed(store, task_id, worker="host:1")
    after = peek.now_ms()
    assert (claim.token, claim.record.attempt, claim.record.worker) == (1, 1, "host:1")
    assert claim.record.status is Status.RUNNING
    assert claim.record.hard_limit_ms == 1_000 + 5_000 + 10_000
    found = peek.stored(task_id)
    assert before <= found.indexes["leases"] - store.settings.lease_ms <= after
    assert before <= int(found.task["deadline"]) - claim.record.hard_limit_ms <= after
    assert found.indexes.keys() == {"leases", "expiry"}


async def test_a_run_without_a_time_limit_has_no_deadline(store: TaskStore, peek: Peek) -> None:
    """No limit is no limit, not one of nought."""
    claim = await running(store)
    assert (claim.record.hard_limit_ms, peek.field(claim.task_id, "deadline")) == (None, "")


@covers("P35")
async def test_a_claim_is_invisible_to_the_client(store: TaskStore, peek: Peek) -> None:
    """SEP-2663: working before and working after, so lastUpdatedAt stays."""
    task_id = await queued(store)
    peek.age(task_id)
    await claimed(store, task_id)
    assert not peek.updated(task_id)


@covers("A01", "B06")
async def test_each_message_delivered_ten_times_runs_the_task_once(store: TaskStore, peek: Peek) -> None:
    """Invariant 1. The refusals name the live owner, for the log line."""
    task_id = await queued(store)
    answers = [await store.claim(hint(task_id), f"w{n}") for n in range(10)]
    assert isinstance(answers[0], Claim)
    assert answers[1:] == [Next("HELD", detail="w0")] * 9
    assert peek.field(task_id, "attempt") == "1"


async def test_a_claim_whose_answer_got_lost_is_answered_again(store: TaskStore, peek: Peek) -> None:
    """Whoever repeats its wish has the claim; else the task would wait for its lease, and an attempt was burnt."""
    task_id = await queued(store, policy=Policy(time_limit_ms=1_000))
    first = await store.claim(hint(task_id), "w1", "this wish")
    before = peek.stored(task_id)
    assert await store.claim(hint(task_id), "w1", "this wish") == first
    assert peek.stored(task_id) == before
    assert isinstance(first, Claim) and (first.token, first.record.attempt) == (1, 1)
    assert await end(store, first) == "FINISHED"


async def test_another_wish_for_a_claimed_task_is_refused(store: TaskStore) -> None:
    """Of the same worker too: a message that came twice must not run twice."""
    claim = await running(store)
    assert await refusal(store, hint(claim.task_id)) == Next("HELD", detail="w1")
    again = await store.claim(hint(claim.task_id), "w1", "another wish")
    assert again == Next("HELD", detail="w1")


@pytest.mark.parametrize("over", ["released", "lost", "parked", "retried", "ended"])
async def test_a_wish_is_forgotten_with_its_claim(store: TaskStore, peek: Peek, over: str) -> None:
    """A repeated claim that comes after that is a late message like any other."""
    task_id = await queued(store, policy=Policy(retry_ms=(3_600_000,)))
    claim = await store.claim(hint(task_id), "w1", "this wish")
    assert isinstance(claim, Claim)
    match over:
        case "released":
            await store.release(claim)
        case "lost":
            peek.make_due("leases", task_id)
            await store.reap(task_id)
        case "parked":
            await store.ask(claim, asking(question()), guard=None, hold=False)
        case "retried":
            await store.retry(claim, "Busy", '{"code":-32051,"message":"Busy"}')
        case _:
            await end(store, claim)
    assert peek.field(task_id, "nonce") is None
    answer = await store.claim(hint(task_id), "w1", "this wish")
    assert answer == (Next("TERMINAL", detail="completed") if over == "ended" else Next("STALE", detail="1"))


async def test_a_held_task_is_not_taken_from_its_worker(store: TaskStore) -> None:
    """It is parked for the client only: its run sits on a worker and waits."""
    claim = await parked(store, hold=True)
    assert await refusal(store, hint(claim.task_id, 2)) == Next("HELD", detail="w1")


@pytest.mark.parametrize("run", [1, 3], ids=["an old run", "a run that nobody asked for"])
async def test_a_message_for_another_run_is_stale(store: TaskStore, peek: Peek, run: int) -> None:
    """A message is for one run; the one that was claimed already, or was never due, is dropped."""
    claim = await running(store)
    await store.release(claim)
    before = peek.stored(claim.task_id)
    assert await refusal(store, hint(claim.task_id, run)) == Next("STALE", detail="1")
    assert peek.stored(claim.task_id) == before


@covers("P30")
@pytest.mark.parametrize("status", TERMINAL)
async def test_a_message_for_an_ended_task_is_dropped(store: TaskStore, peek: Peek, status: Terminal) -> None:
    """Invariant 4."""
    claim = await ended(store, status)
    before = peek.stored(claim.task_id)
    assert await refusal(store, hint(claim.task_id, 2)) == Next("TERMINAL", detail=status)
    assert peek.stored(claim.task_id) == before


async def test_a_message_for_a_task_that_is_gone_clears_what_is_left_of_it(store: TaskStore, peek: Peek) -> None:
    """Invariant 7: an index entry must not outlive its task for long."""
    task_id = await queued(store)
    peek.raw.zadd(peek.keys.countdowns, {task_id: 1})
    peek.raw.expire(peek.keys.countdowns, 1000)
    peek.raw.delete(peek.keys.task(task_id))
    assert await refusal(store, hint(task_id)) == Next("GONE")
    assert (peek.score("unsent", task_id), peek.score("countdowns", task_id)) == (None, None)


@covers("W9")
async def test_a_record_of_a_newer_schema_is_refused_and_untouched(store: TaskStore, peek: Peek) -> None:
    """W9: refused with a clear message, never misread."""
    task_id = await queued(store)
    peek.put(task_id, v="2")
    before = peek.stored(task_id)
    assert await refusal(store, hint(task_id)) == Next("NEWER", detail="2")
    assert peek.stored(task_id) == before


@covers("B03")
@pytest.mark.parametrize("call", [None, "", "{", "[]", "{}", '{"tool":"t","arguments":{},"surprise":1}'], ids=str)
async def test_a_damaged_call_is_claimed_without_a_submission(store: TaskStore, peek: Peek, call: str | None) -> None:
    """The tool is never called with arguments the client did not send; the run can only fail the task."""
    task_id = await queued(store, x=7)
    if call is None:
        peek.raw.delete(peek.keys.call(task_id))
    else:
        peek.raw.set(peek.keys.call(task_id), call, keepttl=True)
    assert (await claimed(store, task_id)).submission is None


# ------------------------------------------------------------------------------------------------ attempts


async def test_a_run_after_an_answer_or_a_release_is_no_new_attempt(store: TaskStore) -> None:
    """max_attempts counts workers that died, not people who answered or deploys."""
    claim = await parked(store, "q")
    await store.answer(claim.task_id, ANN, {"q": 1})
    second = await claimed(store, claim.task_id, run=2)
    await store.release(second)
    third = await claimed(store, claim.task_id, run=3)
    assert [one.record.attempt for one in (claim, second, third)] == [1, 1, 1]
    assert third.journal.answers == {"q": 1}


@covers("A05")
async def test_a_run_after_a_lost_worker_is_a_new_attempt(store: TaskStore, peek: Peek) -> None:
    """Also when the lost run itself was no attempt of its own."""
    claim = await running(store)
    await store.release(claim)
    await claimed(store, claim.task_id, run=2)
    peek.make_due("leases", claim.task_id)
    assert (await store.reap(claim.task_id)).outcome == "LOST"
    assert (await claimed(store, claim.task_id, run=3)).record.attempt == 2


async def test_a_claim_carries_the_progress_that_was_stored(store: TaskStore) -> None:
    """A replay must not repeat what an earlier run has told."""
    claim = await running(store)
    assert claim.progress is None
    await store.progress(claim, "Two of three", 2.5, 3)
    await store.release(claim)
    assert (await claimed(store, claim.task_id, run=2)).progress == 2.5


# ------------------------------------------------------------------------------------------------ looking again


async def looks(store: TaskStore, first: Hint | None) -> list[tuple[int, int]]:
    """(look, countdown) of every re-check, each delivered once."""
    chain: list[tuple[int, int]] = []
    message = first
    while message is not None:
        chain.append((message.look, message.countdown_ms))
        answer = await refusal(store, message)
        assert answer.outcome == "PARKED"
        message = answer.hint
    return chain


async def test_a_parked_task_looks_after_itself_at_growing_distances_and_then_goes_cold(
    store: TaskStore, peek: Peek
) -> None:
    """Invariant 12: after the last look there is no message at all, only the store's index."""
    claim = await running(store)
    asked = await store.ask(claim, asking(question()), guard=None, hold=False)
    assert await looks(store, asked.hint) == list(enumerate(store.settings.countdowns_ms, 1))
    assert peek.stored(claim.task_id).indexes.keys() == {"expiry"}
    assert await refusal(store, hint(claim.task_id, 2, 5)) == Next("STALE", detail="1")


async def test_a_look_delivered_twice_does_not_make_two_chains(store: TaskStore, peek: Peek) -> None:
    """Celery repeats countdown messages past the visibility timeout: only the latest look goes on."""
    claim = await parked(store)
    first = hint(claim.task_id, 2, 1)
    second = (await refusal(store, first)).hint
    assert second is not None
    assert second.look == 2
    assert await refusal(store, first) == Next("STALE", detail="1")
    third = (await refusal(store, second)).hint
    before = peek.stored(claim.task_id)
    assert [(await refusal(store, late)).outcome for late in (first, second)] == ["STALE", "STALE"]
    assert third is not None
    assert third.look == 3
    assert peek.stored(claim.task_id) == before


async def test_an_ordinary_message_does_not_wake_a_parked_task(store: TaskStore, peek: Peek) -> None:
    """A late duplicate of the message for the next run carries no look."""
    claim = await parked(store)
    before = peek.stored(claim.task_id)
    assert await refusal(store, hint(claim.task_id, 2)) == Next("STALE", detail="1")
    assert peek.stored(claim.task_id) == before


async def test_a_look_goes_cold_when_the_fleets_budget_of_countdowns_is_used_up(
    store: TaskStore, open_store: OpenStore, peek: Peek
) -> None:
    """A bound on messages in workers' memories that does not depend on how many tasks are parked."""
    claim = await parked(store)
    tight = open_store(countdown_budget=1)
    answer = await refusal(tight, hint(claim.task_id, 2, 1))
    assert answer.hint is not None  # its own countdown is spent, so there is room for its next
    await parked(store)
    assert await refusal(tight, answer.hint) == Next("PARKED")
    assert peek.field(claim.task_id, "look") == "0"
    assert peek.score("countdowns", claim.task_id) is None


async def test_countdowns_whose_time_has_passed_do_not_count_against_the_budget(
    store: TaskStore, open_store: OpenStore, peek: Peek
) -> None:
    """A message that was lost in some worker must not hold its place for ever."""
    lost, claim = await parked(store), await parked(store)
    peek.make_due("countdowns", lost.task_id)
    answer = await refusal(open_store(countdown_budget=1), hint(claim.task_id, 2, 1))
    assert answer.hint is not None
    assert peek.score("countdowns", lost.task_id) is None


async def test_a_look_that_comes_after_the_answer_runs_the_task(store: TaskStore) -> None:
    """Any message for the right run will do; the store decides what it means."""
    claim = await parked(store, "q")
    await store.answer(claim.task_id, ANN, {"q": 1})
    assert isinstance(await store.claim(hint(claim.task_id, 2, 1), "w2"), Claim)
