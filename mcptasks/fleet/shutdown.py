"""What a worker's main process tells its children when it goes down: first take nothing new, later let go."""

from __future__ import annotations

import mmap
import threading
from typing import Final

_DRAINING, _LETTING_GO = 1, 2

#: How often a keeper looks. The flag is a byte in memory, so looking costs nothing.
LOOK_S: Final = 0.1


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

    def _let_go(self) -> None:
        self._state[0] = _LETTING_GO
