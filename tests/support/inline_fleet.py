"""A fleet in the test's own event loop: real store, real runs, real lease keeper; only Celery is missing.

Messages wait in a list until the test delivers, drops or doubles them, so every order of events can be written down.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from mcp.server.mcpserver import MCPServer

from mcptasks.model import Hint
from mcptasks.runtime.watchdog import Stop
from mcptasks.settings import Settings
from mcptasks.testing.worker import Worker


class InlineFleet:
    """The messages that wait, and the worker that is given them. It is the servers' `Dispatcher`."""

    def __init__(self) -> None:
        #: Not yet delivered, oldest first.
        self.messages: list[Hint] = []
        #: Re-checks of parked tasks; nothing delivers them by itself, as if their countdowns never ended.
        self.rechecks: list[Hint] = []
        self._worker: Worker | None = None

    def send(self, hint: Hint) -> None:
        """The message waits."""
        (self.rechecks if hint.countdown_ms else self.messages).append(hint)

    def envelope(self, hint: Hint) -> None:
        """No message goes along with a transition: the test is to see each one."""

    @asynccontextmanager
    async def working(self, settings: Settings, mcp: MCPServer) -> AsyncGenerator[None]:
        """Inside the block messages can be delivered: one worker process runs, with the server's lifespan entered."""
        self._worker = Worker(settings, mcp, dispatcher=self)
        try:
            async with self._worker.working():
                yield
        finally:
            self._worker = None

    def begin(self, message: Hint | None = None) -> asyncio.Task[str]:
        """The worker has the message, or the oldest that waits, and works on it in the background."""
        return self._at_work.begin(self.messages.pop(0) if message is None else message)

    async def deliver(self, message: Hint | None = None) -> str:
        """The message, or the oldest that waits, was worked on; the word that monitors would see."""
        async with asyncio.timeout(60):
            return await self.begin(message)

    def told_to_stop(self, task_id: str) -> bool:
        """The task's first run is under way and has heard that it is to stop."""
        run = self._at_work.keeper.find(task_id, 1)
        return run is not None and run.interrupt.requested

    def shut_down(self, task_id: str) -> None:
        """The task's first run, which is under way, is told that its worker goes down."""
        run = self._at_work.keeper.find(task_id, 1)
        assert run is not None
        run.interrupt.request(Stop.SHUTDOWN)

    async def settle(self) -> None:
        """No message waits, those included that the delivered ones brought up."""
        while self.messages:
            await self.deliver()

    @asynccontextmanager
    async def delivering(self) -> AsyncGenerator[None]:
        """Inside the block every message is delivered as soon as it is there, as an idle fleet would."""
        pump = asyncio.get_running_loop().create_task(self._pump())
        try:
            yield
        finally:
            pump.cancel()
            with suppress(asyncio.CancelledError):
                await pump

    async def _pump(self) -> None:
        while True:
            while self.messages:
                self.begin()
            await asyncio.sleep(0.002)

    async def sweep(self) -> None:
        """The fleet's sweeper has made one round."""
        await self._at_work.sweep()

    @property
    def _at_work(self) -> Worker:
        assert self._worker is not None, "no worker runs"
        return self._worker
