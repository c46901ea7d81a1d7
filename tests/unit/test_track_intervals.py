"""When a tracked task is polled next: hints are clamped, junk is survived, errors back off."""

from __future__ import annotations

import math

import pytest

from mcptasks.tracker.intervals import (
    BACKOFF_CAP_MS,
    CAP_MS,
    DEFAULT_MS,
    FLOOR_MS,
    INPUT_MS,
    Pace,
    after_error,
    after_look,
    after_refusal,
    pace,
)
from tests.requirements import covers

DAY_MS = 86_400_000


@covers("D2", "D04")
@pytest.mark.parametrize(
    ("hint", "ms", "junk"),
    [
        (None, DEFAULT_MS, False),
        (0, FLOOR_MS, False),
        (1, FLOOR_MS, False),
        (500, FLOOR_MS, False),
        (999.9, FLOOR_MS, False),
        (1_000, 1_000, False),
        (1_500.7, 1_500, False),
        (30_000, 30_000, False),
        (10**12, DAY_MS, False),
        (1e20, DAY_MS, False),
        (1e308, DAY_MS, False),
        (10**400, DAY_MS, False),
        (-5, DEFAULT_MS, True),
        (-1, DEFAULT_MS, True),
        (-(10**400), DEFAULT_MS, True),
        (math.nan, DEFAULT_MS, True),
        (math.inf, DEFAULT_MS, True),
        (-math.inf, DEFAULT_MS, True),
        ("abc", DEFAULT_MS, True),
        ("soon", DEFAULT_MS, True),
        ("500", DEFAULT_MS, True),
        (True, DEFAULT_MS, True),
        (False, DEFAULT_MS, True),
        ([], DEFAULT_MS, True),
        ({"ms": 5}, DEFAULT_MS, True),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_a_hint_is_clamped_and_junk_is_the_default(hint: object, ms: int, junk: bool) -> None:
    """No tight loop, no timer that breaks, no task that is never looked at again."""
    assert pace(hint) == Pace(ms, junk)


@covers("D2")
@pytest.mark.parametrize(
    ("pace_ms", "asking", "ms"),
    [(5_000, False, 5_000), (5_000, True, INPUT_MS), (90_000, True, 90_000), (CAP_MS, True, CAP_MS)],
)
def test_a_task_that_waits_for_a_person_is_polled_a_minute_apart_at_least(pace_ms: int, asking: bool, ms: int) -> None:
    """D2; a longer hint of its server stands."""
    assert after_look(pace_ms, asking=asking) == ms


@covers("D2")
def test_errors_back_off_exponentially_to_a_cap() -> None:
    """The distance doubles, whatever chance says, and stays at five minutes, however many there were."""
    longest = [after_error(n, pace_ms=0, retry_after_ms=None, spread=1) for n in range(1, 9)]
    assert longest == [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000]
    assert after_error(10_000, pace_ms=0, retry_after_ms=None, spread=1) == BACKOFF_CAP_MS
    for failures in range(1, 20):
        soonest = after_error(failures, pace_ms=0, retry_after_ms=None, spread=0)
        assert soonest == after_error(failures, pace_ms=0, retry_after_ms=None, spread=1) // 2
        assert soonest <= after_error(failures, pace_ms=0, retry_after_ms=None) <= 2 * soonest


@covers("D04")
@pytest.mark.parametrize(
    ("pace_ms", "retry_after_ms", "ms"),
    [(0, None, 5_000), (30_000, None, 30_000), (0, 3_000, 5_000), (0, 60_000, 60_000), (30_000, 60_000, 60_000)],
)
def test_retry_after_and_the_hint_win_where_they_are_larger(pace_ms: int, retry_after_ms: int | None, ms: int) -> None:
    """A 429 says when; an error is no reason to come sooner than the server asked."""
    assert after_error(1, pace_ms=pace_ms, retry_after_ms=retry_after_ms, spread=1) == ms


def test_retry_after_is_capped_too() -> None:
    """A server that says "in a year" is looked at in a day."""
    assert after_error(1, pace_ms=0, retry_after_ms=10**12) == CAP_MS


@covers("D6")
def test_the_attempts_to_deliver_outlast_a_receiver_that_is_down_for_two_minutes() -> None:
    """Growing gaps; the fifth attempt comes more than two minutes after the first."""
    gaps = [after_refusal(failed) for failed in range(1, 5)]
    assert gaps == sorted(set(gaps))
    assert sum(gaps) > 120_000
    assert after_refusal(100) == after_refusal(5)
