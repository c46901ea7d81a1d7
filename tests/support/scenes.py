"""Where a task can stand, each told as the moves that bring a new one there. The latest run is always run 1 or 2."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from mcptasks.model import Status
from tests.support.moves import Ask, Cancel, Finish, Give, Pass, Release, Ripen, Script, Take, Tell, TryLater

_RUNS: Final[Script] = (Take(1, "w0"),)
_HELD: Final[Script] = (*_RUNS, Ask(1, ("a", "b"), hold=True))
_PARKED: Final[Script] = (*_RUNS, Ask(1, ("a", "b")))
_WAITS: Final[Script] = (*_RUNS, TryLater(1))

SCENES: Final = MappingProxyType(
    {
        "queued": (),
        "queued, its message lost": (Pass("unsent"),),
        "running": _RUNS,
        "running, cancel asked": (*_RUNS, Cancel(why="First")),
        "running, its worker lost": (*_RUNS, Pass("leases")),
        "running, cancel asked and its worker lost": (*_RUNS, Cancel(why="First"), Pass("leases")),
        "running, over its limit": (*_RUNS, Ripen("deadline"), Pass("leases")),
        "running, expired": (*_RUNS, Pass("expiry")),
        "running again": (*_PARKED, Give({"a": 1, "b": 2}), Take(2, "w0"), Tell(2)),
        "held": _HELD,
        "held, cancel asked": (*_HELD, Cancel(why="First")),
        "held, one answer given": (*_HELD, Give({"a": 1})),
        "held, its worker lost": (*_HELD, Pass("leases")),
        "parked": _PARKED,
        "parked on one question": (*_RUNS, Ask(1, ("a",))),
        "parked, expired": (*_PARKED, Pass("expiry")),
        "answered": (*_PARKED, Give({"a": 1, "b": 2})),
        "released": (*_RUNS, Release(1)),
        "between retries": _WAITS,
        "due for a retry": (*_WAITS, Ripen("due"), Pass("unsent")),
        "running a retry": (*_WAITS, Ripen("due"), Take(2, "w0")),
        "completed": (*_RUNS, Finish(1)),
        "cancelled": (Cancel(),),
        "failed": (*_RUNS, Finish(1, Status.FAILED, "No")),
    }
)
"""Scene -> moves. Each holds for any `Terms` with at least one retry and a ttl."""
