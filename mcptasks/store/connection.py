"""One client per event loop, with time-outs on everything, and Redis' errors turned into ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Self
from urllib.parse import urlsplit

import anyio
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from mcptasks.errors import StoreUnavailable
from mcptasks.settings import Settings
from mcptasks.store.scripts import SCRIPTS, Runner, Script

#: Calls at once per event loop. A script takes a fraction of a millisecond of the store's one thread: more connections
#: than these only cost their opening, and redis-py raises at its hundredth.
_SLOTS: Final = 32

#: Of our own scripts' errors, what tells a mistake in them from a store that refuses.
_SCRIPT_BUG: Final = "user_script:"

#: A connection that lay idle for this long is tried before it is used.
_PROBE_S: Final = 15

#: Stores in this process's own memory, by URL: what redis-py is told besides, to reach one (`mcptasks.testing`).
in_memory: Final[dict[str, dict[str, Any]]] = {}

#: Stands for a URL of which nothing can be shown, because any part of it may be the password.
UNREADABLE: Final = "(a URL that cannot be read)"


class _Retries(Retry):
    """How often a call is tried again: one number for all connections, of which redis-py gives each a copy."""

    def __deepcopy__(self, memo: Any) -> Self:
        return self


@dataclass(slots=True)
class _Line:
    """What one event loop has."""

    loop: asyncio.AbstractEventLoop
    client: Redis
    runner: Runner
    retries: Retry
    slots: asyncio.Semaphore
    #: Whoever gets a turn now is too late.
    closed: bool = False

    async def close(self) -> None:
        """No connection is open, and no call is left that could open one: each under way has failed or ended."""
        self.retries.update_retries(0)
        await self.client.aclose()
        for _ in range(_SLOTS):
            await self.slots.acquire()
        await self.client.aclose()  # of what was just connecting


class Connection:
    """The store's client and scripts for the running event loop; made on first use, one set per loop."""

    def __init__(self, settings: Settings, scripts: Mapping[str, Script] = SCRIPTS) -> None:
        self._settings, self._scripts = settings, scripts
        self._line: _Line | None = None

    @property
    def client(self) -> Redis:
        """The running loop's client."""
        return self._here().client

    @property
    def runner(self) -> Runner:
        """The running loop's scripts."""
        return self._here().runner

    def _here(self) -> _Line:
        loop = asyncio.get_running_loop()
        if self._line is None or self._line.loop is not loop:
            # Once more over a fresh connection after a restart of the store, never after a time-out: the caller waits.
            retries = _retries(1)
            client = self._connect(self._settings.store_timeout_ms / 1000, retries, probe_s=_PROBE_S)
            self._line = _Line(loop, client, Runner(client, self._scripts), retries, asyncio.Semaphore(_SLOTS))
        return self._line

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[Redis]:
        """The running loop's client, with a connection free for it inside the block.

        Raises:
            StoreUnavailable: the store does not answer, or not fast enough for those who wait before this one; or its
                client was closed meanwhile.
        """
        line = self._here()
        await self._wait_for(line.slots)
        try:
            if line.closed:
                raise self._closed()
            with translated(self._settings):
                yield line.client
        except Exception as exc:
            if line.closed:  # where it breaks then is for chance: redis-py's own attributes are gone, too
                raise self._closed() from exc
            raise
        finally:
            line.slots.release()

    def _closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"The client of the store at {address(self._settings.redis_url)} was closed meanwhile.")

    async def _wait_for(self, slots: asyncio.Semaphore) -> None:
        if not slots.locked():
            await slots.acquire()
            return
        with translated(self._settings):
            async with asyncio.timeout(self._settings.store_timeout_ms / 1000):
                await slots.acquire()

    @asynccontextmanager
    async def blocking_client(self, *, retries: int = 1) -> AsyncGenerator[Redis]:
        """A client of its own whose reads may wait for ever: redis-py's default of 5 s would end a subscription.

        Who reads probes a silent connection; redis-py's own probe would get between the probe and its answer.
        `retries`: how often it connects again by itself, silently; what was published meanwhile is not heard.
        """
        client = self._connect(None, _retries(retries), probe_s=0)
        try:
            yield client
        finally:
            await _undisturbed(client.aclose())

    def _connect(self, read_timeout_s: float | None, retries: Retry, *, probe_s: int) -> Redis:
        connect_s = self._settings.store_timeout_ms / 1000
        options: dict[str, Any] = {
            "decode_responses": True,
            # An id may hold anything a client sends, half an emoji too: no such task, not an error of ours.
            "encoding_errors": "surrogatepass",
            "socket_timeout": read_timeout_s,
            "socket_connect_timeout": connect_s,
            "socket_keepalive": True,
            "health_check_interval": probe_s,
            "retry": retries,
        }
        url = self._settings.redis_url
        return Redis.from_url(url, **options | in_memory.get(url, {}))

    async def aclose(self) -> None:
        """The running loop's client is closed. Calls of other tasks that are under way fail: `StoreUnavailable`."""
        line = self._line
        if line is not None and line.loop is asyncio.get_running_loop():
            self._line, line.closed = None, True
            await _undisturbed(line.close())


def _retries(times: int) -> Retry:
    return _Retries(NoBackoff(), times, supported_errors=(RedisConnectionError,))


async def _undisturbed(closing: Coroutine[Any, Any, None]) -> None:
    """The closing has come to its end, also where the caller is cancelled meanwhile; it hears of that afterwards.

    redis-py closes each connection in a task of its own: cancelled before those begin, it leaves the sockets open.
    """
    task = asyncio.get_running_loop().create_task(closing)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})  # which does not hand a cancel on
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        raise cancelled
    task.result()


@contextmanager
def translated(settings: Settings) -> Generator[None]:
    """Redis errors leave as `StoreUnavailable`, naming the store's address and what to do; script bugs as they are.

    A cancel that fell into the block is never lost: on Python 3.11 `asyncio.wait_for`, which redis-py sends through,
    swallows one that comes when the send is just done (CPython issue 86296), and a loop of store calls never ended.
    """
    caller = asyncio.current_task()
    cancels = caller.cancelling() if caller else 0
    try:
        yield
        # A cancelled scope of anyio's tells the task again by itself, and knows only cancels of its own making.
        if caller and caller.cancelling() > cancels and anyio.current_effective_deadline() != -inf:
            raise asyncio.CancelledError
    except ResponseError as exc:
        if _SCRIPT_BUG in str(exc) and not _refuses(exc):
            raise
        raise StoreUnavailable(f"The store at {address(settings.redis_url)} refused the write: {exc}") from exc
    except (RedisError, OSError) as exc:
        raise StoreUnavailable(
            f"The store at {address(settings.redis_url)} does not answer ({type(exc).__name__}). "
            "Is Redis or Valkey running there? MCPTASKS_REDIS_URL says where to look; `mcptasks doctor` checks it."
        ) from exc


def _refuses(exc: ResponseError) -> bool:
    """The store refuses all writes. redis-py cuts the code off a message it has a class for."""
    return isinstance(exc, (OutOfMemoryError, ReadOnlyError)) or str(exc).startswith(("MISCONF", "NOREPLICAS"))


def address(url: str) -> str:
    """The URL without user and password, fit for messages."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return UNREADABLE
    # A password with a bare `/`, `?` or `#` in it goes on behind the host; and so does any where `//` is missing.
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        return UNREADABLE
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}"
