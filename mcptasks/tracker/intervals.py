"""When a tracked task is polled next: from what its server asked for, and from how the last poll went. Pure."""

from __future__ import annotations

import math
import random
from typing import Final, NamedTuple

#: No task is polled more often, whatever its server says.
FLOOR_MS: Final = 1_000
#: No task is polled less often (D2).
CAP_MS: Final = 86_400_000
#: Where the server says nothing, or nothing that means anything.
DEFAULT_MS: Final = 5_000
#: Between two polls of a task that waits for a person (D2): an answer that is given here makes it due at once.
INPUT_MS: Final = 60_000
#: After failed polls the distance doubles from here ...
BACKOFF_MS: Final = 5_000
#: ... to here.
BACKOFF_CAP_MS: Final = 300_000
#: Between attempts to deliver an event, in turn: together longer than a receiver's restart or deploy takes.
DELIVERY_MS: Final = (5_000, 15_000, 45_000, 135_000, 300_000)


class Pace(NamedTuple):
    """How long a server wants to be left alone, and whether that had to be guessed because its hint is junk."""

    ms: int
    junk: bool = False


def pace(hint: object) -> Pace:
    """The hint (milliseconds, as the server wrote it) clamped to 1 s .. 1 day; None is no hint.

    Junk is what is no number, not finite, or negative: a text, a boolean, NaN. A hostile or confused server must make
    neither a tight loop nor a task that is never looked at.
    """
    if hint is None:
        return Pace(DEFAULT_MS)
    if isinstance(hint, bool) or not isinstance(hint, int | float) or not hint >= 0 or hint == math.inf:
        return Pace(DEFAULT_MS, junk=True)
    return Pace(int(min(max(hint, FLOOR_MS), CAP_MS)))


def after_look(pace_ms: int, *, asking: bool) -> int:
    """Milliseconds to the next poll after one that was answered. `asking`: the task waits for a person."""
    return max(pace_ms, INPUT_MS) if asking else pace_ms


def after_error(failures: int, *, pace_ms: int, retry_after_ms: int | None, spread: float | None = None) -> int:
    """Milliseconds from the end of the failed call to the next poll; `failures` in a row, this one included.

    Never sooner than the server's own hint, and as late as it says with Retry-After. `spread` (0..1) takes the place
    of chance: a server that comes back must not be met by all its tasks at once.
    """
    chance = random.random() if spread is None else spread
    longest = min(BACKOFF_CAP_MS, BACKOFF_MS * 2 ** min(failures - 1, 16))
    backoff = int(longest * (0.5 + 0.5 * chance))
    return min(CAP_MS, max(FLOOR_MS, backoff, pace_ms, retry_after_ms or 0))


def after_refusal(failed: int) -> int:
    """Milliseconds to the next attempt to deliver an event, after so many that failed."""
    return DELIVERY_MS[min(failed, len(DELIVERY_MS)) - 1]
