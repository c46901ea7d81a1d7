"""What a worker's main process tells its children when it goes down: first take nothing new, later let go."""

from __future__ import annotations

import logging
import mmap
import os
import threading
from typing import Final

log: Final = logging.getLogger("mcptasks.fleet")

_DRAINING, _LETTING_GO = 1, 2

#: How often a keeper looks. The flag is a byte in memory, so looking costs nothing.
LOOK_S: Final = 0.1

#: What a cold stop leaves the runs that can be stopped, to give their claims back.
_COLD_S: Final = 3.0


class Shutdown:
    """One byte that a worker's main process and its prefork children share. Made before the fork."""

    def __init__(self) -> None:
        self._state = mmap.mmap(-1, 1)

    def begin(self, grace_ms: int) -> None:
        """No run is claimed any more; after the grace the runs that are left are let go."""
        self._state[0] = max(self._state[0], _DRAINING)
        timer = threading.Timer(grace_ms / 1000, self._let_go)
        timer.daemon = True
        timer.start()

    @property
    def draining(self) -> bool:
        """Nothing new is to be claimed."""
        return self._state[0] >= _DRAINING

    @property
    def letting_go(self) -> bool:
        """Running runs are to stop and give their claims back."""
        return self._state[0] >= _LETTING_GO

    def end_cold(self) -> None:
        """The runs are let go now, and this process ends within three seconds, whatever they do."""
        self.begin(0)
        timer = threading.Timer(_COLD_S, _end)
        timer.daemon = True
        timer.start()

    def _let_go(self) -> None:
        self._state[0] = _LETTING_GO


def _end() -> None:
    log.warning("A tool does not stop; this worker ends without it, and its task runs again when its lease is over")
    logging.shutdown()
    os._exit(1)
