"""Every pair of transitions on every kind of task, and the verdict: some order of the writers must explain it all.

A transition is one script, so whatever many writers do at once must look as if they had come one after the other. The
`Life` of the task is asked for every order; if none gives exactly these answers and exactly what is stored, the store
broke its promise.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

from tests.support.life import Answer, Life, Window
from tests.support.moves import Move
from tests.support.scenes import SCENES, TRANSITIONS
from tests.support.sight import Sight, differences


@dataclass(frozen=True)
class Race:
    """Half of the writers do one thing and half the other, to one task that stands so."""

    scene: str
    left: str
    right: str

    def __str__(self) -> str:
        return f"{self.left} x {self.right}, {self.scene}"

    def moves(self, life: Life, writers: int) -> list[Move]:
        """What each writer does."""
        return [TRANSITIONS[self.left if n % 2 == 0 else self.right](life, n) for n in range(writers)]


def every_race() -> Iterator[Race]:
    """All pairs, each transition against itself included, on all scenes."""
    for scene in SCENES:
        for left, right in combinations_with_replacement(TRANSITIONS, 2):
            yield Race(scene, left, right)


@dataclass(frozen=True)
class Verdict:
    """`firsts`: the writers that may have been first; none: no order explains what happened."""

    firsts: frozenset[int]
    #: What is wrong in the orders whose answers fit.
    why: tuple[str, ...] = ()


def judge(life: Life, moves: Sequence[Move], answers: Sequence[Answer], began: float, sight: Sight) -> Verdict:
    """Whether some order of the moves explains the answers and what was stored afterwards."""
    at = (began, sight.at)
    firsts, why = set[int](), set[str]()
    everybody = frozenset(range(len(moves)))
    for first in everybody:
        for problems in _endings(life, moves, answers, at, sight, first, everybody - {first}):
            if not problems:
                firsts.add(first)
                break
            why.add("; ".join(problems))
    return Verdict(frozenset(firsts), () if firsts else tuple(sorted(why)) or ("no order gives these answers",))


def _endings(
    life: Life,
    moves: Sequence[Move],
    answers: Sequence[Answer],
    at: Window,
    sight: Sight,
    now: int,
    left: frozenset[int],
) -> Iterator[tuple[str, ...]]:
    """For each order of `now` and those `left` whose answers fit: what is stored otherwise; () when nothing is."""
    moved = copy.copy(life)
    for name in ("open", "asked", "answers", "limits", "steps", "timers", "files", "places"):
        setattr(moved, name, dict(getattr(life, name)))
    moved.timeline = list(life.timeline)
    if moves[now].expect(moved, at) != answers[now]:
        return
    if not left:
        yield tuple(differences(moved, sight))
        return
    for following in sorted(left):
        yield from _endings(moved, moves, answers, at, sight, following, left - {following})
