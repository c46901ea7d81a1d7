"""Where a task can stand, told as the moves that bring a new one there, and all that can be done to it next."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

from mcptasks.model import Status
from tests.support.file_moves import Keep, Reserve
from tests.support.life import OWNER, Life
from tests.support.moves import (
    Ask,
    Cancel,
    ComeEarly,
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
    Script,
    Sleep,
    Step,
    Take,
    Tell,
    TryLater,
)


def _keep(life: Life, name: str, data: str, n: int) -> Move:
    """No file is written before there is a folder."""
    return Keep(life.token, name, data, f"w{n}") if life.reserved else Reserve(life.token)


_RUNS: Final[Script] = (Take(1, "w"),)
_HELD: Final[Script] = (*_RUNS, Ask(1, ("a", "b"), hold=True))
_PARKED: Final[Script] = (*_RUNS, Ask(1, ("a", "b")))
_WAITS: Final[Script] = (*_RUNS, TryLater(1))
_SLEEPS: Final[Script] = (*_RUNS, Sleep(1))
_BOTH: Final[Script] = (*_RUNS, Sleep(1, hold=True), Ask(1, ("a", "b")))
_LIMITED: Final[Script] = (*_RUNS, Ask(1, ("a", "b"), limit="cancel"))
_HELD_LIMITED: Final[Script] = (*_RUNS, Ask(1, ("a", "b"), hold=True, limit="cancel"))
_WRITES: Final[Script] = (*_RUNS, Reserve(1), Keep(1, "a.csv", "1,2"))
_WAKES: Final[Script] = (Ripen("wake"), Pass("unsent"))

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
        "running again": (*_PARKED, Give({"a": 1, "b": 2}), Take(2, "w"), Tell(2, "At 0", 0.5), Step(2, "9")),
        "held": _HELD,
        "held, cancel asked": (*_HELD, Cancel(why="First")),
        "held, one answer given": (*_HELD, Give({"a": 1})),
        "held, its worker lost": (*_HELD, Pass("leases")),
        "parked": _PARKED,
        "parked on one question": (*_RUNS, Ask(1, ("a",))),
        "parked, expired": (*_PARKED, Pass("expiry")),
        "answered": (*_PARKED, Give({"a": 1, "b": 2})),
        "released": (*_RUNS, Release(1)),
        "put off": (*_RUNS, PutOff(1)),
        "running after it was put off": (*_RUNS, PutOff(1), Ripen("due"), Take(2, "w0")),
        "between retries": _WAITS,
        "due for a retry": (*_WAITS, Ripen("due"), Pass("unsent")),
        "running a retry": (*_WAITS, Ripen("due"), Take(2, "w")),
        "sleeping": _SLEEPS,
        "sleeping for long": (*_RUNS, Sleep(1, (("sleep#1", 5_000_000, 0),))),
        "due to wake": (*_SLEEPS, *_WAKES),
        "parked, with a timer": _BOTH,
        "parked, its timer due": (*_BOTH, *_WAKES),
        "running with open questions": (*_BOTH, *_WAKES, Take(2, "w")),
        "queued with open questions": (*_BOTH, *_WAKES, Take(2, "w"), Release(2)),
        "parked, with limits": _LIMITED,
        "parked, one limit over": (*_LIMITED, RunOut("a")),
        "parked, its limits over": (*_LIMITED, RunOut("a"), RunOut("b")),
        "parked, a limit over that fails it": (*_RUNS, Ask(1, ("a", "b"), limit="fail"), RunOut("b")),
        "parked, answered after its limit": (*_LIMITED, RunOut("a"), Give({"a": 1, "b": 2})),
        "parked, looked at too early": (*_LIMITED, Give({"a": 1}), ComeEarly()),
        "held, its limits over": (*_HELD_LIMITED, RunOut("a"), RunOut("b")),
        "held, cancel asked and its limit over": (*_HELD_LIMITED, Cancel(why="First"), RunOut("a")),
        "held, its worker lost and its limit over": (*_HELD_LIMITED, RunOut("a"), Pass("leases")),
        "running, with open questions and their limits over": (
            *(*_RUNS, Sleep(1, hold=True), Ask(1, ("a", "b"), limit="cancel")),
            *(*_WAKES, Take(2, "w"), RunOut("a"), RunOut("b")),
        ),
        "running, with a folder": (*_RUNS, Reserve(1)),
        "running, with files": (*_WRITES, Keep(1, "b.csv", "3")),
        "running, with files, expired": (*_WRITES, Pass("expiry")),
        "parked, with files": (*_WRITES, Ask(1, ("a", "b"))),
        "running again, with files": (*_WRITES, Release(1), Take(2, "w")),
        "completed, with files": (*_WRITES, Finish(1)),
        "completed": (*_RUNS, Finish(1)),
        "cancelled": (Cancel(),),
        "failed": (*_RUNS, Finish(1, Status.FAILED, "No")),
    }
)
"""Scene -> moves. Each holds for any `Terms` with at least one retry and a ttl."""

TRANSITIONS: Final = MappingProxyType[str, Callable[[Life, int], Move]](
    {
        "create": lambda life, n: CreateAgain(),
        "claim": lambda life, n: Take(life.token + 1, f"w{n}"),
        "claim again": lambda life, n: Take(life.token, life.worker or "w"),
        "look": lambda life, n: Take(life.token + 1, f"w{n}", life.look or 1),
        "renew": lambda life, n: Renew(life.token),
        "progress": lambda life, n: Tell(life.token, f"At {n}", n + 0.5),
        "note": lambda life, n: Say(life.token, str(n)),
        "ask": lambda life, n: Ask(life.token, ("c",)),
        "ask the same": lambda life, n: Ask(life.token, ("a", "b")),
        "ask again": lambda life, n: Ask(life.token, ("a", f"d{n}"), text=f"Sure of {n}?"),
        "ask and hold": lambda life, n: Ask(life.token, ("c", f"d{n}"), hold=True),
        "sleep": lambda life, n: Sleep(life.token, (("sleep#1", 500_000, 0), (f"sleep#{n + 2}", 600_000, 0))),
        "sleep and hold": lambda life, n: Sleep(life.token, ((f"sleep#{n + 2}", 5_000_000, 0),), hold=True),
        "sleep until the past": lambda life, n: Sleep(life.token, (("sleep#9", None, 1),)),
        "park": lambda life, n: Park(life.token),
        "answer": lambda life, n: Give({"a": n, "b": n}),
        "answer one": lambda life, n: Give({"ab"[n % 2]: n}),
        "cancel": lambda life, n: Cancel(OWNER, f"Caller {n}"),
        "operator's cancel": lambda life, n: Cancel(None, f"Operator {n}"),
        "reserve": lambda life, n: Reserve(life.token),
        "artifact": lambda life, n: _keep(life, "a.csv", "1,2", n),
        "another artifact": lambda life, n: _keep(life, f"{n}.csv", str(n), n),
        "other bytes": lambda life, n: _keep(life, "a.csv", f"{n},{n}", n),
        "step": lambda life, n: Step(life.token, str(n)),
        "complete": lambda life, n: Finish(life.token, Status.COMPLETED, f"By {n}"),
        "fail": lambda life, n: Finish(life.token, Status.FAILED, f"By {n}"),
        "retry": lambda life, n: TryLater(life.token, f"Busy {n}"),
        "defer": lambda life, n: PutOff(life.token),
        "release": lambda life, n: Release(life.token),
        "reap": lambda life, n: Reap(),
    }
)
"""Name -> what writer `n` does to a task that stands so. Writers differ where they can: no two may look alike."""
