"""Looks at the store as an operator would: is it there, what is it, how is it set, and what waits in it.

Reads only, and never SCAN or KEYS: what is asked here costs a store with millions of keys nothing.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from mcptasks.model import Status
from mcptasks.settings import Settings
from mcptasks.store.connection import Connection
from mcptasks.store.keys import NEVER, Keys
from mcptasks.store.registry import FRESH_MS, WorkerPulse, read_pulse
from mcptasks.store.sealing import Sealing, look_at_seals

#: One answer of the store, and the whole look. A frozen store costs the first, whatever `store_timeout_ms` says.
ANSWER_MS: Final = 1_500
LOOK_MS: Final = 2_500
#: The quickest of so many round trips tells the distance; the others tell how busy this machine is.
PINGS: Final = 5
#: Tasks looked at from each end of the outbox: resends put the oldest at the far end.
SAMPLE: Final = 50

#: A task that waits for a worker has a message within this time, as create.lua counts; what is due later sleeps.
SOON_MS: Final = 300_000


class Trouble(StrEnum):
    """Why the store cannot be looked at."""

    SILENT = "does not answer in time"
    REFUSED = "refuses or drops connections"
    UNKNOWN_HOST = "has a host name that cannot be resolved"
    LOGIN = "refuses the user or password"
    LOADING = "is loading its data after a restart"
    TLS = "does not agree on TLS"
    STRANGER = "is something else than Redis or Valkey"
    URL = "is not given as a redis:// or rediss:// URL"
    OTHER = "answers with errors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What the store's server says of itself."""

    software: str
    version: str
    replica: bool
    cluster: bool
    appendonly: bool
    #: None where CONFIG is forbidden (managed services).
    appendfsync: str | None
    #: The rules of snapshots, "" for none; None where CONFIG is forbidden.
    save: str | None
    #: Writing to the disk failed the last time.
    disk_error: bool
    #: Bytes; 0 is no limit.
    maxmemory: int
    maxmemory_policy: str
    used_memory: int
    #: Bytes of the machine; 0 where it does not say.
    machine_memory: int
    #: Keys that were evicted since the server started.
    evicted: int
    #: Keys of our database, the broker's and other people's among them.
    keys: int
    keys_for_ever: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits below our prefix."""

    #: Tasks that no worker has claimed yet, those included that wait for a retry.
    unsent: int
    #: How long the oldest queued one has waited, as far as the sample shows; None: none is queued.
    oldest_ms: int | None
    #: The Celery queue that one waits in.
    oldest_queue: str
    running: int
    #: Tasks without a ttl, ended or not.
    unlimited: int
    #: Deadlines that passed longer ago than any sweeper needs: of leases, of tasks' lives, of messages.
    overdue_leases: int
    overdue_expiry: int
    overdue_unsent: int
    #: The worker that sweeps; None: no worker does.
    sweeper: str | None
    #: Why an operator has new tasks refused; None: they are accepted.
    closed: str | None
    #: What the live workers say of themselves, by node name.
    workers: Mapping[str, WorkerPulse]
    sealing: Sealing


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The store as it is now."""

    round_trip_ms: float
    #: The store's clock minus ours, off by at most `round_trip_ms`.
    clock_skew_ms: int
    #: None where this user may not ask (INFO is forbidden).
    server: Server | None
    #: None where our keys cannot be read: a cluster that spreads them, another application's keys under our prefix.
    backlog: Backlog | None


def ping(settings: Settings) -> None:
    """The store answers.

    Raises:
        StoreUnavailable: it does not, within `settings.store_timeout_ms`.
    """
    asyncio.run(_ping(settings))


async def _ping(settings: Settings) -> None:
    connection = Connection(settings)
    try:
        async with connection.turn() as client:
            await cast("Any", client.ping())
    finally:
        await connection.aclose()


def look(settings: Settings) -> Facts | Trouble:
    """The store's facts, or why there are none; within `LOOK_MS`, unless a name lookup hangs. Raises nothing."""
    if settings.redis_url.partition("://")[0] not in ("redis", "rediss"):
        return Trouble.URL
    patience = min(settings.store_timeout_ms, ANSWER_MS)
    return asyncio.run(_look(settings.model_copy(update={"store_timeout_ms": patience})))


async def _look(settings: Settings) -> Facts | Trouble:
    try:
        connection = Connection(settings)
        client = connection.client
    except ValueError:  # the URL's; its text may hold a password
        return Trouble.URL
    try:
        async with asyncio.timeout(LOOK_MS / 1000):
            round_trip_ms, skew_ms = await _distance(client)
            server = await _server(client)
            try:
                backlog = await _backlog(client, settings)
            except ResponseError:
                backlog = None
            return Facts(round_trip_ms=round_trip_ms, clock_skew_ms=skew_ms, server=server, backlog=backlog)
    except (RedisError, OSError) as exc:
        return _trouble(exc)
    finally:
        await connection.aclose()


def _trouble(exc: BaseException) -> Trouble:
    match exc:
        case AuthenticationError() | AuthorizationError() | NoPermissionError():
            return Trouble.LOGIN
        case BusyLoadingError():
            return Trouble.LOADING
        case RedisTimeoutError() | TimeoutError():
            return Trouble.SILENT
        case RedisConnectionError() | OSError():
            causes = list(_causes(exc))
            if any(isinstance(cause, socket.gaierror) for cause in causes):
                return Trouble.UNKNOWN_HOST
            return Trouble.TLS if any(isinstance(cause, ssl.SSLError) for cause in causes) else Trouble.REFUSED
        case InvalidResponse():
            return Trouble.STRANGER
        case _:
            return Trouble.OTHER


def _causes(exc: BaseException | None) -> Generator[BaseException]:
    while exc is not None:
        yield exc
        exc = exc.__cause__ or exc.__context__


async def _distance(client: Redis) -> tuple[float, int]:
    """The round trip in milliseconds, and how far the store's clock is ahead of ours."""
    trips: list[tuple[float, float]] = []
    for _ in range(PINGS):
        began, before = time.monotonic(), time.time()
        seconds, micros = await client.time()
        trip = time.monotonic() - began
        trips.append((trip, seconds + micros / 1e6 - (before + trip / 2)))
    trip, skew = min(trips)
    return trip * 1000, round(skew * 1000)


async def _server(client: Redis) -> Server | None:
    try:
        info = await client.info()
    except NoPermissionError:
        return None
    config = await _config(client)
    keyspace = info.get(f"db{client.connection_pool.connection_kwargs.get('db') or 0}", {"keys": 0, "expires": 0})
    disk = ("aof_last_write_status", "rdb_last_bgsave_status")
    return Server(
        software="Valkey" if "valkey_version" in info else "Redis",
        version=str(info.get("valkey_version") or info["redis_version"]),
        replica=info.get("role") == "slave",
        cluster=bool(info.get("cluster_enabled", 0)),
        appendonly=bool(info.get("aof_enabled", 0)),
        appendfsync=config.get("appendfsync"),
        save=config.get("save"),
        disk_error=any(info.get(name, "ok") != "ok" for name in disk),
        maxmemory=int(info.get("maxmemory", 0)),
        maxmemory_policy=str(info.get("maxmemory_policy", "unknown")),
        used_memory=int(info["used_memory"]),
        machine_memory=int(info.get("total_system_memory", 0)),
        evicted=int(info.get("evicted_keys", 0)),
        keys=int(keyspace["keys"]),
        keys_for_ever=int(keyspace["keys"]) - int(keyspace["expires"]),
    )


async def _config(client: Redis) -> dict[str, str]:
    """The settings that INFO does not tell; empty where CONFIG is forbidden. One by one, for Redis 6.2."""
    found: dict[str, str] = {}
    try:
        for name in ("appendfsync", "save"):
            found |= cast("dict[str, str]", await client.config_get(name))
    except RedisError:
        return {}
    return found


async def _backlog(client: Redis, settings: Settings) -> Backlog:
    keys = Keys(settings.prefix)
    seconds, micros = await client.time()
    now_ms = seconds * 1000 + micros // 1000
    # The sweeper's own term: a sweeper that died is replaced by then.
    late = now_ms - settings.sweep_ms * 3
    pipe = cast("Any", client.pipeline(transaction=False))
    soon = now_ms + max(settings.resend_ms, SOON_MS)
    pipe.zcount(keys.unsent, "-inf", soon).zcard(keys.leases).get(keys.sweeper).hget(keys.admission, "reason")
    for index in (keys.leases, keys.expiry, keys.unsent):
        pipe.zcount(index, "-inf", late)
    pipe.zcount(keys.drops, NEVER, "+inf")
    pipe.zrange(keys.unsent, 0, SAMPLE - 1).zrange(keys.unsent, -SAMPLE, -1).hgetall(keys.workers)
    unsent, running, sweeper, closed, leases, expiry, messages, unlimited, head, tail, register = await pipe.execute()
    pulses = {name: read_pulse(json.loads(text)) for name, text in register.items()}
    oldest_ms, queue = await _oldest(client, keys, {*head, *tail}, now_ms)
    return Backlog(
        unsent=unsent,
        oldest_ms=oldest_ms,
        oldest_queue=queue,
        running=running,
        unlimited=unlimited,
        overdue_leases=leases,
        overdue_expiry=expiry,
        overdue_unsent=messages,
        sweeper=sweeper,
        closed=closed,
        workers={name: pulse for name, pulse in pulses.items() if now_ms - pulse.at_ms <= FRESH_MS},
        sealing=await look_at_seals(client, keys, settings),
    )


async def _oldest(client: Redis, keys: Keys, task_ids: set[str], now_ms: int) -> tuple[int | None, str]:
    """How long the queued one of these tasks that waits longest has waited, and in which queue."""
    pipe = cast("Any", client.pipeline(transaction=False))
    for task_id in task_ids:
        pipe.hmget(keys.task(task_id), "status", "updated", "queue")
    rows = [(int(updated), queue) for status, updated, queue in await pipe.execute() if status == Status.QUEUED]
    if not rows:
        return None, ""
    updated, queue = min(rows)
    return now_ms - updated, queue
