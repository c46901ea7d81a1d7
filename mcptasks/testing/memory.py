"""A store in this process's memory, by fakeredis, whose time is a clock of ours.

fakeredis has no clock that can be set. The names of it that are not documented stand in this file and nowhere else;
`tests/unit/test_testing_memory.py` pins them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast
from uuid import uuid4

from fakeredis import FakeAsyncRedisConnection, FakeServer

from mcptasks.store.connection import in_memory
from mcptasks.testing.clock import MovableClock


@contextmanager
def store_in_memory(clock: MovableClock) -> Generator[str]:
    """Yields the URL of a store that is empty, lives as long as the block, and has this clock."""
    url = f"redis://in-memory-{uuid4().hex[:12]}:6379/0"
    server = FakeServer(version=(7, 4), server_type="redis")
    in_memory[url] = {
        "connection_class": _connections_of(server, clock),
        "server": server,
        # redis-py's probe of an idle connection finds no socket to probe.
        "health_check_interval": 0,
    }
    try:
        yield url
    finally:
        del in_memory[url]


def _connections_of(server: FakeServer, clock: MovableClock) -> type[FakeAsyncRedisConnection]:
    """The server's expiries, and TIME on every connection of this class, go by the clock.

    UNDOCUMENTED `FakeServer.dbs`, `FakeServer.lock` and `time` of a database, which each command sets to the machine's
    time; PRIVATE `_connect` and `_sock` of a connection, whose methods have the names of the commands. If they move:
    look for `time.time()` in fakeredis; there are two places, what expires and the command TIME.
    """
    database: type[Any] = type(server.dbs[0])

    class Database(database):
        """One database, with keys that expire by the clock."""

        time = property(lambda self: clock.time(), lambda self, _: None)

    server.dbs = defaultdict(lambda: Database(server.lock))

    def time() -> list[bytes]:
        seconds, ms = divmod(clock.now_ms, 1000)
        return [str(seconds).encode(), str(ms * 1000).encode()]

    class Connection(FakeAsyncRedisConnection):
        """A connection to the server."""

        async def _connect(self) -> None:
            await super()._connect()
            cast("Any", self._sock).time = time

    return Connection
