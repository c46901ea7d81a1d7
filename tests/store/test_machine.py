"""The real Lua against the life of a task in plain Python: any order of transitions, stale workers and lost time.

After every step the answer, every field, every index with its score, the journal and the expiry must be what `Life`
says. Time is moved, not waited for: every real distance is longer than any test.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from pydantic import SecretStr

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.model import Status
from mcptasks.policy import Policy
from mcptasks.settings import Settings
from mcptasks.store.scripts import SCRIPTS
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.file_moves import Discard, Keep, Reserve
from tests.support.keys import SECRETS
from tests.support.life import LISTS, OWNER, Life
from tests.support.moves import (
    Ask,
    Cancel,
    CreateAgain,
    Finish,
    Give,
    Move,
    Park,
    Pass,
    PutOff,
    Reap,
    Release,
    Renew,
    Ripen,
    RunOut,
    Say,
    Sleep,
    Step,
    Take,
    Tell,
    TryLater,
    Vanish,
)
from tests.support.scenes import SCENES, TRANSITIONS
from tests.support.sight import differences, look
from tests.support.tasks import TERMINAL
from tests.support.twin import Twin

#: Longer than any test.
DISTANCES: Final[dict[str, Any]] = {
    "lease_ms": 600_000,
    "resend_ms": 100_000,
    "countdowns_ms": (600_000, 1_200_000),
    "questions_max": 3,
    "deferrals_ms": (400_000,),
    "artifacts_max": 2,
    "artifacts_total_max": 5,
}

# ------------------------------------------------------------------------------------------------ one step

_SCRIPTS: Final[dict[type[Move], str]] = {
    CreateAgain: "create",
    Give: "answer",
    Cancel: "cancel",
    Take: "claim",
    Renew: "renew",
    Tell: "progress",
    Ask: "ask",
    Sleep: "sleep",
    Park: "park",
    Step: "step",
    Say: "note",
    Finish: "finish",
    TryLater: "retry",
    PutOff: "defer",
    Release: "release",
    Reserve: "reserve",
    Keep: "artifact",
    Discard: "discard",
    Reap: "reap",
}
#: What one task alone, of one schema, in an open fleet never hears.
_ELSEWHERE: Final = {("create", word) for word in ("EXISTS", "CONFLICT", "CLOSED", "FULL", "FINAL")} | {
    *((name, "NEWER") for name in ("answer", "cancel", "claim", "reap")),
    ("reap", "WAITING"),
}


@covers("N5", "P30", "N4", "N6", "B09")
@pytest.mark.anyio
@pytest.mark.parametrize(
    "keys", [pytest.param((), id="plain"), pytest.param(SECRETS[:1], id="sealed", marks=pytest.mark.slow)]
)
async def test_every_transition_does_to_every_task_what_its_life_says(
    open_store: OpenStore, keys: tuple[SecretStr, ...]
) -> None:
    """Each on each scene, and on a task that Redis has dropped; together they hear every word of every script.

    B09: sealed, the scripts do just the same, and `look` finds in plain text only what no person or tool has said.
    """
    # Room for the countdowns of all of them: here each task is alone with its terms.
    store = open_store(**DISTANCES, countdown_budget=10_000, encryption_keys=keys)
    heard = set[tuple[str, str]]()
    policy = Policy(ttl_ms=10_000_000, max_attempts=2, time_limit_ms=1_000_000, retry_ms=(500_000,))
    for script in (*SCENES.values(), (Vanish(),), (*SCENES["running, with files"], Vanish())):
        for transition in TRANSITIONS.values():
            twin = await Twin.create(store, policy, script)
            move = transition(twin.life, 0)
            if not (twin.life.gone and isinstance(move, CreateAgain)):
                heard.add((_SCRIPTS[type(move)], str((await twin.happen(move))[0])))
    # What comes to every task of the store: here to those whose folders are due, of tasks that live and of one that is
    # gone.
    for script in ((), (Finish(1),), (Vanish(),)):
        twin = await Twin.create(store, policy, (*SCENES["running, with files"], *script, Pass("artifacts")))
        heard.add(("discard", str((await twin.happen(Discard()))[0])))
        await twin.happen(Discard(done=twin.life.gone))
    # A file that is too large for the task.
    large = await Twin.create(store, policy, SCENES["running, with files"])
    heard.add(("artifact", str((await large.happen(Keep(1, "a.csv", "1,2,3", "2")))[0])))
    # What must not be begun twice.
    once = await Twin.create(store, replace(policy, max_attempts=1), SCENES["running"])
    heard.add(("release", str((await once.happen(Release(1)))[0])))
    said = {(name, word) for name in _SCRIPTS.values() for word in SCRIPTS[name].answers} - {("renew", "RENEWED")}
    news = {("renew", word) for word in ("RUNNING", "WAITING", "CANCEL", "LOST")}
    assert heard == (said | news) - _ELSEWHERE


# ------------------------------------------------------------------------------------------------ many steps

#: Most of the time the live token or the next run, sometimes one that is stale or was never given.
TOKENS: Final = st.sampled_from([0] * 8 + [-1, 1])
WORDS: Final = st.sampled_from(["No more", "Moving house"])
WORKERS: Final = st.sampled_from(["w1", "w2"])
KEYS: Final = st.lists(st.sampled_from("abcd"), unique=True, max_size=3)
TEXTS: Final = st.sampled_from(["Sure?"] * 4 + ["No?"])
LIMITS: Final = st.sampled_from([None, None, "cancel", "cancel", "fail"])
ANSWERS: Final = st.dictionaries(st.sampled_from("abcd?"), st.integers(0, 9), min_size=1, max_size=4)
ANY_SCENE: Final = st.sampled_from(sorted(SCENES))


async def crowd(store: TaskStore, count: int) -> None:
    """So many countdown messages of other tasks are under way."""
    client: Any = store.connection.client
    index = store.keys.countdowns
    await client.zrem(index, "other-0", "other-1")
    if count:
        await client.zadd(index, {f"other-{n}": 8e15 for n in range(count)})


class TaskMachine(RuleBasedStateMachine):
    """One task at a time, everybody who may ever touch it, and its `Life` beside it."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url, self._runner, self._policy = url, asyncio.Runner(), Policy()
        self._past: list[Twin] = []
        self._files = 0

    @property
    def life(self) -> Life:
        """What must be true of the task."""
        return self.twin.life

    @property
    def ripening(self) -> list[str]:
        """What the task is waiting to have behind it."""
        due = ["due"] * (self.life.status is Status.RETRYING)
        return due + [name for name in ("deadline", "wake") if getattr(self.life, name) is not None]

    @initialize(
        budget=st.sampled_from([0, 2, 2]),
        sealed=st.booleans(),
        attempts=st.sampled_from([1, 2]),
        limited=st.booleans(),
        unlimited=st.booleans(),
        retries=st.sampled_from([(500_000,), (500_000, 5_000_000), (5_000_000,)]),
        scene=ANY_SCENE,
    )
    def begin(
        self,
        budget: int,
        sealed: bool,
        attempts: int,
        limited: bool,
        unlimited: bool,
        retries: tuple[int, ...],
        scene: str,
    ) -> None:
        """A store of its own, and the first task."""
        prefix = f"m{uuid.uuid4().hex[:8]}:"
        how: dict[str, Any] = {
            **DISTANCES,
            "countdown_budget": budget,
            "encryption_keys": SECRETS[:1] if sealed else (),
        }
        self._store = TaskStore(Settings(redis_url=self._url, prefix=prefix, **how))
        self._policy = Policy(
            ttl_ms=None if unlimited else 10_000_000,
            unlimited=unlimited,
            max_attempts=attempts,
            time_limit_ms=1_000_000 if limited else None,
            retry_ms=retries,
        )
        self._create(scene, others=0)

    def _create(self, scene: str, others: int) -> None:
        self.twin = self._runner.run(Twin.create(self._store, self._policy, SCENES[scene], others=others))

    def happen(self, move: Move) -> None:
        """The move happens to both, and they agree."""
        self._runner.run(self.twin.happen(move))

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
    @rule(scene=ANY_SCENE)
    def another(self, scene: str) -> None:
        if self.life.gone:
            # The sweeper clears what is left of it in the indexes; a countdown would count against the budget.
            self.happen(Reap())
        self._past.append(self.twin)
        self._create(scene, self.life.others)

    # -------------------------------------------------------------------------------------------- workers

    @rule(offset=TOKENS, look=st.sampled_from([0, 0, 1, 2]), worker=WORKERS)
    def claim(self, offset: int, look: int, worker: str) -> None:
        self.happen(Take(self.life.token + 1 + offset, worker, look))

    @precondition(lambda self: self.life.active and not self.life.has_worker)
    @rule(worker=WORKERS)
    def claim_what_waits(self, worker: str) -> None:
        self.happen(Take(self.life.token + 1, worker, self.life.look))

    @rule(offset=TOKENS, keys=KEYS, hold=st.booleans(), text=TEXTS, guard=st.booleans(), limit=LIMITS)
    def ask(self, offset: int, keys: Sequence[str], hold: bool, text: str, guard: bool, limit: str | None) -> None:
        self.happen(Ask(self.life.token + offset, tuple(keys), hold, text, guard, limit))

    @rule(offset=TOKENS, names=st.sets(st.integers(0, 3), min_size=1, max_size=2), hold=st.booleans())
    def sleep(self, offset: int, names: set[int], hold: bool) -> None:
        times: list[tuple[int | None, int]] = [(500_000, 0), (5_000_000, 0), (None, 1), (None, 4 * 10**12)]
        timers = tuple((f"sleep#{n}", *times[n]) for n in sorted(names))
        self.happen(Sleep(self.life.token + offset, timers, hold))

    @rule(offset=TOKENS, kind=st.sampled_from([Renew, Tell, Tell, Say, Step]), number=st.integers(1, 2))
    def report(self, offset: int, kind: type[Renew | Tell | Say | Step], number: int) -> None:
        token = self.life.token + offset
        if kind is Renew:
            self.happen(Renew(token))
        elif kind is Tell:
            self.happen(Tell(token, f"At {number}", number + 0.5))
        elif kind is Say:
            self.happen(Say(token, str(number)))
        else:
            self.happen(Step(token, str(number), f"s#{number}"))

    @rule(offset=TOKENS, kind=st.sampled_from([Park, Release, PutOff]))
    def let_go(self, offset: int, kind: type[Park | Release | PutOff]) -> None:
        self.happen(kind(self.life.token + offset))

    @rule(offset=TOKENS)
    def reserve(self, offset: int) -> None:
        self.happen(Reserve(self.life.token + offset))

    @precondition(lambda self: self.life.reserved)
    @rule(offset=TOKENS, name=st.sampled_from(["a", "b", "c", "../x"]), data=st.sampled_from(["", "1", "12", "1234"]))
    def artifact(self, offset: int, name: str, data: str) -> None:
        self._files += 1
        self.happen(Keep(self.life.token + offset, name, data, f"f{self._files}"))

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

    @rule(done=st.booleans())
    def discard(self, done: bool) -> None:
        """It comes to all tasks; only of one that is gone anybody says that its files are."""
        before = self._runner.run(self._store.now_ms())
        self.happen(Discard(done and self.life.gone))
        at = before, self._runner.run(self._store.now_ms())
        for each in self._past:
            each.life.discard(at, done=False)

    @precondition(lambda self: "artifacts" in self.life.places)
    @rule()
    def files_are_due(self) -> None:
        self.happen(Pass("artifacts"))

    @rule()
    def look_around(self) -> None:
        """Creating the task again changes nothing; the sweep and the list of active tasks have what they must have."""
        if not self.life.gone:
            self.happen(CreateAgain())
        twins = [*self._past, self.twin]
        overdue = sorted(each.task_id for each in twins if each.life.sweep())
        assert sorted(self._runner.run(self._store.sweep("me")) or ()) == overdue
        assert self._runner.run(self._store.active()) == [self.twin.task_id] * self.life.active
        for each in twins:
            each.life.forget()

    @precondition(lambda self: not self.life.gone and self.life.places.keys() - set(LISTS))
    @rule(nth=st.integers(0, 3))
    def time_passes(self, nth: int) -> None:
        indexes = sorted(self.life.places.keys() - set(LISTS))
        self.happen(Pass(indexes[nth % len(indexes)]))

    @precondition(lambda self: not self.life.gone and self.ripening)
    @rule(nth=st.integers(0, 2))
    def limit_or_delay_passes(self, nth: int) -> None:
        self.happen(Ripen(self.ripening[nth % len(self.ripening)]))

    @precondition(lambda self: not self.life.gone and self.life.limits)
    @rule(nth=st.integers(0, 3))
    def question_runs_out(self, nth: int) -> None:
        keys = sorted(self.life.limits)
        self.happen(RunOut(keys[nth % len(keys)]))

    @rule(what=st.sampled_from([0, 1, 2, "vanish"]))
    def rarely(self, what: int | str) -> None:
        """Countdown messages of other tasks come and go; or Redis has dropped the task."""
        if isinstance(what, int):
            self._runner.run(crowd(self._store, what))
            self.life.others = what
        elif not self.life.gone:
            self.happen(Vanish())

    def teardown(self) -> None:
        """What ended before is as it was; nothing is left open."""
        if hasattr(self, "_store"):
            try:
                for each in self._past:
                    assert differences(each.life, self._runner.run(look(self._store, each.task_id))) == []
            finally:
                self._runner.run(self._store.aclose())
        self._runner.close()


def walk(url: str, examples: int, steps: int) -> None:
    """So many tasks' lives were walked through, always the same ones."""
    profile = hypothesis_settings(max_examples=examples, stateful_step_count=steps)
    run_state_machine_as_test(cast("Any", lambda: TaskMachine(url)), settings=profile)


@covers("N5", "P30", "N4", "N6")
@pytest.mark.unlimited
def test_the_scripts_and_the_life_of_a_task_agree(valkey: EmbeddedValkey) -> None:
    """Invariants 2 to 8, in orders of events that nobody would write down."""
    walk(valkey.url, examples=20, steps=40)


@covers("N5", "P30", "N4", "N6")
@pytest.mark.slow
@pytest.mark.unlimited
def test_the_scripts_and_the_life_of_a_task_agree_for_long(valkey: EmbeddedValkey) -> None:
    """The same with many more lives."""
    walk(valkey.url, examples=300, steps=50)
