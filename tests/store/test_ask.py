"""ask: the questions are open and can be answered; the worker has let go of the task, or holds it."""

from __future__ import annotations

import pytest

from mcptasks.model import Claim, Guard, Hint, Question, Status
from mcptasks.policy import Policy
from mcptasks.store.base import Next
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import ANN, asking, claimed, parked, question, queued, read, running

pytestmark = pytest.mark.anyio


async def ask(store: TaskStore, claim: Claim, *questions: Question, hold: bool = False) -> Next:
    """The run asks these, by calls."""
    return await store.ask(claim, asking(*questions), guard=None, hold=hold)


async def test_a_traced_run_leaves_its_context_for_the_next_one_and_an_untraced_one_leaves_nothing(
    store: TaskStore, peek: Peek
) -> None:
    """It stands in the journal, not in the record, which is at its bound."""
    traced, untraced = await running(store), await running(store)
    for claim, trace in ((traced, "00-aa-bb-01"), (untraced, "")):
        before = peek.stored(claim.task_id)
        assert "trace" not in before.journal
        await store.ask(claim, asking(question("a")), guard=None, hold=False, trace=trace)
        await store.answer(claim.task_id, ANN, {"a": 1})
        assert (await claimed(store, claim.task_id, run=2)).journal.parked == trace
    assert "trace" not in peek.stored(untraced.task_id).journal


@covers("P30", "R3")
async def test_asking_parks_the_task_with_all_its_questions_and_frees_the_worker(store: TaskStore, peek: Peek) -> None:
    """Invariant 12: no worker, no lease; a message only for the first look."""
    claim = await running(store, policy=Policy(queue="slow", time_limit_ms=1_000))
    peek.age(claim.task_id)
    answer = await ask(store, claim, question("a", "A?"), question("b", "B?"))
    assert answer == Next(
        "PARKED",
        Hint(
            task_id=claim.task_id,
            run=2,
            look=1,
            tool="report",
            queue="slow",
            countdown_ms=store.settings.countdowns_ms[0],
            hard_limit_s=16.0,
        ),
    )
    record = await read(store, claim.task_id)
    assert (record.status, record.worker, record.poll_ms) == (Status.PARKED, None, store.settings.poll_parked_ms)
    assert {key: one["params"]["message"] for key, one in record.questions.items()} == {"a": "A?", "b": "B?"}
    assert peek.updated(claim.task_id)
    assert peek.stored(claim.task_id).indexes.keys() == {"countdowns", "expiry"}


async def test_a_held_task_looks_parked_and_keeps_its_lease(store: TaskStore, peek: Peek) -> None:
    """Hold: the client may answer at once, the run goes on without a replay."""
    claim = await running(store)
    peek.age(claim.task_id)
    assert await ask(store, claim, question(), hold=True) == Next("HELD")
    record = await read(store, claim.task_id)
    assert (record.status, record.worker, list(record.questions)) == (Status.PARKED, "w1", ["sure"])
    assert peek.updated(claim.task_id)
    assert peek.stored(claim.task_id).indexes.keys() == {"leases", "expiry"}


@covers("N8", "P40")
async def test_an_answered_question_is_not_opened_again(store: TaskStore, peek: Peek) -> None:
    """N8: the same key with the same question has its stored answer; the run keeps its claim and replays."""
    claim = await parked(store, "q")
    await store.answer(claim.task_id, ANN, {"q": 1})
    again = await claimed(store, claim.task_id, run=2)
    before = peek.stored(claim.task_id)
    assert await ask(store, again, question("q")) == Next("ANSWERED")
    assert peek.stored(claim.task_id) == before


@covers("N8", "P40")
async def test_the_same_key_for_another_question_stores_nothing_of_the_call(store: TaskStore, peek: Peek) -> None:
    """N8: an error, never a wrong answer."""
    claim = await parked(store, "q")
    await store.answer(claim.task_id, ANN, {"q": 1})
    again = await claimed(store, claim.task_id, run=2)
    before = peek.stored(claim.task_id)
    asked = await store.ask(
        again,
        asking(question("new"), question("q", "Really?")),
        guard=Guard(round=1, request_state="s", keys={}),
        hold=False,
    )
    assert asked == Next("MISMATCH", detail="q")
    assert peek.stored(claim.task_id) == before


async def test_an_open_question_is_joined_and_not_doubled(store: TaskStore, peek: Peek) -> None:
    """A run that replaced a lost one asks what is open already: one answer serves both, and ends the wait."""
    claim = await parked(store, "a", "b", hold=True)
    assert (await ask(store, claim, question("a"), question("b"), question("c"))).outcome == "PARKED"
    assert peek.field(claim.task_id, "open") == "3"
    answer = await store.answer(claim.task_id, ANN, {"a": 1, "b": 2, "c": 3})
    assert answer.outcome == "QUEUED"


async def test_new_questions_beside_answered_ones_open_only_the_new(store: TaskStore) -> None:
    """A branch that got its answer asks again while its sibling is replayed."""
    claim = await parked(store, "a")
    await store.answer(claim.task_id, ANN, {"a": 1})
    again = await claimed(store, claim.task_id, run=2)
    assert (await ask(store, again, question("a"), question("b"))).outcome == "PARKED"
    assert list((await read(store, again.task_id)).questions) == ["b"]


async def test_one_question_too_many_stores_nothing(open_store: OpenStore, peek: Peek) -> None:
    """Issue 2: 64 open questions by default; exactly the limit is still fine."""
    store = open_store(questions_max=2)
    claim = await running(store)
    before = peek.stored(claim.task_id)
    assert await ask(store, claim, question("a"), question("b"), question("c")) == Next("TOO_MANY", detail="3")
    assert peek.stored(claim.task_id) == before
    assert (await ask(store, claim, question("a"), question("b"))).outcome == "PARKED"


async def test_the_limit_counts_what_is_open_and_not_what_was_ever_asked(open_store: OpenStore) -> None:
    """A long conversation is no flood."""
    store = open_store(questions_max=1)
    task_id = await queued(store)
    for run in range(1, 6):
        claim = await claimed(store, task_id, run=run)
        assert (await ask(store, claim, question(f"q{run}"))).outcome == "PARKED"
        await store.answer(task_id, ANN, {f"q{run}": run})


async def test_the_state_of_a_tool_that_returns_its_questions_is_kept_for_its_next_run(store: TaskStore) -> None:
    """Resolvers and guards get their latest state and the answers to their own keys."""
    claim = await running(store)
    guard = Guard(round=1, request_state='{"n":1}', keys={"region": "r1-x-1"})
    await store.ask(claim, asking(question("r1-x-1")), guard=guard, hold=False)
    await store.answer(claim.task_id, ANN, {"r1-x-1": {"action": "accept"}})
    again = await claimed(store, claim.task_id, run=2)
    assert again.journal.guard == guard
    assert again.journal.answers == {"r1-x-1": {"action": "accept"}}


async def test_a_round_without_a_question_stores_the_state_and_keeps_the_claim(store: TaskStore) -> None:
    """A guard may return state only."""
    claim = await running(store)
    guard = Guard(round=1, request_state="next", keys={})
    assert await store.ask(claim, [], guard=guard, hold=False) == Next("ANSWERED")
    assert (await store.journal(claim.task_id)).guard == guard
    assert (await read(store, claim.task_id)).status is Status.RUNNING


async def test_past_the_budget_a_task_goes_cold_at_once(open_store: OpenStore, peek: Peek) -> None:
    """A fleet-wide bound on how many parked tasks may hold a message in some worker's memory."""
    store = open_store(countdown_budget=2)
    warm = [await parked(store) for _ in range(2)]
    claim = await running(store)
    assert await ask(store, claim, question()) == Next("PARKED")
    assert peek.stored(claim.task_id).indexes.keys() == {"expiry"}
    await store.answer(warm[0].task_id, ANN, {"sure": 1})
    assert (await ask(store, await running(store), question())).hint is not None


async def test_a_budget_of_nought_and_no_delays_mean_cold_at_once(open_store: OpenStore) -> None:
    """An operator may want no countdown messages at all."""
    for store in (open_store(countdown_budget=0), open_store(countdowns_ms=())):
        assert await ask(store, await running(store), question()) == Next("PARKED")


@covers("P50", "A08")
@pytest.mark.parametrize("keys", [["q"], ["known", "q"]], ids=len)
async def test_a_run_that_was_cancelled_and_asks_has_ended_its_task(
    store: TaskStore, peek: Peek, keys: list[str]
) -> None:
    """Invariant 6: acknowledged while the run had a worker; once that lets go, nobody else would obey."""
    claim = await parked(store, "known", hold=True)
    await store.cancel(claim.task_id, ANN, "No more")
    assert await ask(store, claim, *map(question, keys)) == Next("CANCELLED")
    record = await read(store, claim.task_id)
    assert (record.status, record.questions) == (Status.CANCELLED, {})
    assert peek.stored(claim.task_id).indexes == {}


async def test_a_cancelled_run_that_may_hold_keeps_its_worker_to_clean_up(store: TaskStore) -> None:
    """P51: the run hears of the cancel where it waits, and ends in its own way."""
    claim = await running(store)
    await store.cancel(claim.task_id, ANN, "No more")
    assert await ask(store, claim, question(), hold=True) == Next("HELD")
    assert await store.renew([(claim.task_id, claim.token)]) == ["CANCEL"]
