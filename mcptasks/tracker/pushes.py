"""Hears from servers that push which tasks have changed, and makes these due at once. One stream per server.

A push is a hint to look, never the truth: the poll that follows says what is stored. Where it is lost, the next poll by
the server's pace finds the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from mcptasks.errors import ConfigurationError, StoreUnavailable
from mcptasks.tracker.intervals import after_error
from mcptasks.tracker.limits import cut
from mcptasks.tracker.model import Tracked
from mcptasks.tracker.remote import (
    ProtocolBroken,
    PushUnavailable,
    RemoteRefused,
    RemoteStatus,
    RemoteUnavailable,
    Snapshot,
)
from mcptasks.tracker.store.store import TrackStore
from mcptasks.tracker.submitting import DriverSource

log: Final = logging.getLogger("mcptasks.tracker")

#: Tasks of one server that are listened to from one process; the others are polled.
FOLLOWED_MAX: Final = 1_000
#: At least so long between two subscriptions, of which each names all tasks anew.
_AGAIN_S: Final = 5.0
#: A server that has no push is asked again after this long.
_NONE_S: Final = 600.0
#: Of a task that says another message and nothing else, at least so long between two looks.
_MESSAGE_S: Final = 5.0


class _Word(NamedTuple):
    """What a task was last heard to say, as far as a look would find another state."""

    status: str
    keys: frozenset[str]
    message: str


@dataclass
class _Followed:
    task_id: str
    word: _Word
    #: By the loop's clock, when it was last made due.
    at: float = -inf


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
        stream.follow(task.handle, task)

    def leave(self, task: Tracked) -> None:
        """The task has ended."""
        if task.handle is not None and (stream := self._streams.get(task.server)) is not None:
            stream.leave(task.handle)

    async def aclose(self) -> None:
        """All streams are closed."""
        tasks = [stream.task for stream in self._streams.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Stream:
    def __init__(self, server: str, store: TrackStore, servers: DriverSource) -> None:
        self._server, self._store, self._servers = server, store, servers
        #: By handle, the newest last.
        self._followed: dict[str, _Followed] = {}
        self._more = asyncio.Event()
        self._failures = 0
        self.task = asyncio.ensure_future(self._listening())

    def follow(self, handle: str, task: Tracked) -> None:
        if handle in self._followed:
            return
        while len(self._followed) >= FOLLOWED_MAX:
            del self._followed[next(iter(self._followed))]
        self._followed[handle] = _Followed(task.task_id, _known(task))
        self._more.set()

    def leave(self, handle: str) -> None:
        self._followed.pop(handle, None)

    async def _listening(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            wait_s = _AGAIN_S
            try:
                await self._hear(list(self._followed))
            except PushUnavailable:
                wait_s = _NONE_S
            except (ConfigurationError, ProtocolBroken, RemoteRefused, RemoteUnavailable) as exc:
                log.info("Server %s tells nothing by itself for now (%s)", self._server, type(exc).__name__)
                self._failures += 1
                retry_after_ms = exc.retry_after_ms if isinstance(exc, RemoteUnavailable) else None
                wait_s = after_error(self._failures, pace_ms=0, retry_after_ms=retry_after_ms) / 1000
            except Exception:  # a bug in a driver: the polls go on without push
                log.exception("Server %s: listening failed", self._server)
                wait_s = _NONE_S
            await asyncio.sleep(wait_s)
            if self._followed:
                self._more.set()

    async def _hear(self, handles: list[str]) -> None:
        """Until more tasks are followed, or the stream breaks."""
        driver = self._servers.driver(self._server)
        hearing = asyncio.ensure_future(self._heed(driver.listen(handles)))
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

    async def _heed(self, told: AsyncGenerator[tuple[str, Snapshot]]) -> None:
        async with aclosing(told):
            async for handle, snapshot in told:
                self._failures = 0
                if (followed := self._followed.get(handle)) is not None:
                    await self._take(handle, followed, snapshot)

    async def _take(self, handle: str, followed: _Followed, snapshot: Snapshot) -> None:
        word, now = _heard(snapshot), asyncio.get_running_loop().time()
        # A subscription tells the state of each of its tasks anew, of a thousand perhaps: what is known is no news.
        if word == followed.word or (word[:2] == followed.word[:2] and now - followed.at < _MESSAGE_S):
            return
        try:
            await self._store.nudge(followed.task_id)
        except StoreUnavailable:
            return  # the next poll finds it
        followed.word, followed.at = word, now
        if snapshot.status.terminal:
            self._followed.pop(handle, None)


def _known(task: Tracked) -> _Word:
    keys = frozenset(task.questions) | frozenset(task.answered)
    status = RemoteStatus.INPUT_REQUIRED if keys else RemoteStatus.WORKING
    return _Word(status, keys, task.message or "")


def _heard(snapshot: Snapshot) -> _Word:
    return _Word(snapshot.status, frozenset(snapshot.questions), cut(snapshot.message or ""))
