"""Ends the requests that have no end of their own when their server goes down, or it would wait for them for ever."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from sse_starlette.sse import AppStatus

#: How often it is looked whether the server was told to end, while there are such requests. Also how long an answer has
#: to reach its stream.
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
        with _streams.kept_open():
            while self._ends:
                if not self.begun and told_to_end():
                    self.begin()
                await asyncio.sleep(_LOOK_S)
            if self.begun:
                # The last to end has its answer still to send.
                await asyncio.sleep(_LOOK_S)


class _Streams:
    """The event streams of the process. When uvicorn is told to end, sse-starlette cuts them within half a second."""

    def __init__(self) -> None:
        self._lock, self._keepers, self._cut_by_itself = threading.Lock(), 0, True

    @contextmanager
    def kept_open(self) -> Generator[None]:
        """Inside the block it cuts none, so that all answers come through; afterwards as before."""
        with self._lock:
            if self._keepers == 0:
                self._cut_by_itself = AppStatus.enable_automatic_graceful_drain
                AppStatus.disable_automatic_graceful_drain()
            self._keepers += 1
        try:
            yield
        finally:
            with self._lock:
                self._keepers -= 1
                if self._keepers == 0 and self._cut_by_itself:
                    AppStatus.enable_automatic_graceful_drain_mode()


#: One per process, as sse-starlette's switch is.
_streams: Final = _Streams()


def told_to_end() -> bool:
    """uvicorn was told to end. It says so to nobody: the lifespan's end comes after that of the last request."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True
