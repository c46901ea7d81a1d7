"""Hears which tasks have changed, over one connection for all the tasks that this process follows.

Every transition that a client can see publishes the record's new revision on a channel that has the record's own name
(`touch` in prelude.lua). So the store sends a process just the changes it follows, and a follower is only ever told to
look: what it then reads is the newest state, however many changes it missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from mcptasks.settings import Settings
from mcptasks.store.connection import Connection, address
from mcptasks.store.keys import Keys
from mcptasks.store.listener import Listener

log: Final = logging.getLogger("mcptasks.store")

#: A silent connection is asked for a sign of life after this long, and taken for dead after as long again.
_PROBE_S: Final = 5.0
#: Between two attempts to connect while the store is away.
_AGAIN_S: Final = 1.0


class Change(NamedTuple):
    """A task is to be looked at."""

    task_id: str
    #: The record has this revision or a later one; None: it may have any.
    revision: int | None = None
    #: Only the status message has changed, so the look may wait a little.
    progress: bool = False


Hear = Callable[[Change], None]


@dataclass
class _Followed:
    task_id: str
    ears: set[Hear] = field(default_factory=set[Hear])


class Changes(Listener):
    """The tasks that are followed in this process. The connection lives as long as there are any.

    `follow` and `leave` return at once and may only be called on one event loop. A follower hears of every change that
    comes after its first `Change`, which says that the task is heard from now on: read it then, and nothing is missed.
    After a break of the connection that first change is told again.
    """

    def __init__(self, settings: Settings, keys: Keys, connection: Connection) -> None:
        super().__init__()
        self._settings, self._keys, self._connection = settings, keys, connection
        #: By channel.
        self._followed: dict[str, _Followed] = {}
        #: The channels of the connection that is open, or was last; one too many costs a look too many.
        self._subscribed: set[str] = set()
        #: Channels that may have to be subscribed to or left.
        self._stirred: set[str] = set()
        self._stir = asyncio.Event()
        #: The connection that is open.
        self._line: PubSub | None = None

    def follow(self, task_ids: Iterable[str], hear: Hear) -> None:
        """From its first `Change` of a task on, `hear` is called for every one; it must not raise or wait."""
        for task_id in task_ids:
            channel = self._keys.task(task_id)
            self._followed.setdefault(channel, _Followed(task_id)).ears.add(hear)
            if channel in self._subscribed:
                hear(Change(task_id))
            self._stirred.add(channel)
        self._stir.set()
        if self._followed:
            self._begin()

    def leave(self, task_ids: Iterable[str], hear: Hear) -> None:
        """`hear` is not called for these tasks any more."""
        for task_id in task_ids:
            channel = self._keys.task(task_id)
            if (followed := self._followed.get(channel)) is not None:
                followed.ears.discard(hear)
                if not followed.ears:
                    del self._followed[channel]
                    self._stirred.add(channel)
        self._stir.set()
        if not self._followed:
            self._stop_listening()

    async def aclose(self) -> None:
        """Nobody follows anything, and the connection is closed."""
        self._followed.clear()
        await self._end()

    async def _attempt(self) -> None:
        if not await self._hear():
            await asyncio.sleep(_AGAIN_S)

    async def _hear(self) -> bool:
        """The connection has broken, or nobody follows anything; whether anything had come over it."""
        heard = quiet = False
        try:
            async with self._connection.blocking_client(retries=0) as client, client.pubsub() as line:
                self._line, self._subscribed, self._stirred = line, set(self._followed), set()
                await line.subscribe(*self._subscribed)
                writer = asyncio.get_running_loop().create_task(self._writing(line))
                try:
                    while self._listens:
                        message = await line.get_message(timeout=_PROBE_S)
                        if message is not None:
                            heard, quiet = True, False
                            self._tell(message)
                        elif quiet:
                            raise RedisConnectionError("it does not answer")
                        else:
                            quiet = True
                            await line.ping()
                finally:
                    writer.cancel()
        except (RedisError, OSError) as exc:
            where = address(self._settings.redis_url)
            log.warning("The store at %s tells of no changes (%s); they are told once it does", where, exc)
        return heard

    async def _writing(self, line: PubSub) -> None:
        with suppress(RedisError, OSError):  # the reader notices, too
            while True:
                await self._stir.wait()
                if self._line is not line:
                    return
                self._stir.clear()
                stirred, self._stirred = self._stirred, set()
                new = {channel for channel in stirred if channel in self._followed} - self._subscribed
                old = {channel for channel in stirred if channel not in self._followed} & self._subscribed
                self._subscribed = (self._subscribed | new) - old
                if new:
                    await line.subscribe(*new)
                if old:
                    await line.unsubscribe(*old)

    def _tell(self, message: dict[str, Any]) -> None:
        followed = self._followed.get(str(message["channel"]))
        if followed is None:  # left meanwhile, or the answer to a ping
            return
        match message["type"]:
            case "subscribe":
                change = Change(followed.task_id)
            case "message":
                revision, _, kind = str(message["data"]).partition(" ")
                change = Change(followed.task_id, int(revision), kind == "progress")
            case _:
                return
        for hear in tuple(followed.ears):
            hear(change)
