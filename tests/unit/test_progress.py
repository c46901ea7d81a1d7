"""How far a task is: the text of it, the estimate, and the rate that the estimate is made from."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcptasks.progress import Progress
from mcptasks.runtime.progress import Pace
from tests.requirements import covers

NUMBER = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(40, 120, "Indexing"), "Indexing: 40 of 120 (33 %)"),
        (Progress(40, 120), "40 of 120 (33 %)"),
        (Progress(119.9, 120), "119.9 of 120 (99 %)"),
        (Progress(120, 120, "Indexing"), "Indexing: 120 of 120 (100 %)"),
        (Progress(41.7, 100, "Indexing"), "Indexing: 41 %"),
        (Progress(0, 5, "Indexing"), "Indexing: 0 of 5 (0 %)"),
        (Progress(1_234_567, 5_000_000, "rows"), "rows: 1,234,567 of 5,000,000 (24 %)"),
        (Progress(7, None, "rows"), "rows: 7"),
        (Progress(0, None, "Starting"), "Starting"),
        (Progress(0), "0"),
        (Progress(0, None, ""), "0"),
        # What is no part of a whole has no percentage.
        (Progress(130, 120, "rows"), "rows: 130 of 120"),
        (Progress(-1, 120, "rows"), "rows: -1 of 120"),
        (Progress(3, 0, "rows"), "rows: 3 of 0"),
        (Progress(3, -2, "rows"), "rows: 3 of -2"),
    ],
    ids=str,
)
def test_progress_reads_as_people_say_it(progress: Progress, text: str) -> None:
    """Short, and never a percentage that nobody can believe."""
    assert progress.text == text


@pytest.mark.parametrize(
    "progress",
    [
        Progress(1, 3, "looked around"),
        Progress(0.5, None, "half (1/3)"),
        Progress(2, None, None),
        Progress(2, 4, None),
        Progress(2, 4, "2 of 4"),
        Progress(50, 100, "a: 50 %"),
        Progress(1e6, 1e7, "millions"),
        Progress(0, None, "Starting"),
    ],
    ids=str,
)
def test_progress_is_told_in_one_text_and_read_back_from_it(progress: Progress) -> None:
    """The store keeps the text that `statusMessage` shows; a waiting call relays what the tool reported."""
    assert Progress.of(progress.done, progress.total, progress.text) == progress


def test_another_text_is_taken_for_the_message() -> None:
    """The status may have been set after the last progress."""
    assert Progress.of(1, 2, "waits for a retry") == Progress(1, 2, "waits for a retry")
    assert Progress.of(1, 2, None) == Progress(1, 2, None)


@pytest.mark.parametrize(
    ("left_s", "text"),
    [
        (0.01, "about 5 s left"),
        (5, "about 5 s left"),
        (6, "about 10 s left"),
        (59, "about 60 s left"),
        (60, "about 1 min left"),
        (61, "about 2 min left"),
        (7_199, "about 120 min left"),
        (7_200, "about 2 h left"),
        (172_799, "about 48 h left"),
        (172_800, "about 2 days left"),
        (30 * 86_400, "about 30 days left"),
        (31 * 86_400, ""),
    ],
)
def test_an_estimate_is_rough_and_rounded_up(left_s: float, text: str) -> None:
    """Rough, so that it is not another one with each report; nothing at all where it would be nonsense."""
    assert Progress(0, 1, rate=1 / left_s).estimate == text


@pytest.mark.parametrize(
    "progress",
    [
        Progress(1, 2),
        Progress(1, None, rate=1),
        Progress(2, 2, rate=1),
        Progress(3, 2, rate=1),
        Progress(-1, 2, rate=1),
        Progress(1, 0, rate=1),
        Progress(1, 2, rate=0),
        Progress(1, 2, rate=-1),
        Progress(1, 2, rate=5e-324),
    ],
    ids=str,
)
def test_what_cannot_be_estimated_has_no_estimate(progress: Progress) -> None:
    """No rate, no whole, nothing left, or a rate that no number can hold."""
    assert (progress.left_s, progress.estimate) == (None, "")


@covers("R4")
@given(NUMBER, NUMBER | st.none(), st.text(max_size=9) | st.none(), NUMBER | st.none())
@example(1e308, 1e308, None, 1e-308)
@example(-1e308, 1e308, None, 1e-308)
def test_no_report_is_absurd(done: float, total: float | None, message: str | None, rate: float | None) -> None:
    """Whatever a tool reports: a fraction from 0 to 1, a time that passes, at most 100 %."""
    progress = Progress(done, total, message, rate)
    assert progress.fraction is None or 0 <= progress.fraction <= 1
    assert progress.left_s is None or 0 < progress.left_s < math.inf
    assert all(int(percent) <= 100 for percent in re.findall(r"(\d+) %", progress.numbers))
    assert progress.text


# ------------------------------------------------------------------------------------------------ the rate


def rates(*reports: tuple[float, float]) -> list[float | None]:
    """What each of these reports (when, how far) makes of the rate."""
    pace = Pace()
    return [pace.rate(at_s, done) for at_s, done in reports]


def test_a_rate_takes_a_second_of_reports() -> None:
    """Two reports in a row say nothing."""
    assert rates((5, 0), (5, 10), (5.5, 20), (5.9, 30), (6, 40), (7, 80)) == [None, None, None, None, 40, 40]


def test_a_rate_is_of_late_and_not_of_the_beginning() -> None:
    """A tool that was quick at first and has become slow is not about to be done."""
    fast = [(float(n), 100.0 * n) for n in range(20)]
    slow = [(20.0 + n, 2_000.0 + n) for n in range(20)]
    assert rates(*fast)[-1] == pytest.approx(100)
    assert rates(*fast, *slow)[-1] == pytest.approx(1)


def test_a_tool_that_reports_every_row_is_measured_over_seconds() -> None:
    """Not over its last sixteen rows, which may have been the easy ones."""
    rows = [(n / 1000, float(n)) for n in range(5_000)]
    burst = [(5 + n / 1e6, 5_000.0 + n) for n in range(100)]
    assert rates(*rows, *burst)[-1] == pytest.approx(1_020, rel=0.05)


def test_what_does_not_move_has_no_rate() -> None:
    """The same number again, later; and no division by nought where nothing took any time."""
    assert rates((0, 5), (2, 5), (4, 5)) == [None, None, None]
    assert rates((0, 5), (0, 6)) == [None, None]
