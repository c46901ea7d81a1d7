"""What goes on failing is told when it begins, now and then, and when it is over; not each time it is tried."""

from __future__ import annotations

import logging
import time
from typing import Final

#: How long something has failed until that is told again.
REMIND_S: Final = 600.0


class Trouble:
    """One thing that is tried again and again. Not for several threads."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        """`what` says what does not go on, as the beginning of a line: "The sweep waits for the store"."""
        self._log, self._what = log, what
        self._began = self._told = 0.0
        #: As it was told; empty: all is well.
        self._known: set[str] = set()

    def failed(self, why: Exception) -> None:
        """It has failed once more. In the log, if that is news: it began, for another reason, or ten minutes ago."""
        now, text = time.monotonic(), str(why)
        if not self._known:
            self._began = now
        elif text in self._known and now - self._told < REMIND_S:
            return
        since = f" (for {now - self._began:.0f} s now)" if self._known else ""
        self._known.add(text)
        self._told = now
        self._log.warning("%s%s: %s", self._what, since, text)

    def over(self) -> None:
        """It has worked. In the log, if it had failed before."""
        if self._known:
            self._known.clear()
            self._log.warning("%s: no longer, after %.0f s", self._what, time.monotonic() - self._began)
