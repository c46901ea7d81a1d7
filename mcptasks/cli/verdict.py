"""What a check of `mcptasks doctor` comes to, and how it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

#: Unit, its size, and the shortest duration that is told in it, all in milliseconds.
_UNITS: Final = (
    ("days", 86_400_000, 2 * 86_400_000),
    ("h", 3_600_000, 2 * 3_600_000),
    ("min", 60_000, 2 * 60_000),
    ("s", 1_000, 1_000),
    ("ms", 1, 0),
)


class Status(StrEnum):
    """The verdict of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    #: It could not be looked at.
    SKIPPED = "skipped"


def printable(text: str) -> str:
    """The text, lines as they are, without anything that a terminal would obey: others wrote parts of it."""
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report: the verdict, what was found, and what to do about it ("" when nothing is to be done)."""

    check: str
    status: Status
    found: str
    advice: str = ""

    def as_json(self) -> dict[str, str]:
        """The check for machines."""
        return {name: str(value) for name, value in asdict(self).items()}


def exit_code(checks: Sequence[Check], *, strict: bool) -> int:
    """1 when a check failed, or when one warned and `strict`; else 0."""
    bad = {Status.FAIL, Status.WARN} if strict else {Status.FAIL}
    return int(any(check.status in bad for check in checks))


def span(ms: float) -> str:
    """A duration for people: "0.3 ms", "5 s", "12 min", "3 h", "2 days"."""
    unit, size = next((unit, size) for unit, size, least in _UNITS if ms >= least)
    value = ms / size
    return f"{round(value, 0 if value >= 10 else 1):g} {unit}"
