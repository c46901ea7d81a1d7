"""What is decided about a run, from its limits and what happened to it: whoever came first names the reason."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcptasks.policy import DEFAULT_GRACE_MS, Policy
from mcptasks.runtime.outcome import Cancelled, Failed, Interrupted, Superseded
from mcptasks.runtime.stopping import stopped
from mcptasks.runtime.watchdog import Decision, Do, Limits, Marks, Stop, decide
from tests.requirements import covers

#: Of every run in the table.
POLICY: Final = Policy(time_limit_ms=10_000, idle_limit_ms=4_000, cancel_grace_ms=2_000)
LIMITS: Final = replace(Limits.of(POLICY), grace_s=3.0)

_STOPS: Final = {"c": Stop.CANCEL, "x": Stop.SHUTDOWN, "l": Stop.LOST}


@dataclass
class Life:
    """A run and its loop, as far as the decision is concerned: seconds are jumped over.

    Written as words: p3 progress in second 3, c3 cancel, x3 shutdown, l3 lost claim, r3 the tool returns, e3 it raises;
    `obeys`: it stops half a second after it is told, else it does not; b3-6: nobody can look between 3 and 6.
    """

    limits: Limits
    obeys: bool = False
    blind: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        self.events: list[tuple[float, str]] = []

    @classmethod
    def of(cls, story: str, limits: Limits = LIMITS) -> Life:
        life = cls(limits)
        for word in story.split():
            if word == "obeys":
                life.obeys = True
            elif word == "patient":
                life.limits = replace(life.limits, cancel_grace_s=None)
            elif word == "unlimited":
                life.limits = replace(life.limits, wall_s=None, idle_s=None)
            elif word.startswith("b"):
                begin, _, end = word[1:].partition("-")
                life.blind = float(begin), float(end)
            else:
                life.events.append((float(word[1:]), word[0]))
        life.events.sort()
        return life

    def end(self) -> tuple[str, float]:
        """The reason that is recorded, and in which second."""
        now_s, marks, told = 0.0, Marks(), False
        for _ in range(100):
            decision = decide(now_s, self.limits, marks)
            upcoming = list[float]()
            if self.blind[0] < now_s < self.blind[1]:
                upcoming.append(self.blind[1])
            else:
                marks = replace(marks, asked=decision.asked)
                if marks.ended_s is not None:
                    return self._reason(decision), now_s
                if decision.do is Do.LEAVE:
                    return _stopped(decision), now_s
                if decision.do is Do.STOP and self.obeys and not told:
                    told = True
                    self.events = sorted([*self.events, (now_s + 0.5, "o")])
                upcoming += [] if decision.look_s is None else [decision.look_s]
                if now_s <= self.blind[0] < self.blind[1]:
                    upcoming.append(self.blind[0] + 1e-9)
            upcoming += [at_s for at_s, _ in self.events[:1]]
            assert upcoming, "nothing will ever end this run"
            now_s = max(now_s, min(upcoming))
            marks = self._happen(now_s, marks)
        raise AssertionError("the run is looked at again and again, and nothing comes of it")

    def _happen(self, now_s: float, marks: Marks) -> Marks:
        while self.events and self.events[0][0] <= now_s and marks.ended_s is None:
            at_s, what = self.events.pop(0)
            if what == "p":
                marks = replace(marks, moved_s=at_s)
            elif what in _STOPS:
                marks = replace(marks, asked=(*marks.asked, (_STOPS[what], at_s)))
            else:
                self.how = what
                marks = replace(marks, ended_s=at_s)
        return marks

    def _reason(self, decision: Decision) -> str:
        if decision.void or self.how == "o":
            return _stopped(decision)
        return {"r": "completed", "e": "failed"}[self.how]


def _stopped(decision: Decision) -> str:
    match stopped(decision, "tool", POLICY):
        case Failed(_, reason) | Cancelled(reason):
            return str(reason)
        case Interrupted():
            return "given back"
        case Superseded():
            return "lost"
        case other:
            raise AssertionError(other)


#: Limits: idle 4 s, wall 10 s; grace after them 3 s, after a cancel 2 s.
TABLE: Final = [
    # -- completion
    ("r1", "completed", 1),
    ("e1", "failed", 1),
    ("p1 r2", "completed", 2),
    ("p3 p6 r9", "completed", 9),
    ("p3 p6 p9 r9.9", "completed", 9.9),
    # -- idle
    ("obeys", "idle_timeout", 4.5),
    ("", "idle_timeout", 7),
    ("p3 obeys", "idle_timeout", 7.5),
    ("p3", "idle_timeout", 10),
    ("p3.9 r5", "completed", 5),
    ("r3.9", "completed", 3.9),
    ("r4", "completed", 4),
    ("e4", "failed", 4),
    ("r4.2", "idle_timeout", 4.2),
    ("e4.2", "idle_timeout", 4.2),
    ("p4.2 r5", "idle_timeout", 5),
    ("p4.2 p4.4 r6", "idle_timeout", 6),
    ("p1 p2 p3 r6.9", "completed", 6.9),
    # -- progress that was accepted before anybody looked beats the idle limit
    ("p4.5 b3.5-5 r6", "completed", 6),
    ("p4.5 b3.5-5 r8.4", "completed", 8.4),
    ("p4.5 b3.5-5 obeys", "idle_timeout", 9),
    ("r4.5 b3.5-5", "completed", 5),
    ("e4.5 b3.5-5", "failed", 5),
    ("b3.5-5 obeys", "idle_timeout", 5.5),
    # -- wall
    ("p3 p6 p9 obeys", "wall_timeout", 10.5),
    ("p3 p6 p9", "wall_timeout", 13),
    ("p3 p6 p9 r11", "wall_timeout", 11),
    ("p3 p6 p9 e11", "wall_timeout", 11),
    ("p3 p6 p9 r10", "wall_timeout", 10),
    ("p3 p6 p9 p11 p12", "wall_timeout", 13),
    ("p3 p6 p9 r10.5 b9.5-11", "wall_timeout", 11),
    ("p3 p6 p9 r9.9 b9.5-11", "completed", 11),
    # -- idle and wall
    ("p3 p5.9 obeys", "idle_timeout", 10.4),
    ("p3 p6.1 obeys", "wall_timeout", 10.5),
    ("p3 p5.9 b8-12 obeys", "idle_timeout", 12.5),
    ("p3 p6.1 b8-12 obeys", "wall_timeout", 12.5),
    ("p3 p6.1 p10.05 b8-12 obeys", "wall_timeout", 12.5),
    ("p3 p5.9 p9.95 b8-12 obeys", "wall_timeout", 12.5),
    # -- cancel
    ("c1 obeys", "cancelled", 1.5),
    ("c1 r2", "completed", 2),
    ("c1 e2", "failed", 2),
    ("c1", "cancel_timeout", 3),
    ("c1 p2", "cancel_timeout", 3),
    ("c0 obeys", "cancelled", 0.5),
    ("r1 c2", "completed", 1),
    ("c1 r1", "completed", 1),
    # -- cancel and the limits: the first names the reason, whoever ends it
    ("p3 c3.5 r4.2", "completed", 4.2),
    ("c3.9 obeys", "cancelled", 4.4),
    ("c4.1 obeys", "idle_timeout", 4.5),
    ("c4.1", "idle_timeout", 6.1),
    ("c4.1 r5", "idle_timeout", 5),
    ("c3.9 r4.2", "cancelled", 4.2),
    ("c3.9", "cancel_timeout", 5.9),
    ("p3 p6 p9 c9.9 obeys", "cancelled", 10.4),
    ("p3 p6 p9 c9.9 r10.5", "cancelled", 10.5),
    ("p3 p6 p9 c10.1 obeys", "wall_timeout", 10.5),
    ("p3 p6 p9 c10.1", "wall_timeout", 12.1),
    ("p3 p6 p9 c10 obeys", "cancelled", 10.5),
    ("p3 p6 p9 c10.5 b9.5-11 obeys", "wall_timeout", 11.5),
    ("p3 p6 p9 c9.9 b9.5-11 obeys", "cancelled", 11.5),
    # -- a cancel without a grace of its own
    ("c1 patient unlimited r50", "completed", 50),
    ("c1 patient p3 p6 p9", "cancel_timeout", 13),
    ("c1 patient p3", "cancel_timeout", 10),
    ("c1 patient", "cancel_timeout", 7),
    ("c1 patient p3 r6", "completed", 6),
    # -- shutdown
    ("x1 obeys", "given back", 1.5),
    ("x1 r2", "completed", 2),
    ("x1 e2", "failed", 2),
    ("x1 unlimited r50", "completed", 50),
    ("x1", "idle_timeout", 7),
    ("x1 p3 p6 p9", "wall_timeout", 13),
    ("x1 p3 p6 p9 r11", "wall_timeout", 11),
    ("x3.9 obeys", "idle_timeout", 4.4),
    ("p3 x3.9 obeys", "given back", 4.4),
    ("x4.1 obeys", "idle_timeout", 4.5),
    ("x1 c1.2 obeys", "cancelled", 1.5),
    ("c1 x1.2 obeys", "cancelled", 1.5),
    ("x1 c1.2", "cancel_timeout", 3.2),
    ("x1 c1.2 r2", "completed", 2),
    # -- a lost claim forbids every other end
    ("l1 obeys", "lost", 1.5),
    ("l1 r2", "lost", 2),
    ("l1", "lost", 6),
    ("c1 l1.2 obeys", "lost", 1.5),
    ("l1 c1.2 obeys", "lost", 1.5),
    ("x1 l1.2 r3", "lost", 3),
    ("l4.1 obeys", "lost", 4.5),
    ("p3 p6 p9 l10.1", "lost", 13),
    ("r1 l2", "completed", 1),
]


@covers("W4", "R5")
@pytest.mark.parametrize(("story", "reason", "second"), TABLE, ids=[story or "nothing" for story, _, _ in TABLE])
def test_every_order_of_events_has_its_reason(story: str, reason: str, second: float) -> None:
    """W4: the first limit names the reason; progress beats the idle limit; a stop after a limit keeps the limit."""
    assert Life.of(story).end() == (reason, pytest.approx(second))


def test_the_table_is_as_long_as_it_was_promised() -> None:
    """Issue 5: at least 60 rows, each another story, and every reason is among them."""
    assert len({story for story, _, _ in TABLE}) == len(TABLE) >= 60
    assert {reason for _, reason, _ in TABLE} == {
        *("completed", "failed", "cancelled", "cancel_timeout", "idle_timeout", "wall_timeout", "given back", "lost")
    }


@pytest.mark.parametrize(
    ("marks", "look_s"),
    [
        (Marks(), 4),
        (Marks(moved_s=3), 7),
        (Marks(moved_s=7), 10),
        (Marks(asked=((Stop.CANCEL, 1),)), 3),
        (Marks(asked=((Stop.SHUTDOWN, 1),)), 4),
        (Marks(asked=((Stop.IDLE, 1),)), 4),
    ],
    ids=str,
)
def test_a_run_is_looked_at_again_when_its_next_limit_comes(marks: Marks, look_s: float) -> None:
    """Not more often: an idle fleet costs nothing."""
    assert decide(2.5, LIMITS, marks).look_s == look_s


def test_a_run_without_limits_is_never_looked_at() -> None:
    """Only an event can change anything."""
    assert decide(1e9, Limits(), Marks()) == Decision(Do.RUN, (), None)
    assert decide(1e9, Limits(), Marks(asked=((Stop.CANCEL, 1),))).look_s is None


@covers("W4")
@pytest.mark.parametrize(
    ("now_s", "marks", "decision"),
    [
        # Told when it will be left; at that very second it is left, and looked at again for the next limit only.
        (2, Marks(asked=((Stop.CANCEL, 1),)), Decision(Do.STOP, ((Stop.CANCEL, 1),), 3, 3)),
        (3, Marks(asked=((Stop.CANCEL, 1),)), Decision(Do.LEAVE, ((Stop.CANCEL, 1),), 4, 3)),
        # It ended after its grace, but before anybody had left it: there is nothing to leave.
        (5, Marks(asked=((Stop.CANCEL, 1),), ended_s=3.5), Decision(Do.STOP, ((Stop.CANCEL, 1),), 4, 3)),
        # Of one second: whatever order they were heard in.
        (
            1.5,
            Marks(asked=((Stop.SHUTDOWN, 1), (Stop.CANCEL, 1), (Stop.LOST, 1))),
            Decision(Do.STOP, ((Stop.LOST, 1), (Stop.CANCEL, 1), (Stop.SHUTDOWN, 1)), 3, 3),
        ),
    ],
    ids=str,
)
def test_a_decision_says_all_that_the_loop_needs(now_s: float, marks: Marks, decision: Decision) -> None:
    """What to do, why, when to look again, and when its slot will be free at the latest."""
    assert decide(now_s, LIMITS, marks) == decision


MARKS = st.builds(
    Marks,
    moved_s=st.floats(0, 30),
    asked=st.lists(st.tuples(st.sampled_from(Stop), st.floats(0, 30)), unique_by=lambda one: one[0]).map(tuple),
    ended_s=st.none() | st.floats(0, 30),
)


@covers("W4")
@given(st.floats(0, 30), MARKS)
def test_a_decision_stands_until_something_happens_or_its_time_comes(now_s: float, marks: Marks) -> None:
    """The loop may sleep until then, and looking twice is looking once."""
    decision = decide(now_s, LIMITS, marks)
    assert decision.look_s is None or decision.look_s > min(now_s, marks.ended_s or now_s)
    assert set(marks.asked) <= set(decision.asked), "whoever asked is not forgotten"
    assert decide(now_s, LIMITS, replace(marks, asked=decision.asked)) == decision
    if marks.ended_s is None and decision.look_s is not None:
        between = (now_s + decision.look_s) / 2
        later = decide(between, LIMITS, marks)
        assert between >= decision.look_s or (later.do, later.asked) == (decision.do, decision.asked)
        assert decide(decision.look_s, LIMITS, marks) != decision


# ------------------------------------------------------------------------------------------------ limits


@covers("P52", "W4")
@pytest.mark.parametrize(
    ("stop", "policy", "seconds"),
    [
        (Stop.CANCEL, Policy(), None),
        (Stop.CANCEL, Policy(cancel_grace_ms=2_000), 2.0),
        (Stop.WALL, Policy(time_limit_ms=1), DEFAULT_GRACE_MS / 1000),
        (Stop.WALL, Policy(time_limit_ms=1, cancel_grace_ms=2_000), 2.0),
        (Stop.IDLE, Policy(idle_limit_ms=1), DEFAULT_GRACE_MS / 1000),
        (Stop.IDLE, Policy(idle_limit_ms=1, cancel_grace_ms=2_000), 2.0),
        (Stop.LOST, Policy(), DEFAULT_GRACE_MS / 1000),
        (Stop.LOST, Policy(cancel_grace_ms=60_000), DEFAULT_GRACE_MS / 1000),
        (Stop.SHUTDOWN, Policy(cancel_grace_ms=1_000), None),
    ],
    ids=str,
)
def test_a_grace_is_off_for_a_cancel_unless_the_tool_has_one(stop: Stop, policy: Policy, seconds: float | None) -> None:
    """P52: off by default for a cancel; a limit or a lost claim always ends; a shutdown waits for its cold stop."""
    assert Limits.of(policy).grace_of(stop) == seconds
