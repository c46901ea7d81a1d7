"""How often a scrape looks at the store: a look costs it something for every unfinished task."""

from __future__ import annotations

from typing import Any

import pytest

from mcptasks.observe import gauges
from mcptasks.observe.gauges import StoreGauges
from mcptasks.settings import Settings


class Clock:
    """Stands in for `time`, and for a look that takes a while."""

    def __init__(self) -> None:
        self.now, self.takes_s, self.looks = 1_000.0, 0.1, 0
        self.answer: Any = "levels"

    def monotonic(self) -> float:
        """The moment."""
        return self.now

    async def levels(self, _: Settings) -> Any:
        """The store was looked at."""
        self.looks += 1
        self.now += self.takes_s
        return self.answer


@pytest.mark.parametrize(
    ("takes_s", "answer", "rest_s"), [(0.01, "levels", 5), (1.2, "levels", 60), (4.0, None, 5)], ids=str
)
def test_a_look_that_takes_long_is_followed_by_a_longer_pause(
    monkeypatch: pytest.MonkeyPatch, takes_s: float, answer: Any, rest_s: float
) -> None:
    """Five seconds, or fifty times as long; a store that is away is looked at soon, whatever the time-out was."""
    clock = Clock()
    clock.takes_s, clock.answer = takes_s, answer
    monkeypatch.setattr(gauges, "time", clock)
    monkeypatch.setattr(gauges, "_levels", clock.levels)
    store = StoreGauges(Settings())
    look = store._look  # pyright: ignore[reportPrivateUsage]
    assert look() is look() is answer
    assert clock.looks == 1
    clock.now += rest_s - 0.5
    look()
    assert clock.looks == 1
    clock.now += 1
    look()
    assert clock.looks == 2
