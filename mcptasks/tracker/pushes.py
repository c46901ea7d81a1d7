"""Hears from servers that push which tasks have changed, and makes these due at once. One stream per server.

A push is a hint to look, never the truth: the poll that follows says what is stored. Where it is lost, the next poll by
the server's pace finds the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Final

from mcptasks.errors import ConfigurationError, StoreUnavailable
from mcptasks.tracker.model import Tracked
from mcptasks.tracker.remote import ProtocolBroken, PushUnavailable, RemoteRefused, RemoteUnavailable, Snapshot
from mcptasks.tracker.store.store import TrackStore
from mcptasks.tracker.submitting import DriverSource

log: Final = logging.getLogger("mcptasks.tracker")

#: Tasks of one server that are listened to from one process; the others are polled.
FOLLOWED_MAX: Final = 1_000
#: After a break, and at least so long between two subscriptions, of which each names all tasks anew.
_AGAIN_S: Final = 5.0
#: A server that has no push is asked again after this long.
_NONE_S: Final = 600.0


class Pushes:
    """The streams of one event loop."""

    def __init__(self, store: TrackStore, servers: DriverSource) -> None:
        self._store, self._servers = store, servers
        self._streams: dict[str, _Stream] = {}

    def follow(self, task: Tracked) -> None:
        """What the server tells of the task makes it due; the newest thousand of each server are followed."""
        if task.handle is None:
            return
        stream = self._streams.get(task.server)
        if stream is None:
            stream = self._streams[task.server] = _Stream(task.server, self._store, self._servers)
        stream.follow(task.handle, task.task_id)

    async def aclose(self) -> None:
        """All streams are closed."""
        tasks = [stream.task for stream in self._streams.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Stream:
    def __init__(self, server: str, store: TrackStore, servers: DriverSource) -> None:
        self._server, self._store, self._servers = server, store, servers
        #: Handle -> task, the newest last.
        self._followed: dict[str, str] = {}
        self._more = asyncio.Event()
        self.task = asyncio.ensure_future(self._listening())

    def follow(self, handle: str, task_id: str) -> None:
        if handle in self._followed:
            return
        while len(self._followed) >= FOLLOWED_MAX:
            del self._followed[next(iter(self._followed))]
        self._followed[handle] = task_id
        self._more.set()

    async def _listening(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            wait_s = _AGAIN_S
            try:
                await self._hear(dict(self._followed))
            except PushUnavailable:
                wait_s = _NONE_S
            except (ConfigurationError, ProtocolBroken, RemoteRefused, RemoteUnavailable) as exc:
                log.info("Server %s tells nothing by itself for now (%s)", self._server, type(exc).__name__)
                self._more.set()
            except Exception:  # a bug in a driver: the polls go on without push
                log.exception("Server %s: listening failed", self._server)
                wait_s = _NONE_S
            await asyncio.sleep(wait_s)

    async def _hear(self, followed: Mapping[str, str]) -> None:
        """Until more tasks are followed, or the stream breaks."""
        driver = self._servers.driver(self._server)
        hearing = asyncio.ensure_future(self._heed(driver.listen(list(followed)), followed))
        more = asyncio.ensure_future(self._wait_for_more())
        try:
            await asyncio.wait([hearing, more], return_when=asyncio.FIRST_COMPLETED)
            if hearing.done():
                await hearing
        finally:
            for task in (hearing, more):
                task.cancel()
            await asyncio.gather(hearing, more, return_exceptions=True)

    async def _wait_for_more(self) -> None:
        # Not at once: of many that begin together, one subscription names all.
        await asyncio.sleep(_AGAIN_S)
        await self._more.wait()

    async def _heed(self, told: AsyncIterator[tuple[str, Snapshot]], followed: Mapping[str, str]) -> None:
        async for handle, snapshot in told:
            task_id = followed.get(handle)
            if task_id is None:
                continue
            try:
                await self._store.nudge(task_id)
            except StoreUnavailable:
                continue  # the next poll finds it
            if snapshot.status.terminal:
                self._followed.pop(handle, None)
