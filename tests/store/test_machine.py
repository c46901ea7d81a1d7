"""The real Lua against the life of a task in plain Python: any order of transitions, stale workers and lost time.

After every step the answer, every field, every index with its score, the journal and the expiry must be what `Life`
says. Time is moved, not waited for: every real distance is longer than any test.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any, Final, cast

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.model import Status, Submission, new_task_id
from mcptasks.policy import Policy
from mcptasks.settings import Settings
from mcptasks.store.callers import Created
from mcptasks.store.scripts import SCRIPTS
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.life import OWNER, PAST, Answer, Life, Terms, Window
from tests.support.moves import (
    TOOL,
    Ask,
    Cancel,
    CreateAgain,
    Finish,
    Give,
    Move,
    Park,
    Pass,
    Reap,
    Release,
    Renew,
    Ripen,
    Step,
    Take,
    Tell,
    TryLater,
    Vanish,
)
from tests.support.properties import UNHURRIED
from tests.support.scenes import SCENES
from tests.support.sight import Sight, differences, look
from tests.support.tasks import TERMINAL

#: Most of the time the live token or the next run, sometimes one that is stale or was never given.
TOKENS: Final = st.sampled_from([0] * 8 + [-1, 1])
WORDS: Final = st.sampled_from(["No more", "Moving house"])
WORKERS: Final = st.sampled_from(["w1", "w2"])
KEYS: Final = st.lists(st.sampled_from("abcd"), unique=True, max_size=3)
ANSWERS: Final = st.dictionaries(st.sampled_from("abcd?"), st.integers(0, 9), min_size=1, max_size=4)

#: Which script each move runs; `look` is a claim, too.
_SCRIPTS: Final[dict[type[Move], str]] = {
    CreateAgain: "create",
    Give: "answer",
    Cancel: "cancel",
    Take: "claim",
    Renew: "renew",
    Tell: "progress",
    Ask: "ask",
    Park: "park",
    Step: "step",
    Finish: "finish",
    TryLater: "retry",
    Release: "release",
    Reap: "reap",
}
#: Words that one task alone, of one schema, in an open fleet never hears.
_ELSEWHERE: Final = {("claim", "NEWER"), ("reap", "NEWER"), ("create", "EXISTS"), ("create", "CONFLICT")} | {
    ("create", "CLOSED"),
    ("create", "FULL"),
}


async def age(store: TaskStore, task_id: str, *, gone: bool) -> int:
    """The task was last updated long ago, so that its next update shows. Returns the store's clock."""
    client: Any = store.connection.client
    async with client.pipeline(transaction=False) as pipe:
        if not gone:
            pipe.hset(store.keys.task(task_id), "updated", 1)
        pipe.time()
        *_, (seconds, micros) = await pipe.execute()
    return int(seconds) * 1000 + int(micros) // 1000


async def crowd(store: TaskStore, count: int) -> None:
    """So many countdown messages of other tasks are under way."""
    client: Any = store.connection.client
    index = store.keys.countdowns
    await client.zrem(index, "other-0", "other-1")
    if count:
        await client.zadd(index, {f"other-{n}": 8e15 for n in range(count)})


class TaskMachine(RuleBasedStateMachine):
    """One task at a time, everybody who may ever touch it, and its `Life` beside it."""

    def __init__(self, url: str, heard: set[tuple[str, str]]) -> None:
        super().__init__()
        self._url, self._heard = url, heard
        self._runner = asyncio.Runner()
        self._policy = Policy()
        self._task_id = ""
        self._past: list[tuple[str, Life]] = []
        self._revision = 0

    @initialize(
        budget=st.sampled_from([0, 2, 2]),
        attempts=st.sampled_from([1, 2]),
        limited=st.booleans(),
        unlimited=st.booleans(),
        retries=st.sampled_from([(500_000,), (500_000, 5_000_000), (5_000_000,)]),
        scene=st.sampled_from(sorted(SCENES)),
    )
    def begin(
        self, budget: int, attempts: int, limited: bool, unlimited: bool, retries: tuple[int, ...], scene: str
    ) -> None:
        """A store of its own, and the first task."""
        self._store = TaskStore(
            Settings(
                redis_url=self._url,
                prefix=f"m{uuid.uuid4().hex[:8]}:",
                lease_ms=600_000,
                resend_ms=100_000,
                countdowns_ms=(600_000, 1_200_000),
                countdown_budget=budget,
                questions_max=3,
            )
        )
        self._policy = Policy(
            ttl_ms=None if unlimited else 10_000_000,
            unlimited=unlimited,
            max_attempts=attempts,
            time_limit_ms=1_000_000 if limited else None,
            retry_ms=retries,
        )
        self._create(scene, others=0)

    def _create(self, scene: str, others: int) -> None:
        settings, policy = self._store.settings, self._policy
        self._task_id, self._revision = new_task_id(), 1
        terms = Terms(
            lease_ms=settings.lease_ms,
            resend_ms=settings.resend_ms,
            countdowns_ms=settings.countdowns_ms,
            countdown_budget=settings.countdown_budget,
            questions_max=settings.questions_max,
            ttl_ms=policy.ttl_ms,
            max_attempts=policy.max_attempts,
            hard_limit_ms=policy.hard_limit_ms,
            retry_ms=policy.retry_ms,
        )

        async def create() -> tuple[Window, Sight]:
            before = await self._store.now_ms()
            call = Submission(tool=TOOL, arguments={}, protocol_version="2026-07-28")
            answer = await self._store.create(self._task_id, call, owner=OWNER, policy=policy)
            assert isinstance(answer, Created)
            sight = await look(self._store, self._task_id)
            return (before, sight.at), sight

        born, sight = self._runner.run(create())
        self.life = Life(terms=terms, born=born, others=others)
        assert differences(self.life, sight) == []
        for move in SCENES[scene]:
            # A moment that this task has not got cannot pass.
            if not (isinstance(move, Pass) and move.index not in self.life.places) and not (
                move == Ripen("deadline") and self.life.deadline is None
            ):
                self.happen(move)

    def happen(self, move: Move) -> None:
        """The move happens to both, and they agree."""

        async def do() -> tuple[Answer, Window, Sight]:
            before = await age(self._store, self._task_id, gone=self.life.gone)
            answer = await move.do(self._store, self._task_id)
            sight = await look(self._store, self._task_id)
            return answer, (before, sight.at), sight

        self.life.shown = False
        answer, at, sight = self._runner.run(do())
        assert answer == move.expect(self.life, at)
        assert differences(self.life, sight) == []
        if answer and type(move) in _SCRIPTS:
            self._heard.add((_SCRIPTS[type(move)], str(answer[0])))
        if not self.life.gone:
            assert (sight.task["updated"] != "1") == self.life.shown, "lastUpdatedAt moves when a client sees a change"
            revision = int(sight.task["rev"])
            assert revision > self._revision if self.life.shown else revision >= self._revision
            self._revision = revision

    # -------------------------------------------------------------------------------------------- callers

    @rule(answers=ANSWERS, owner=st.sampled_from([OWNER] * 3 + ["bob"]))
    def answer(self, answers: dict[str, int], owner: str) -> None:
        self.happen(Give(answers, owner))

    @precondition(lambda self: self.life.open)
    @rule()
    def answer_all(self) -> None:
        self.happen(Give(dict.fromkeys(self.life.open, 7)))

    @rule(owner=st.sampled_from(["bob", "bob", "bob", OWNER, None]), why=WORDS)
    def cancel(self, owner: str | None, why: str) -> None:
        self.happen(Cancel(owner, why))

    @precondition(lambda self: self.life.has_worker)
    @rule(why=WORDS)
    def cancel_a_run(self, why: str) -> None:
        self.happen(Cancel(OWNER, why))

    @precondition(lambda self: not self.life.active)
    @rule(scene=st.sampled_from(sorted(SCENES)))
    def another(self, scene: str) -> None:
        if self.life.gone:
            # The sweeper clears what is left of it in the indexes; a countdown would count against the budget.
            self.happen(Reap())
        self._past.append((self._task_id, self.life))
        self._create(scene, self.life.others)

    # -------------------------------------------------------------------------------------------- workers

    @rule(offset=TOKENS, look=st.sampled_from([0, 0, 1, 2]), worker=WORKERS)
    def claim(self, offset: int, look: int, worker: str) -> None:
        self.happen(Take(self.life.token + 1 + offset, worker, look))

    @precondition(lambda self: self.life.active and not self.life.has_worker)
    @rule(worker=WORKERS)
    def claim_what_waits(self, worker: str) -> None:
        self.happen(Take(self.life.token + 1, worker, self.life.look))

    @rule(
        offset=TOKENS, keys=KEYS, hold=st.booleans(), text=st.sampled_from(["Sure?"] * 4 + ["No?"]), guard=st.booleans()
    )
    def ask(self, offset: int, keys: Sequence[str], hold: bool, text: str, guard: bool) -> None:
        self.happen(Ask(self.life.token + offset, tuple(keys), hold, text, guard))

    @rule(offset=TOKENS, kind=st.sampled_from([Renew, Tell, Step]), number=st.integers(1, 2))
    def report(self, offset: int, kind: type[Renew | Tell | Step], number: int) -> None:
        token = self.life.token + offset
        if kind is Renew:
            self.happen(Renew(token))
        elif kind is Tell:
            self.happen(Tell(token, f"At {number}", number + 0.5))
        else:
            self.happen(Step(token, str(number), f"s#{number}"))

    @rule(offset=TOKENS, kind=st.sampled_from([Park, Release]))
    def let_go(self, offset: int, kind: type[Park | Release]) -> None:
        self.happen(kind(self.life.token + offset))

    @rule(offset=TOKENS, message=WORDS)
    def retry(self, offset: int, message: str) -> None:
        self.happen(TryLater(self.life.token + offset, message))

    @rule(
        offset=st.sampled_from([-1, -1, 0, 1]), status=st.sampled_from(TERMINAL), message=st.sampled_from(["", "Over"])
    )
    def finish(self, offset: int, status: Status, message: str) -> None:
        self.happen(Finish(self.life.token + offset, status, message))

    # -------------------------------------------------------------------------------------------- upkeep, time

    @rule()
    def reap(self) -> None:
        self.happen(Reap())

    @rule()
    def look_around(self) -> None:
        """Creating the task again changes nothing; the sweep and the list of active tasks have what they must have."""
        if not self.life.gone:
            self.happen(CreateAgain())
        lives = [*self._past, (self._task_id, self.life)]
        assert sorted(self._runner.run(self._store.sweep("me")) or ()) == sorted(i for i, life in lives if life.sweep())
        assert self._runner.run(self._store.active()) == [self._task_id] * self.life.active
        for _, life in lives:
            if life.places.get("active") == PAST:
                del life.places["active"]

    @precondition(lambda self: not self.life.gone and self.life.places.keys() - {"active"})
    @rule(nth=st.integers(0, 3))
    def time_passes(self, nth: int) -> None:
        indexes = sorted(self.life.places.keys() - {"active"})
        self.happen(Pass(indexes[nth % len(indexes)]))

    @precondition(lambda self: not self.life.gone and (self.life.deadline or self.life.status is Status.RETRYING))
    @rule()
    def limit_or_delay_passes(self) -> None:
        self.happen(Ripen("deadline" if self.life.deadline else "due"))

    @rule(what=st.sampled_from([0, 1, 2, "vanish"]))
    def rarely(self, what: int | str) -> None:
        """So many countdown messages of other tasks are under way; or Redis has dropped the task."""
        if what == "vanish" and not self.life.gone:
            self.happen(Vanish())
        elif isinstance(what, int):
            self._runner.run(crowd(self._store, what))
            self.life.others = what

    def teardown(self) -> None:
        """What ended before is as it was; nothing is left open."""
        if hasattr(self, "_store"):
            try:
                for task_id, life in self._past:
                    assert differences(life, self._runner.run(look(self._store, task_id))) == []
            finally:
                self._runner.run(self._store.aclose())
        self._runner.close()


def walk(url: str, examples: int, steps: int) -> set[tuple[str, str]]:
    """The (script, word) pairs that were heard on the way."""
    heard: set[tuple[str, str]] = set()
    profile = hypothesis_settings(UNHURRIED, max_examples=examples, stateful_step_count=steps)
    run_state_machine_as_test(cast("Any", lambda: TaskMachine(url, heard)), settings=profile)
    return heard


@covers("N5", "P30", "N4", "N6")
@pytest.mark.unlimited
def test_the_scripts_and_the_life_of_a_task_agree(valkey: EmbeddedValkey) -> None:
    """Invariants 2 to 8, in orders of events that nobody would write down."""
    walk(valkey.url, examples=30, steps=40)


@covers("N5", "P30", "N4", "N6")
@pytest.mark.slow
@pytest.mark.unlimited
def test_the_scripts_and_the_life_of_a_task_agree_on_every_word(valkey: EmbeddedValkey) -> None:
    """The same for longer; that every answer of every script was heard shows that no corner was left out."""
    heard = walk(valkey.url, examples=400, steps=50)
    scripts = set(_SCRIPTS.values()) - {"renew"}
    said = {(name, word) for name in scripts for word in SCRIPTS[name].answers}
    news = {("renew", word) for word in ("RUNNING", "WAITING", "CANCEL", "LOST")}
    assert said | news == heard | _ELSEWHERE
