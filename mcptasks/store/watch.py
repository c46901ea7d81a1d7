"""Hears that something has changed, whichever task it was: for who looks at lists.

One connection with one pattern for the whole process. What is heard is only that it is time to look again; which tasks
have changed is seen then. What no caller could see (a task was created, a worker has it) is not heard of, so whoever
wants to see that soon looks now and then, too.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, Final, cast

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


class Watch(Listener):
    """Who listens in this process. The connection lives as long as there is anybody.

    `listen` and `leave` return at once and may only be called on one event loop.
    """

    def __init__(self, settings: Settings, keys: Keys, connection: Connection) -> None:
        super().__init__()
        self._settings, self._connection = settings, connection
        self._pattern = re.sub(r"([*?\[\]\\])", r"\\\1", keys.prefix) + "task:*"
        self._ears = set[Callable[[], None]]()

    def listen(self, hear: Callable[[], None]) -> None:
        """`hear` is called with every change, and when the connection is there again; it must not raise or wait."""
        self._ears.add(hear)
        self._begin()

    def leave(self, hear: Callable[[], None]) -> None:
        """`hear` is not called any more."""
        self._ears.discard(hear)
        if not self._ears:
            self._stop_listening()

    async def aclose(self) -> None:
        """Nobody listens, and the connection is closed."""
        self._ears.clear()
        await self._end()

    async def _attempt(self) -> None:
        try:
            await self._hear()
        except (RedisError, OSError) as exc:
            where = address(self._settings.redis_url)
            log.warning("The store at %s tells of no changes (%s); they are seen a little later", where, exc)
            await asyncio.sleep(_AGAIN_S)

    async def _hear(self) -> None:
        async with self._connection.blocking_client(retries=0) as client, client.pubsub() as line:
            await line.psubscribe(self._pattern)
            quiet = False
            while self._listens:
                message = cast("dict[str, Any] | None", await line.get_message(timeout=_PROBE_S))
                if message is None:
                    if quiet:
                        raise RedisConnectionError("it does not answer")
                    quiet = True
                    await line.ping()
                    continue
                quiet = False
                if message["type"] in ("psubscribe", "pmessage"):
                    for hear in tuple(self._ears):
                        hear()
