"""`retry=`: an exact list of delays; `fixed` and `exponential` only write such lists."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcptasks import exponential, fixed
from mcptasks.errors import ConfigurationError
from mcptasks.policy import make_policy
from tests.requirements import covers


@covers("N4")
def test_a_list_is_kept_as_it_was_written() -> None:
    """N4: an exact list of delays, in whatever spelling durations have."""
    policy = make_policy(retry=[1, "5s", timedelta(minutes=1), "1h30m", 0.25])
    assert policy.retry_ms == (1_000, 5_000, 60_000, 5_400_000, 250)


def test_without_a_list_there_are_no_retries() -> None:
    """The first wish fails the task."""
    assert make_policy().retry_ms == ()
    assert make_policy(retry=[]).retry_ms == ()


@pytest.mark.parametrize("delay", [0, -1, "soon", 0.0001], ids=str)
def test_a_delay_that_is_none_is_refused_where_it_is_written(delay: float | str) -> None:
    """At import of the server, where the author sees it."""
    with pytest.raises(ConfigurationError, match="is not a"):
        make_policy(retry=[1, delay])


@covers("N4")
def test_fixed_is_the_same_delay_so_often() -> None:
    """N4: helpers expand to the same kind of list."""
    assert fixed("5s", 3) == [5, 5, 5]
    assert fixed(timedelta(milliseconds=250), 2) == [0.25, 0.25]
    assert fixed(1, 0) == []
    assert make_policy(retry=fixed("2m", 2)).retry_ms == (120_000, 120_000)


@covers("N4")
@pytest.mark.parametrize(
    ("delays", "ms"),
    [
        (exponential(1, 5), (1_000, 2_000, 4_000, 8_000, 16_000)),
        (exponential("500ms", 3, factor=3), (500, 1_500, 4_500)),
        (exponential(1, 4, factor=10, longest="1m"), (1_000, 10_000, 60_000, 60_000)),
        (exponential("30m", 3), (1_800_000, 3_600_000, 3_600_000)),
        (exponential("2h", 2), (3_600_000, 3_600_000)),
        (exponential(8, 3, factor=0.5), (8_000, 4_000, 2_000)),
        (exponential(2, 3, factor=1), (2_000, 2_000, 2_000)),
        (exponential(1, 0), ()),
    ],
    ids=str,
)
def test_exponential_grows_by_its_factor_up_to_the_longest(delays: list[float], ms: tuple[int, ...]) -> None:
    """N4: each `factor` times the one before, none over `longest`."""
    assert make_policy(retry=delays).retry_ms == ms


@given(st.floats(0.001, 3_600), st.integers(0, 2_000), st.floats(1, 10), st.floats(1, 86_400))
def test_no_delay_is_over_the_longest_and_none_goes_back(
    first: float, times: int, factor: float, longest: float
) -> None:
    """However many: a list of a thousand must not overflow on the way to its cap."""
    delays = exponential(first, times, factor=factor, longest=longest)
    assert len(delays) == times
    assert delays == sorted(delays)
    assert all(math.isfinite(delay) and delay <= round(longest * 1000) / 1000 for delay in delays)
