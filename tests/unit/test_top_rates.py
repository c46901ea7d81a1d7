"""The rates of `mcptasks top`, from two looks at the fleet."""

from __future__ import annotations

import pytest

from mcptasks.cli.top import Look, Rates
from mcptasks.model import Status
from mcptasks.store.lists import Counts


def look(at_s: float, queued: int, completed: int, failed: int = 0) -> Look:
    """So many tasks at that second."""
    numbers = dict.fromkeys(Status, 0) | {
        Status.QUEUED: queued,
        Status.COMPLETED: completed,
        Status.FAILED: failed,
    }
    return Look(now_ms=round(at_s * 1000), counts=Counts(numbers, {}, 0), workers={}, oldest=None, closed=None)


@pytest.mark.parametrize(
    ("before", "after", "rates"),
    [
        (look(10, 3, 5), look(12, 3, 5), Rates(0, 0)),
        (look(10, 3, 5), look(12, 7, 5), Rates(2, 0)),
        (look(10, 3, 5), look(12, 1, 6, 1), Rates(0, 1)),
        (look(10, 3, 5), look(12, 4, 8, 2), Rates(3, 2.5)),
        # Ended ones were removed: no rate is below nought.
        (look(10, 3, 500), look(12, 3, 5), Rates(0, 0)),
        (look(10, 3, 5), look(10, 3, 5), Rates(0, 0)),
    ],
    ids=str,
)
def test_what_was_created_and_what_ended_between_two_looks(before: Look, after: Look, rates: Rates) -> None:
    """What was created is unfinished or has ended."""
    assert Rates.between(before, after) == rates
