"""Looks at the store as an operator would: is it there, what is it, how is it set."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, cast

from redis.exceptions import RedisError

from mcptasks.settings import Settings
from mcptasks.store.connection import Connection, translated


@dataclass(frozen=True, slots=True)
class Facts:
    """What the store says of itself."""

    software: str
    version: str
    #: None where CONFIG is forbidden (managed services).
    appendonly: bool | None
    appendfsync: str | None
    maxmemory: int
    maxmemory_policy: str
    used_memory: int
    #: The store's clock minus ours, in milliseconds, off by at most `round_trip_ms`.
    clock_skew_ms: int
    round_trip_ms: int


def ping(settings: Settings) -> None:
    """The store answers.

    Raises:
        StoreUnavailable: it does not, within `settings.store_timeout_ms`.
    """
    asyncio.run(_ping(settings))


async def _ping(settings: Settings) -> None:
    with translated(settings):
        await cast("Any", Connection(settings).client.ping())


def facts(settings: Settings) -> Facts:
    """The store's facts.

    Raises:
        StoreUnavailable: it does not answer.
    """
    return asyncio.run(_facts(settings))


async def _facts(settings: Settings) -> Facts:
    with translated(settings):
        client = Connection(settings).client
        info = await client.info()
        before = time.time()
        seconds, micros = await client.time()
        after = time.time()
        try:
            config = cast("dict[str, str]", await client.config_get("appendonly", "appendfsync"))
        except RedisError:
            config = {}
    return Facts(
        software="Valkey" if "valkey_version" in info else "Redis",
        version=str(info.get("valkey_version") or info["redis_version"]),
        appendonly=config["appendonly"] == "yes" if "appendonly" in config else None,
        appendfsync=config.get("appendfsync"),
        maxmemory=int(info.get("maxmemory", 0)),
        maxmemory_policy=str(info.get("maxmemory_policy", "unknown")),
        used_memory=int(info["used_memory"]),
        clock_skew_ms=round((seconds + micros / 1e6 - (before + after) / 2) * 1000),
        round_trip_ms=round((after - before) * 1000),
    )
