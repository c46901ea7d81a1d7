"""A daemon thread with an event loop of its own, for upkeep that must not depend on anyone else's loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

log: Final = logging.getLogger("mcptasks.fleet")

_JOIN_S: Final = 5.0
_RESTART_S: Final = 1.0


class LoopThread:
    """Runs coroutines for ever on one thread. One that raises is logged and begun again: upkeep must go on."""

    def __init__(self, name: str, jobs: Sequence[Callable[[], Awaitable[None]]]) -> None:
        self._name = name
        self._jobs = jobs
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()

    def start(self) -> None:
        """The thread runs."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name=self._name, daemon=True)
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        """The thread has ended, its coroutines cancelled; or it did not within five seconds and is left behind."""
        if self._thread is not None and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_JOIN_S)

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        tasks = [asyncio.ensure_future(self._forever(job)) for job in self._jobs]
        self._ready.set()
        await self._stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _forever(self, job: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await job()
            except Exception:  # a bug in one job must not end the thread
                log.exception("%s failed and begins again", self._name)
            await asyncio.sleep(_RESTART_S)
