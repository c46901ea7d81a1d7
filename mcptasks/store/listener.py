"""What hears of changes in the background, for as long as somebody in this process wants to."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod


class Listener(ABC):
    """One task of the event loop that listens. `_begin` and `_stop_listening` return at once."""

    def __init__(self) -> None:
        self._listener: asyncio.Task[None] | None = None
        #: Listeners that were told to end and have not yet.
        self._leaving = set[asyncio.Task[None]]()

    @abstractmethod
    async def _attempt(self) -> None:
        """Listens while `_listens`; returns, having waited as long as it should, when the connection has broken."""

    @property
    def _listens(self) -> bool:
        """The running task is the one that is to listen."""
        return self._listener is asyncio.current_task()

    def _begin(self) -> None:
        if self._listener is None:
            self._listener = asyncio.get_running_loop().create_task(self._listening())

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()
            self._leaving.add(listener)
            listener.add_done_callback(self._leaving.discard)

    async def _end(self) -> None:
        """Nobody listens any more, and the connection is closed."""
        self._stop_listening()
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _listening(self) -> None:
        # Asked again and again, because a cancellation may get lost: in redis-py, or to an error while closing.
        while self._listens:
            await self._attempt()
