"""A clock that stands still until a test moves it, so that times add up to the millisecond."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any


class MovableClock:
    """The time of one world: of its store, and of the runs in it. It begins with this machine's."""

    def __init__(self) -> None:
        #: Unix milliseconds.
        self.now_ms = time.time_ns() // 1_000_000
        self._alarms: list[_Alarm] = []

    def time(self) -> float:
        """Unix seconds."""
        return self.now_ms / 1000

    def call_later(self, delay: float, callback: Callable[[], Any]) -> _Alarm:
        """The callback is called once the clock has been moved by so many seconds."""
        alarm = _Alarm(self.now_ms + math.ceil(delay * 1000), callback, self._alarms)
        self._alarms.append(alarm)
        return alarm

    def next_ms(self) -> int | None:
        """When the next call is due."""
        return min((alarm.due_ms for alarm in self._alarms), default=None)

    def move_to(self, moment_ms: int) -> None:
        """It is that moment; what was due until then has been called, in order."""
        self.now_ms = max(self.now_ms, moment_ms)
        for alarm in sorted(self._alarms, key=lambda alarm: alarm.due_ms):
            if alarm.due_ms <= self.now_ms:
                alarm.ring()


class _Alarm:
    """One call that is to be made."""

    def __init__(self, due_ms: int, callback: Callable[[], Any], among: list[_Alarm]) -> None:
        self.due_ms = due_ms
        self._callback, self._among = callback, among

    def ring(self) -> None:
        """The call is made, unless it was cancelled meanwhile."""
        if self in self._among:
            self.cancel()
            self._callback()

    def cancel(self) -> None:
        """The call will not be made."""
        if self in self._among:
            self._among.remove(self)
