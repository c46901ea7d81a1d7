"""A store that is away is told of once, then now and then, and when it is back."""

from __future__ import annotations

import logging

import pytest

from mcptasks.errors import StoreUnavailable
from mcptasks.tracker import outage
from mcptasks.tracker.outage import Outage


class Clock:
    """Stands in for `time`."""

    now = 1_000.0

    def monotonic(self) -> float:
        """The moment."""
        return self.now


def test_an_outage_is_told_when_it_begins_each_minute_and_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each part of a tracker tries once a second: nobody reads as many lines."""
    clock = Clock()
    monkeypatch.setattr(outage, "time", clock)
    one = Outage("Polls")
    with caplog.at_level(logging.INFO, "mcptasks.tracker"):
        one.back()
        for _ in range(150):
            one.away(StoreUnavailable("away"))
            clock.now += 1
        one.back()
        one.back()
        one.away(StoreUnavailable("away again"))
    waits = "Polls wait for the store: away"
    assert [record.getMessage() for record in caplog.records] == [
        *[waits] * 3,
        "Polls go on: the store is back after 150 s",
        f"{waits} again",
    ]
