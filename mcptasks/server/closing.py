"""Ends the requests that have no end of their own when their server goes down, or it would wait for them for ever."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Final

#: How often it is looked whether the server was told to end, while there are such requests.
_LOOK_S: Final = 0.25


class Closing:
    """The open streams and waiting calls of one server.

    Under uvicorn (`mcptasks serve`, `mcp.run`, `uvicorn`) they end by themselves once it was told to; under another
    server somebody has to call `begin`.
    """

    def __init__(self) -> None:
        #: The server goes down.
        self.begun = False
        self._ends = set[Callable[[], None]]()
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Every such request was told to end, and so is each that begins from now on."""
        self.begun = True
        for end in tuple(self._ends):
            end()

    def add(self, end: Callable[[], None]) -> None:
        """`end` is called when the server goes down, at once if it does already."""
        self._ends.add(end)
        if self.begun:
            end()
        elif self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    def discard(self, end: Callable[[], None]) -> None:
        """`end` is not called any more."""
        self._ends.discard(end)

    async def _watch(self) -> None:
        while self._ends and not self.begun:
            if told_to_end():
                self.begin()
            await asyncio.sleep(_LOOK_S)


def told_to_end() -> bool:
    """uvicorn was told to end. It says so to nobody: the lifespan's end comes after that of the last request."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True
