"""What goes on failing: two lines and a few reminders, not a line every two seconds."""

from __future__ import annotations

import logging

import pytest

from mcptasks.observe import trouble
from mcptasks.observe.trouble import REMIND_S, Trouble

FULL = OSError("used memory > 'maxmemory'")
AWAY = OSError("does not answer")


class Clock:
    """Stands in for `time`."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        """The moment."""
        return self.now


def test_its_beginning_its_end_and_a_reminder_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it is tried; another reason is told, but two that take turns are not told at each turn."""
    clock, log = Clock(), logging.getLogger("mcptasks.fleet")
    monkeypatch.setattr(trouble, "time", clock)
    sweep = Trouble(log, "The sweep waits")

    def lines() -> list[str]:
        told = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return told

    sweep.over()
    assert lines() == [], "nothing was wrong"
    for _ in range(10):
        sweep.failed(FULL)
        clock.now += 2
    assert lines() == ["The sweep waits: used memory > 'maxmemory'"]
    for _ in range(10):
        sweep.failed(AWAY)
        sweep.failed(FULL)
    assert lines() == ["The sweep waits (for 20 s now): does not answer"]
    clock.now += REMIND_S
    sweep.failed(FULL)
    sweep.failed(FULL)
    assert lines() == ["The sweep waits (for 620 s now): used memory > 'maxmemory'"]
    sweep.over()
    sweep.over()
    assert lines() == ["The sweep waits: no longer, after 620 s"]
    sweep.failed(FULL)
    assert lines() == ["The sweep waits: used memory > 'maxmemory'"], "that is another one"
