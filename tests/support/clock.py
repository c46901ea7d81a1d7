"""The store's own clock, the only one that counts."""

from __future__ import annotations

from typing import Any


class StoreClock:
    """What the clock of the Redis server behind `raw` shows."""

    raw: Any

    def now_ms(self) -> int:
        """The moment, in ms since the epoch."""
        seconds, micros = self.raw.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def tick(self) -> None:
        """What is made from now on is newer than all before: of one millisecond, lists have the ids' order."""
        before = self.now_ms()
        while self.now_ms() <= before:
            pass
