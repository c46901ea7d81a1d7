"""Tells of a store that is away when it goes, now and then, and when it is back."""

from __future__ import annotations

import logging
import time
from typing import Final

log: Final = logging.getLogger("mcptasks.tracker")

#: Between two lines about the same outage: each part of a tracker tries once a second.
_AGAIN_S: Final = 60.0


class Outage:
    """What one part of a tracker has to do with the store."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since: float | None = None
        self._told = 0.0

    def away(self, why: Exception) -> None:
        """It does not answer."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif now - self._told < _AGAIN_S:
            return
        self._told = now
        log.warning("%s wait for the store: %s", self._what, why)

    def back(self) -> None:
        """It has answered."""
        if self._since is not None:
            log.warning("%s go on: the store is back after %.0f s", self._what, time.monotonic() - self._since)
            self._since = None
