"""How far a task is: what its tool reported last, how fast that moves, and how people read it.

One class for both ends of the wire, and for the store between them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from mcptasks.times import iso, moment

#: What takes longer is no estimate but a rate that says nothing.
_LONGEST_S: Final = 30 * 86_400

#: From so many seconds on an estimate is told in whole ones of the unit.
_UNITS: Final = ((2 * 86_400, 86_400, "days"), (2 * 3_600, 3_600, "h"), (60, 60, "min"))


@dataclass(frozen=True, slots=True)
class Progress:
    """What a tool reported last."""

    done: float
    total: float | None = None
    message: str | None = None
    #: Of `done` per second, while a run works on the task and has reported for long enough to tell; else None.
    rate: float | None = None
    #: When it was reported, in Unix milliseconds by the store's clock; None: nobody says.
    at_ms: int | None = None

    @property
    def fraction(self) -> float | None:
        """From 0 to 1; None where the numbers are no part of a whole."""
        if self.total is None or self.total <= 0 or not 0 <= self.done <= self.total:
            return None
        return self.done / self.total

    @property
    def left_s(self) -> float | None:
        """Seconds that the rest will take at this rate, as of `at_ms`; None where that cannot be told or is done."""
        if self.rate is None or self.rate <= 0 or self.total is None or self.fraction in (None, 1):
            return None
        left_s = (self.total - self.done) / self.rate
        return left_s if left_s <= _LONGEST_S else None

    @property
    def numbers(self) -> str:
        """How far it is, in a few characters."""
        if self.total is None:
            return _number(self.done)
        fraction = self.fraction
        if fraction is None:
            return f"{_number(self.done)} of {_number(self.total)}"
        # Not rounded up: 100 % is when all is done.
        percent = f"{math.floor(fraction * 100)} %"
        return percent if self.total == 100 else f"{_number(self.done)} of {_number(self.total)} ({percent})"

    @property
    def text(self) -> str:
        """What the client reads as `statusMessage`; a tool that counts nothing only has its message there."""
        if not self.message:
            return self.numbers
        return self.message if self.total is None and self.done == 0 else f"{self.message}: {self.numbers}"

    @property
    def estimate(self) -> str:
        """The time that is left, in words to put behind `text`; empty where nobody knows."""
        return "" if (left_s := self.left_s) is None else f"about {_roughly(left_s)} left"

    @classmethod
    def of(
        cls, done: float, total: float | None, text: str | None, *, rate: float | None = None, at_ms: int | None = None
    ) -> Self:
        """The report of these numbers whose `text` this is; another text is taken for its message."""
        numbers = cls(done, total).numbers
        message = None if text is None or text == numbers else text.removesuffix(f": {numbers}")
        return cls(done, total, message, rate, at_ms)

    # -------------------------------------------------------------------------------------------- on the wire

    def told(self, *, working: bool) -> dict[str, Any]:
        """What stands in a task's `_meta`. The rate is of a run that works: `working` says whether one does."""
        found = {
            "progress": self.done,
            "total": self.total,
            "message": self.message or None,
            "ratePerSecond": self.rate if working else None,
            "reportedAt": None if self.at_ms is None else iso(self.at_ms),
        }
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Self | None:
        """The usable part of what a server told; None where that is no progress."""
        done, total, rate = (_finite(told.get(name)) for name in ("progress", "total", "ratePerSecond"))
        if done is None:
            return None
        message, at = told.get("message"), told.get("reportedAt")
        when = moment(at) if isinstance(at, str) else None
        at_ms = None if when is None else round(when.timestamp() * 1000)
        return cls(done, total, message if isinstance(message, str) else None, rate, at_ms)


def _finite(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) <= sys.float_info.max else None


def _number(value: float) -> str:
    return f"{value:,.10g}"


def _roughly(seconds: float) -> str:
    # In steps, so that a message is not another one with each report.
    for least, size, unit in _UNITS:
        if seconds >= least:
            return f"{math.ceil(seconds / size)} {unit}"
    return f"{max(5, math.ceil(seconds / 5) * 5)} s"
