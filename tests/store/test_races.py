"""Transitions that meet on one task, from several clients at once: exact outcomes, whoever comes first."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import pytest

from mcptasks.model import Claim, Status, new_task_id
from mcptasks.store.callers import Created
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import ANN, asking, claimed, create, end, hint, parked, question, queued, read, running

pytestmark = pytest.mark.anyio

ROUNDS: Final = 200
#: Rounds that run beside each other: the server takes their commands in any order.
ABREAST: Final = 20

Round = Callable[[], Awaitable[str]]


class Ring:
    """Clients of their own, as many processes would have."""

    def __init__(self, stores: Sequence[TaskStore], chance: random.Random) -> None:
        self.stores, self.chance = stores, chance

    async def race(self, *contenders: Callable[[TaskStore], Awaitable[Any]]) -> list[Any]:
        """Each contender's answer, in the order given; they start together, in random order, on different clients."""
        order = list(range(len(contenders)))
        self.chance.shuffle(order)
        answers: list[Any] = [None] * len(contenders)

        async def start(n: int, store: TaskStore) -> None:
            for _ in range(self.chance.randint(0, 3)):
                await asyncio.sleep(0)
            answers[n] = await contenders[n](store)

        await asyncio.gather(*(start(n, self.stores[i % len(self.stores)]) for i, n in enumerate(order)))
        return answers

    async def rounds(self, one: Round) -> Counter[str]:
        """How often each outcome came."""
        outcomes: Counter[str] = Counter()
        for _ in range(ROUNDS // ABREAST):
            outcomes.update(await asyncio.gather(*(one() for _ in range(ABREAST))))
        return outcomes


@pytest.fixture
def ring(open_store: OpenStore) -> Ring:
    """Four clients."""
    return Ring([open_store() for _ in range(4)], random.Random(2663))


def word(answer: Any) -> str:
    """What a transition answered."""
    return "CLAIMED" if isinstance(answer, Claim) else str(getattr(answer, "outcome", answer))


@covers("A01", "B06")
async def test_of_many_claims_of_one_run_one_wins(ring: Ring, store: TaskStore, peek: Peek) -> None:
    """Invariant 1: delivering each message many times runs no task twice at once."""

    async def one() -> str:
        task_id = await queued(store)
        answers = await ring.race(*(lambda s, n=n: s.claim(hint(task_id), f"w{n}") for n in range(4)))
        assert Counter(map(word, answers)) == {"CLAIMED": 1, "HELD": 3}
        winner = next(answer for answer in answers if isinstance(answer, Claim))
        assert {answer.detail for answer in answers if not isinstance(answer, Claim)} == {winner.record.worker}
        assert (peek.field(task_id, "attempt"), peek.field(task_id, "worker")) == ("1", winner.record.worker)
        return str(winner.record.worker)

    assert len(await ring.rounds(one)) == 4, "every client wins sometimes, else this is no race"


@covers("P23", "W2")
async def test_of_many_creates_with_one_key_one_makes_the_task(ring: Ring, peek: Peek) -> None:
    """P23: concurrent retries through several servers make one task; the losers leave nothing behind."""

    async def one() -> str:
        key = new_task_id()

        def call(digest: str) -> Callable[[TaskStore], Awaitable[Created]]:
            return lambda s: create(s, key=key, digest=digest)

        answers: list[Created] = await ring.race(call("d"), call("d"), call("d"), call("other"))
        made = next(answer for answer in answers if answer.outcome == "CREATED")
        assert {answer.task_id for answer in answers} == {made.task_id}
        lost = "CONFLICT" if made is not answers[3] else "EXISTS"
        assert Counter(answer.outcome for answer in answers) == (
            {"CREATED": 1, "EXISTS": 2, "CONFLICT": 1} if lost == "CONFLICT" else {"CREATED": 1, "CONFLICT": 3}
        )
        return lost

    outcomes = await ring.rounds(one)
    assert outcomes.keys() == {"CONFLICT", "EXISTS"}
    tasks = {key for key in peek.all_keys() if ":call" in key}
    assert len(tasks) == outcomes.total()
    assert peek.raw.zcard(peek.keys.unsent) == outcomes.total()


@covers("P50", "P43")
async def test_a_cancel_and_an_answer_that_meet_leave_one_whole_outcome(
    ring: Ring, store: TaskStore, peek: Peek
) -> None:
    """Either the answer queued the task and the cancel ended it there, or the cancel came first and none is stored."""

    async def one() -> str:
        claim = await parked(store, "q")
        cancelled, answered = await ring.race(
            lambda s: s.cancel(claim.task_id, ANN, "No more"), lambda s: s.answer(claim.task_id, ANN, {"q": 1})
        )
        found = peek.stored(claim.task_id)
        assert cancelled == "CANCELLED"
        assert (found.task["status"], found.indexes) == ("cancelled", {})
        assert ("a:q" in found.journal) == (word(answered) == "QUEUED")
        return word(answered)

    assert (await ring.rounds(one)).keys() == {"QUEUED", "IGNORED"}


@covers("P43")
async def test_of_two_answers_to_one_question_the_first_wins(ring: Ring, store: TaskStore) -> None:
    """P43: also a concurrent second one changes nothing; the task is queued once."""

    async def one() -> str:
        claim = await parked(store, "q")
        answers = await ring.race(*(lambda s, n=n: s.answer(claim.task_id, ANN, {"q": n}) for n in range(3)))
        assert Counter(map(word, answers)) == {"QUEUED": 1, "IGNORED": 2}
        winner = [word(answer) for answer in answers].index("QUEUED")
        again = await claimed(store, claim.task_id, run=2)
        assert again.journal.answers == {"q": winner}
        return str(winner)

    assert len(await ring.rounds(one)) == 3


@covers("P41", "R3")
async def test_of_answers_to_different_questions_the_last_moves_the_task_on_once(ring: Ring, store: TaskStore) -> None:
    """Two people answer two questions at the same moment: none gets lost, and one message is sent."""

    async def one() -> str:
        claim = await parked(store, "a", "b", "c")
        answers = await ring.race(*(lambda s, k=k: s.answer(claim.task_id, ANN, {k: k}) for k in "abc"))
        assert Counter(map(word, answers)) == {"PARTIAL": 2, "QUEUED": 1}
        assert (await store.journal(claim.task_id)).answers == {"a": "a", "b": "b", "c": "c"}
        return "abc"[[word(answer) for answer in answers].index("QUEUED")]

    assert len(await ring.rounds(one)) == 3


@covers("N5", "P51")
async def test_an_end_and_a_cancel_that_meet(ring: Ring, store: TaskStore) -> None:
    """N5: the run's outcome stands in both orders; the cancel says truly which one it met."""

    async def one() -> str:
        claim = await running(store)
        ended, cancelled = await ring.race(lambda s: end(s, claim), lambda s: s.cancel(claim.task_id, ANN, "No more"))
        assert ended == "FINISHED"
        record = await read(store, claim.task_id)
        assert record.status is Status.COMPLETED
        assert record.cancel_requested == (cancelled == "REQUESTED")
        return str(cancelled)

    assert (await ring.rounds(one)).keys() == {"REQUESTED", "FINISHED"}


@covers("N5", "P33")
async def test_an_end_and_an_expiry_that_meet_leave_one_of_them_whole(ring: Ring, store: TaskStore, peek: Peek) -> None:
    """Completed with a result, or failed as expired with an error: never a mixture."""

    async def one() -> str:
        claim = await running(store)
        peek.expire(claim.task_id)
        ended, reaped = await ring.race(lambda s: end(s, claim), lambda s: s.reap(claim.task_id))
        record = await read(store, claim.task_id)
        if ended == "FINISHED":
            assert (word(reaped), record.status, record.reason) == ("NOTHING", "completed", "completed")
            assert (record.result is None, record.error) == (False, None)
        else:
            assert (ended, word(reaped)) == ("TERMINAL", "FAILED")
            assert (record.status, record.reason, record.result) == ("failed", "expired", None)
        return str(ended)

    assert (await ring.rounds(one)).keys() == {"FINISHED", "TERMINAL"}


@covers("N6", "W3", "B06")
async def test_a_renewal_and_a_reap_of_a_lease_that_has_just_run_out(ring: Ring, store: TaskStore, peek: Peek) -> None:
    """The run lives on, or it is lost and knows it: never two runs, never none."""

    async def one() -> str:
        claim = await running(store)
        peek.make_due("leases", claim.task_id)
        (news,), reaped = await ring.race(
            lambda s: s.renew([(claim.task_id, claim.token)]), lambda s: s.reap(claim.task_id)
        )
        found = peek.stored(claim.task_id)
        if news == "RUNNING":
            assert (word(reaped), found.task["status"]) == ("NOTHING", "running")
            assert found.indexes.keys() == {"leases", "expiry"}
        else:
            assert (news, word(reaped), found.task["status"]) == ("LOST", "LOST", "queued")
            assert found.indexes.keys() == {"unsent", "expiry"}
        return str(news)

    assert (await ring.rounds(one)).keys() == {"RUNNING", "LOST"}


@covers("N6")
async def test_an_end_and_a_reap_of_a_lost_lease_that_meet(ring: Ring, store: TaskStore, peek: Peek) -> None:
    """The result is stored or the task runs again; a result is never stored under the next run."""

    async def one() -> str:
        claim = await running(store)
        peek.make_due("leases", claim.task_id)
        ended, reaped = await ring.race(lambda s: end(s, claim), lambda s: s.reap(claim.task_id))
        assert (ended, word(reaped)) in {("FINISHED", "NOTHING"), ("STALE", "LOST")}
        assert (await read(store, claim.task_id)).status == ("completed" if ended == "FINISHED" else "queued")
        return str(ended)

    assert (await ring.rounds(one)).keys() == {"FINISHED", "STALE"}


async def test_the_end_of_a_hold_and_the_answer_that_meet(ring: Ring, store: TaskStore, peek: Peek) -> None:
    """E05: the run goes on with the answer, or the task is queued with it: it never waits for what it has."""

    async def one() -> str:
        claim = await parked(store, "q", hold=True)
        let_go, answered = await ring.race(lambda s: s.park(claim), lambda s: s.answer(claim.task_id, ANN, {"q": 1}))
        found = peek.stored(claim.task_id)
        assert (word(let_go), word(answered)) in {("ANSWERED", "WOKEN"), ("PARKED", "QUEUED")}
        assert found.task["status"] == ("running" if word(answered) == "WOKEN" else "queued")
        assert found.journal["a:q"] == "1"
        return word(let_go)

    assert (await ring.rounds(one)).keys() == {"ANSWERED", "PARKED"}


@covers("P50", "A08", "R6")
@pytest.mark.parametrize("way", ["ask", "park", "release"])
async def test_a_cancel_and_a_run_that_lets_go_always_end_the_task(
    ring: Ring, store: TaskStore, peek: Peek, way: str
) -> None:
    """Invariant 6: in whichever order they meet, an acknowledged cancel finds somebody who carries it out."""

    async def let_go(s: TaskStore, claim: Claim) -> str:
        match way:
            case "ask":
                return word(await s.ask(claim, asking(question("q")), guard=None, hold=False))
            case "park":
                return word(await s.park(claim))
            case _:
                return word(await s.release(claim))

    async def one() -> str:
        claim = await parked(store, "q", hold=True) if way == "park" else await running(store)
        cancelled, left = await ring.race(lambda s: s.cancel(claim.task_id, ANN, "No more"), lambda s: let_go(s, claim))
        found = peek.stored(claim.task_id)
        assert (found.task["status"], found.indexes) == ("cancelled", {})
        assert (cancelled == "REQUESTED") == (left == "CANCELLED")
        return str(left)

    outcomes = await ring.rounds(one)
    assert outcomes.keys() == {"CANCELLED", "RELEASED" if way == "release" else "PARKED"}


async def test_an_answer_and_the_look_that_meet_make_one_run(ring: Ring, store: TaskStore) -> None:
    """The re-check of a parked task may itself become the run; the message for the run then finds it held."""

    async def one() -> str:
        claim = await parked(store, "q")
        looked, answered = await ring.race(
            lambda s: s.claim(hint(claim.task_id, 2, 1), "look"), lambda s: s.answer(claim.task_id, ANN, {"q": 1})
        )
        assert word(answered) == "QUEUED"
        second = await store.claim(answered.hint, "run")
        assert {word(looked), word(second)} in ({"CLAIMED", "HELD"}, {"PARKED", "CLAIMED"})
        return word(looked)

    assert (await ring.rounds(one)).keys() == {"CLAIMED", "PARKED"}


@covers("N5")
async def test_of_two_results_of_one_step_the_first_stands(ring: Ring, store: TaskStore) -> None:
    """Branches of one run that do the same step get the same result."""

    async def one() -> str:
        claim = await running(store)
        answers = await ring.race(*(lambda s, n=n: s.step(claim, "s#1", str(n)) for n in range(3)))
        assert Counter(answer[0] for answer in answers) == {"RECORDED": 1, "KNOWN": 2}
        assert len({answer[1] for answer in answers}) == 1
        return str(answers[0][1])

    assert len(await ring.rounds(one)) == 3


async def test_two_workers_that_want_to_sweep_do_not_both(ring: Ring, peek: Peek) -> None:
    """One sweeper a fleet."""

    async def one() -> str:
        peek.raw.delete(peek.keys.sweeper)
        answers = await ring.race(*(lambda s, n=n: s.sweep(f"w{n}") for n in range(3)))
        return str([answer is not None for answer in answers].count(True))

    outcomes: Counter[str] = Counter([await one() for _ in range(ROUNDS // 3)])
    assert outcomes.keys() == {"1"}
