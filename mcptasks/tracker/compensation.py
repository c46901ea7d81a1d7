"""Makes good what a submit that failed has begun: remote tasks that nobody would know of are cancelled.

None of it is interrupted by a cancel of the caller, who waits for it a bounded time; then it goes on in the background.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import anyio

from mcptasks.errors import MCPTasksError, StoreUnavailable
from mcptasks.model import label
from mcptasks.tracker.model import End, Intent, Tracked, TrackStatus
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.remote import Accepted, Driver, RemoteGone, RemoteRefused
from mcptasks.tracker.store.store import TrackStore

log: Final = logging.getLogger("mcptasks.tracker")

#: Between attempts, which go on until it is done or these are used up: a quarter of an hour.
_AGAIN_S: Final = (0.2, 1, 3, 10, 30, 60, 120, 240, 480)
_ABANDONED: Final = "Its submitter went away before its handle was stored; its remote task was cancelled"


class Compensation:
    """What one event loop has to make good."""

    def __init__(self, store: TrackStore, options: TrackOptions) -> None:
        self._store, self._options = store, options
        self._background: set[asyncio.Task[None]] = set()

    async def see_to(self, work: Coroutine[Any, Any, Any]) -> None:
        """The work is done, or goes on in the background after a bounded time. No cancel interrupts it."""
        task = self.in_background(work)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.compensation_ms / 1000
        with anyio.CancelScope(shield=True):
            while not task.done() and (left := deadline - loop.time()) > 0:
                try:
                    await asyncio.wait([task], timeout=left)
                except asyncio.CancelledError:  # a second one: the first is on its way out already
                    continue

    async def withdraw(
        self, driver: Driver, task_id: str, sending: asyncio.Task[Tracked], accepted: asyncio.Future[Accepted]
    ) -> None:
        """The caller has gone: what its call started is cancelled, and followed to its end."""
        # First of all, so that whoever resolves the intent after a crash cancels too.
        await _until_done(lambda: self._store.cancel(task_id, _ABANDONED), "cancel", task_id, attempts=1)
        await asyncio.wait([sending])
        failure = sending.exception()
        if isinstance(failure, StoreUnavailable) and accepted.done():
            await self.compensate(driver, task_id, accepted.result().handle, TrackStatus.CANCELLED)
        elif failure is None and not (task := sending.result()).status.terminal and task.handle is not None:
            await self.cancel_remote(driver, task_id, task.handle)
            await _until_done(lambda: self._store.cancel(task_id, _ABANDONED), "cancel", task_id)

    async def take_back(self, intent: Intent, storing: asyncio.Task[str]) -> None:
        """The caller has gone before his call was sent: nothing is left of an intent that he has stored."""
        await asyncio.wait([storing])
        failure = storing.exception()
        if failure is None and storing.result() == "INTENDED":
            await _until_done(lambda: self._store.retract(intent.task_id), "retract", intent.task_id)
        elif isinstance(failure, StoreUnavailable) and not intent.repeatable:
            await self.forget(intent.task_id)

    async def compensate(self, driver: Driver, task_id: str, handle: str | None, status: TrackStatus) -> None:
        """The remote task is cancelled, and the intent, which never got its handle, has ended so."""
        if handle is not None and not await self.cancel_remote(driver, task_id, handle):
            return  # the intent stands, for the fleet to resolve
        await _until_done(lambda: self._store.abandon(task_id, status, End.ABANDONED, _ABANDONED), "abandon", task_id)

    async def cancel_remote(self, driver: Driver, task_id: str, handle: str) -> bool:
        """The server was told to cancel its task. False: it refused, or did not take it for a quarter of an hour."""

        async def cancel() -> None:
            try:
                async with asyncio.timeout(self._options.call_ms / 1000):
                    await driver.cancel(handle)
            except RemoteGone:
                pass

        return await _until_done(cancel, "cancel on its server", task_id)

    async def forget(self, task_id: str) -> None:
        """The intent, if it was stored at all, has ended: nobody sends what its caller was told has failed."""
        why = "The store did not confirm its intent; it was not sent"
        await _until_done(
            lambda: self._store.abandon(task_id, TrackStatus.FAILED, End.ABANDONED, why), "abandon", task_id
        )

    def in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        """The work goes on by itself."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._seen_to)
        return task

    def _seen_to(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.error("What a failed submit had started could not be cancelled: %s", type(exc).__name__)

    async def aclose(self) -> None:
        """What goes on in the background is done, or is left to the fleet after a bounded time."""
        if self._background:
            _, left = await asyncio.wait(self._background, timeout=self._options.compensation_ms / 1000)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)


async def _until_done(
    work: Callable[[], Awaitable[object]], what: str, task_id: str, *, attempts: int = len(_AGAIN_S)
) -> bool:
    """The work has succeeded; False: it was refused, or the attempts are used up."""
    for wait_s in _AGAIN_S[:attempts]:
        try:
            await work()
        except RemoteRefused as exc:
            log.warning("Task %s: %s was refused (%s)", label(task_id), what, type(exc).__name__)
            return False
        except (MCPTasksError, TimeoutError) as exc:
            log.warning("Task %s: %s failed (%s), and is tried again", label(task_id), what, type(exc).__name__)
            await asyncio.sleep(wait_s)
        else:
            return True
    return False
