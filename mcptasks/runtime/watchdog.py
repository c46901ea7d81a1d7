"""What may stop a run, and what is to be done about it now: decided from limits and marks, by nothing else.

Here is no clock, no loop and no task. Seconds are the run's own: they stand still while it waits for a person.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from mcptasks.policy import DEFAULT_GRACE_MS, Policy


class Stop(StrEnum):
    """Why a run is asked to stop."""

    #: The claim is gone: another run has it, or the task ended. Nothing this run does counts any more.
    LOST = "lost"
    #: The caller cancelled.
    CANCEL = "cancel"
    #: The time limit passed.
    WALL = "wall"
    #: Nothing moved for too long.
    IDLE = "idle"
    #: The worker goes down; the run gives its claim back, unfinished, for another worker.
    SHUTDOWN = "shutdown"


#: Of two that come at the very same moment the earlier one here counts as first.
_ORDER: Final = tuple(Stop)

#: After these no result counts.
_VOID: Final = frozenset({Stop.LOST, Stop.WALL, Stop.IDLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run may take. None: as long as it likes."""

    wall_s: float | None = None
    #: Without anything that moves.
    idle_s: float | None = None
    #: After a cancel.
    cancel_grace_s: float | None = None
    #: After a limit, or when the claim is lost.
    grace_s: float = DEFAULT_GRACE_MS / 1000

    @classmethod
    def of(cls, policy: Policy) -> Self:
        """What the tool's author decided."""
        return cls(
            wall_s=_seconds(policy.time_limit_ms),
            idle_s=_seconds(policy.idle_limit_ms),
            cancel_grace_s=_seconds(policy.cancel_grace_ms),
            grace_s=policy.grace_ms / 1000,
        )

    def grace_of(self, stop: Stop) -> float | None:
        """How long the run may take to stop, once it was asked to for this reason."""
        match stop:
            case Stop.CANCEL:
                return self.cancel_grace_s
            case Stop.SHUTDOWN:
                # As long as it likes: given back while it still ran, it would run twice at once. The cold stop ends it.
                return None
            case Stop.LOST:
                return DEFAULT_GRACE_MS / 1000
            case Stop.WALL | Stop.IDLE:
                return self.grace_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What has happened to a run, each thing with its second."""

    #: The last thing that moved.
    moved_s: float = 0.0
    #: Who asked it to stop; each reason once.
    asked: tuple[tuple[Stop, float], ...] = ()
    #: The tool has come to an end of its own, or obeyed.
    ended_s: float | None = None


class Do(StrEnum):
    """What is to be done with a run."""

    #: Let it run.
    RUN = "run"
    #: Tell it to stop, if it was not told, and wait for it.
    STOP = "stop"
    #: Its grace is over: its task ends without it.
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done now, and why."""

    do: Do
    #: All that has asked it to stop by now, in the order in which it came.
    asked: tuple[tuple[Stop, float], ...]
    #: The second at which to look again, if nothing happens before; None: only then.
    look_s: float | None
    #: When the first grace is over; None: none has begun.
    leave_s: float | None = None

    @property
    def reason(self) -> Stop | None:
        """What names the end of a run that stops: what came first.

        A lost claim goes before all, because it forbids writing; a shutdown comes after all, because it is no end: it
        gives the task to another worker, which must not have what another reason has taken from it.
        """
        asked = [stop for stop, _ in self.asked]
        if Stop.LOST in asked:
            return Stop.LOST
        return next((stop for stop in asked if stop is not Stop.SHUTDOWN), asked[0] if asked else None)

    @property
    def void(self) -> bool:
        """Whatever the tool comes to now does not count: a result that comes after a limit does not undo the limit."""
        return any(stop in _VOID for stop, _ in self.asked)


def decide(now_s: float, limits: Limits, marks: Marks) -> Decision:
    """What is to be done with the run at that second.

    What happened before it was looked at counts as of when it happened. So a limit that passed unnoticed names the
    reason before a cancel that came later, a tool that ended in time has ended in time, and something that moved after
    the idle limit but before anybody acted on it has moved.
    """
    ended = marks.ended_s is not None and marks.ended_s <= now_s
    if ended and marks.ended_s is not None:
        now_s = marks.ended_s
    asked, ahead_s = dict(marks.asked), list[float]()
    for stop, due_s in _deadlines(limits, marks):
        if stop in asked:
            continue
        if due_s > now_s:
            ahead_s.append(due_s)
        elif not (ended and stop is Stop.IDLE):  # to end is to move
            asked[stop] = due_s
    if not asked:
        return Decision(Do.RUN, (), min(ahead_s, default=None))
    leave_s = _leave_s(limits, asked)
    if leave_s is not None and leave_s > now_s:
        ahead_s.append(leave_s)
    leave = leave_s is not None and leave_s <= now_s and not ended
    order = sorted(asked.items(), key=lambda one: (one[1], _ORDER.index(one[0])))
    return Decision(Do.LEAVE if leave else Do.STOP, tuple(order), min(ahead_s, default=None), leave_s)


def _deadlines(limits: Limits, marks: Marks) -> Iterator[tuple[Stop, float]]:
    if limits.wall_s is not None:
        yield Stop.WALL, limits.wall_s
    if limits.idle_s is not None:
        yield Stop.IDLE, marks.moved_s + limits.idle_s


def _leave_s(limits: Limits, asked: dict[Stop, float]) -> float | None:
    """When the first grace is over."""
    graces = [(at_s, limits.grace_of(stop)) for stop, at_s in asked.items()]
    return min((at_s + grace_s for at_s, grace_s in graces if grace_s is not None), default=None)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
