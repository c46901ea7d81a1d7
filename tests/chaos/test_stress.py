"""The stress workload as a test: shorter than `make stress`, judged by the same exact rules."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from mcptasks.model import Status
from tests.chaos.stress_races import Race, Verdict, every_race, judge
from tests.requirements import covers
from tests.support.life import Answer, Life, Terms
from tests.support.moves import Move
from tests.support.scenes import SCENES
from tests.support.sight import Sight, sight_of

ROOT: Final = Path(__file__).parents[2]
#: A twentieth of all races, of every kind some.
ROUNDS: Final = 1_000

TERMS: Final = Terms(
    lease_ms=1_000,
    resend_ms=1_000,
    countdowns_ms=(1_000,),
    countdown_budget=9,
    deferrals_ms=(1_000,),
    questions_max=5,
    artifacts_max=3,
    artifacts_total_max=9,
    ttl_ms=10_000,
    max_attempts=2,
    hard_limit_ms=5_000,
    retry_ms=(1_000,),
)


@covers("N11", "N5", "E05")
@pytest.mark.slow
def test_whatever_races_looks_as_if_it_had_come_one_after_the_other() -> None:
    """N11: many writers, exact invariants, timings described and never judged, JSON output."""
    words = [sys.executable, "-m", "tests.chaos.stress", "--rounds", str(ROUNDS), "--writers", "3", "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode in (0, 1), done.stderr
    run: dict[str, Any] = json.loads(done.stdout)
    assert run["violations"] == []
    assert (run["rounds"], run["operations"], run["writers"]) == (ROUNDS, 3 * ROUNDS, 3)
    assert run["scrambles"] > 0 and run["described"]["seconds"] > 0
    assert run["first"]["left"] > 0 and run["first"]["right"] > 0, "each side was first sometimes, else this is no race"


# ------------------------------------------------------------------------------------------------ the judge


def scene(name: str) -> Life:
    """A task that stands so."""
    life = Life(terms=TERMS, born=(0, 0))
    for move in SCENES[name]:
        move.expect(life, (0, 0))
    return life


def played(life: Life, moves: Sequence[Move], order: Sequence[int]) -> tuple[list[Answer], Sight]:
    """What an honest store answers and holds when the writers come in that order."""
    after = copy.deepcopy(life)
    answers: list[Answer] = [()] * len(moves)
    for n in order:
        answers[n] = moves[n].expect(after, (0, 0))
    return answers, sight_of(after)


def test_an_honest_store_is_believed_in_either_order() -> None:
    """Else a violation would prove nothing."""
    for race in every_race():
        life = scene(race.scene)
        moves = race.moves(life, 2)
        for order in ((0, 1), (1, 0)):
            answers, sight = played(life, moves, order)
            assert order[0] in judge(life, moves, answers, 0, sight).firsts, race


@pytest.mark.parametrize(
    ("race", "lie"),
    [
        (Race("parked on one question", "answer", "cancel"), {"status": Status.QUEUED}),
        (Race("running", "complete", "cancel"), {"attempt": 2}),
        (Race("running", "complete", "complete"), {"message": "By both"}),
        (Race("running, its worker lost", "reap", "renew"), {"token": 2}),
        (Race("held", "park", "answer"), {"held": True}),
        (Race("queued", "claim", "claim"), {"worker": "w7"}),
        (Race("running, with files", "other bytes", "another artifact"), {"files": {}}),
    ],
    ids=str,
)
def test_a_store_that_holds_something_else_is_not(race: Race, lie: dict[str, Any]) -> None:
    """One field that no order explains is a violation, and it is named."""
    life = scene(race.scene)
    moves = race.moves(life, 2)
    after = copy.deepcopy(life)
    answers = [move.expect(after, (0, 0)) for move in moves]
    for name, value in lie.items():
        setattr(after, name, value)
    verdict = judge(life, moves, answers, 0, sight_of(after))
    assert (verdict.firsts, verdict.why != ()) == (frozenset(), True)


def test_two_winners_are_never_explained() -> None:
    """Two claims that both got the run: no order gives these answers."""
    life = scene("queued")
    moves = Race("queued", "claim", "claim").moves(life, 2)
    both = [move.expect(copy.deepcopy(life), (0, 0)) for move in moves]
    assert [answer[0] for answer in both] == ["CLAIMED"] * 2
    verdict = judge(life, moves, both, 0, sight_of(life))
    assert verdict == Verdict(frozenset(), ("no order gives these answers",))
