"""answer: each answer whose key is open is stored; with the last one the task moves on by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mcptasks.errors import BadPayload, TooLarge
from mcptasks.model import Envelope, Status
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
    ended,
    hint,
    parked,
    question,
    queued,
    read,
    running,
)

pytestmark = pytest.mark.anyio


@covers("P30", "R3")
async def test_the_last_answer_queues_the_task_for_its_next_run(store: TaskStore, peek: Peek) -> None:
    """Invariant 6: answers are stored before they are acknowledged, and a parked task wakes at once."""
    claim = await parked(store, "q", policy=Policy(queue="slow", time_limit_ms=1_000))
    peek.age(claim.task_id)
    before = peek.now_ms()
    answer = await store.answer(claim.task_id, ANN, {"q": {"action": "accept"}})
    assert answer.outcome == "QUEUED"
    assert answer.hint is not None
    assert (answer.hint.run, answer.hint.look, answer.hint.countdown_ms) == (2, 0, 0)
    assert (answer.hint.tool, answer.hint.queue, answer.hint.hard_limit_s) == ("report", "slow", 16.0)
    record = await read(store, claim.task_id)
    assert (record.status, record.questions, record.poll_ms) == (Status.QUEUED, {}, store.settings.poll_ms)
    assert peek.updated(claim.task_id)
    found = peek.stored(claim.task_id)
    assert found.indexes.keys() == {"unsent", "expiry"}
    assert before <= found.indexes["unsent"] - store.settings.resend_ms <= peek.now_ms()
    assert (await claimed(store, claim.task_id, run=2)).journal.answers == {"q": {"action": "accept"}}


@covers("P41")
async def test_a_part_of_the_answers_leaves_the_rest_open(store: TaskStore, peek: Peek) -> None:
    """SEP-2663: a subset is accepted; the task stays input_required until all are in."""
    claim = await parked(store, "a", "b", "c")
    peek.age(claim.task_id)
    assert await store.answer(claim.task_id, ANN, {"b": 2}) == Next("PARTIAL")
    record = await read(store, claim.task_id)
    assert (record.status, set(record.questions)) == (Status.PARKED, {"a", "c"})
    assert peek.updated(claim.task_id)
    assert (await store.answer(claim.task_id, ANN, {"a": 1, "c": 3})).outcome == "QUEUED"
    assert (await store.journal(claim.task_id)).answers == {"a": 1, "b": 2, "c": 3}


@covers("P41", "P43", "C08")
@pytest.mark.parametrize("answers", [{}, {"unknown": 1}, {"known": "second"}], ids=str)
async def test_answers_to_keys_that_are_not_open_change_nothing(
    store: TaskStore, peek: Peek, answers: dict[str, object]
) -> None:
    """SEP-2663: unknown and answered keys are ignored; a late duplicate does not answer a later question."""
    claim = await parked(store, "known")
    await store.answer(claim.task_id, ANN, {"known": "first"})
    again = await claimed(store, claim.task_id, run=2)
    await store.ask(again, asking(question("open")), guard=None, hold=False)
    before = peek.stored(claim.task_id)
    assert await store.answer(claim.task_id, ANN, answers) == Next("IGNORED")
    assert peek.stored(claim.task_id) == before


@covers("P41")
async def test_strays_beside_an_open_key_are_passed_over(store: TaskStore, peek: Peek) -> None:
    """The open one counts; nothing is kept of the others."""
    claim = await parked(store, "q")
    assert (await store.answer(claim.task_id, ANN, {"x": 0, "q": 1, "y": 2})).outcome == "QUEUED"
    assert (await store.journal(claim.task_id)).answers == {"q": 1}


async def test_an_answer_before_its_question_does_not_satisfy_it(store: TaskStore) -> None:
    """E05: keys that were never issued are ignored, although the task will issue just this one next."""
    claim = await running(store)
    assert await store.answer(claim.task_id, ANN, {"q": "too early"}) == Next("IGNORED")
    await store.ask(claim, asking(question("q")), guard=None, hold=False)
    assert set((await read(store, claim.task_id)).questions) == {"q"}


@covers("C06")
@pytest.mark.parametrize("status", TERMINAL)
async def test_an_ended_task_takes_no_answer(store: TaskStore, peek: Peek, status: Terminal) -> None:
    """C06: the update is acknowledged and the record is byte-identical."""
    claim = await ended(store, status)
    before = peek.stored(claim.task_id)
    assert await store.answer(claim.task_id, ANN, {"q": 1}) == Next("IGNORED")
    assert peek.stored(claim.task_id) == before


@covers("P60", "P80", "B01")
async def test_a_foreign_task_and_no_task_are_one_answer(store: TaskStore, peek: Peek) -> None:
    """Invariant 9."""
    claim = await parked(store, "q")
    before = peek.stored(claim.task_id)
    assert await store.answer(claim.task_id, "bob", {"q": 1}) == Next("GONE")
    assert await store.answer(claim.task_id, "", {"q": 1}) == Next("GONE")
    assert await store.answer("nobody", ANN, {"q": 1}) == Next("GONE")
    assert peek.stored(claim.task_id) == before
    assert peek.stored("nobody").task == {}


# ------------------------------------------------------------------------------------------------ held, cold


async def test_the_last_answer_wakes_a_held_run_which_goes_on_live(
    store: TaskStore, peek: Peek, heard: Callable[[], list[str]]
) -> None:
    """No message, no replay: the run still sits on its worker."""
    claim = await parked(store, "a", "b", hold=True)
    peek.age(claim.task_id)
    assert await store.answer(claim.task_id, ANN, {"a": 1}) == Next("PARTIAL")
    assert heard() == []
    assert await store.answer(claim.task_id, ANN, {"b": 2}) == Next("WOKEN")
    assert heard() == [f"answer {claim.task_id}"]
    record = await read(store, claim.task_id)
    assert (record.status, record.worker, record.questions) == (Status.RUNNING, "w1", {})
    assert peek.updated(claim.task_id)
    assert peek.stored(claim.task_id).indexes.keys() == {"leases", "expiry"}
    assert await store.renew([(claim.task_id, claim.token)]) == ["RUNNING"]


@covers("A03")
async def test_a_cold_task_wakes_at_once(store: TaskStore, open_store: OpenStore) -> None:
    """E06: the update knows the moment; nothing waits for a countdown that does not exist."""
    claim = await parked(open_store(countdown_budget=0), "q")
    answer = await store.answer(claim.task_id, ANN, {"q": 1})
    assert answer == Next("QUEUED", hint(claim.task_id, 2))


# ------------------------------------------------------------------------------------------------ messages, sizes


async def test_a_given_message_is_pushed_with_the_last_answer_and_not_before(store: TaskStore, peek: Peek) -> None:
    """dispatch: where the broker is the store, the answer and the message for the next run are one round trip."""
    queue = f"{peek.keys.prefix}queue"
    claim = await parked(store, "a", "b")
    assert (await store.answer(claim.task_id, ANN, {"a": 1}, Envelope(queue, "m1", 2))).outcome == "PARTIAL"
    assert (await store.answer(claim.task_id, ANN, {"a": 1}, Envelope(queue, "m2", 2))).outcome == "IGNORED"
    assert peek.raw.llen(queue) == 0
    assert await store.answer(claim.task_id, ANN, {"b": 2}, Envelope(queue, "m3", 2)) == Next("QUEUED")
    assert peek.raw.lrange(queue, 0, -1) == ["m3"]


async def test_a_message_for_another_run_is_followed_by_the_right_one(store: TaskStore) -> None:
    """Who answers may have seen the task before its latest run; that message is stale, and must not be waited for."""
    claim = await parked(store, "q")
    stale = Envelope(f"{store.keys.prefix}queue", "m1", 9)
    assert await store.answer(claim.task_id, ANN, {"q": 1}, stale) == Next("QUEUED", hint(claim.task_id, 2))


async def test_a_held_run_that_is_woken_needs_no_message(store: TaskStore, peek: Peek) -> None:
    """One that was made for the case that it is parked is not pushed."""
    queue = f"{peek.keys.prefix}queue"
    claim = await parked(store, "q", hold=True)
    assert await store.answer(claim.task_id, ANN, {"q": 1}, Envelope(queue, "m1", 2)) == Next("WOKEN")
    assert peek.raw.llen(queue) == 0


@covers("F07")
async def test_one_answer_over_the_limit_refuses_the_whole_call(open_store: OpenStore, peek: Peek) -> None:
    """Issue 2: one answer 256 KiB; nothing of that call is stored, also not what would have fitted."""
    store = open_store(answer_max=10)
    claim = await parked(store, "a", "b")
    before = peek.stored(claim.task_id)
    with pytest.raises(TooLarge, match=r"'b' has 11 bytes; the limit is 10 bytes \(MCPTASKS_ANSWER_MAX\)"):
        await store.answer(claim.task_id, ANN, {"a": "x" * 8, "b": "x" * 9})
    assert peek.stored(claim.task_id) == before
    assert await store.answer(claim.task_id, ANN, {"a": "x" * 8}) == Next("PARTIAL")


@covers("F01")
async def test_an_answer_that_is_not_json_refuses_the_whole_call(store: TaskStore, peek: Peek) -> None:
    """NaN never enters the journal: every later replay would choke on it."""
    claim = await parked(store, "a", "b")
    before = peek.stored(claim.task_id)
    with pytest.raises(BadPayload, match="NaN and Infinity do not exist in JSON"):
        await store.answer(claim.task_id, ANN, {"a": 1, "b": float("nan")})
    assert peek.stored(claim.task_id) == before


async def test_a_task_in_the_queue_takes_no_answer(store: TaskStore) -> None:
    """Nothing is open there."""
    assert await store.answer(await queued(store), ANN, {"q": 1}) == Next("IGNORED")
