"""What is looked at once the faults have stopped and everybody has waited: the store, the broker, the workers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any, Final, cast

import redis.asyncio
from redis.exceptions import RedisError

from mcptasks.store.keys import Keys
from mcptasks.store.registry import DEAF_MS, FRESH_MS
from tests.chaos.audit import Check
from tests.chaos.faults import QUEUE
from tests.chaos.herd import PREFIX, Herd
from tests.chaos.recorder import whole_record

#: The broker's bookkeeping lives as long as its queues, and is bounded by their number.
_BINDINGS: Final = "_kombu.binding"
_INDEXES: Final = ("list:active", "unsent", "leases", "expiry", "countdowns")
#: Stale messages are taken and dropped; a worker that has just been started needs its time for that.
_CALM_S: Final = 60.0


class Aftermath:
    """The store once it is calm."""

    def __init__(self, herd: Herd) -> None:
        self._herd = herd
        self._keys = Keys(PREFIX)
        self._client: Any = redis.asyncio.Redis.from_url(herd.store_url, decode_responses=True, socket_timeout=10)

    async def aclose(self) -> None:
        """Its connection is closed."""
        await self._client.aclose()

    async def calm(self) -> None:
        """All members work and no message waits, or a minute has passed."""
        deadline = time.monotonic() + _CALM_S
        while time.monotonic() < deadline:
            if all(member.ready for member in self._herd.members):
                try:
                    if not await self._client.llen(QUEUE) and not await self._client.zcard(self._keys.active):
                        return
                except (RedisError, OSError):
                    pass
            await asyncio.sleep(0.2)

    async def records(self) -> dict[str, dict[str, str]]:
        """Every record by its task's id."""
        start, end = f"{PREFIX}task:{{", "}"
        names = [name async for name in self._client.scan_iter(f"{start}*{end}", count=1000)]
        ids = [name.removeprefix(start).removesuffix(end) for name in names]
        return {task_id: await whole_record(self._client, self._keys, task_id) for task_id in ids}

    async def checks(self) -> list[Check]:
        """Every promise about what is left behind."""
        return [await self._no_key_for_ever(), await self._nothing_open(), await self._workers_hear()]

    async def _no_key_for_ever(self) -> Check:
        names = [str(name) async for name in self._client.scan_iter(count=1000)]
        broken = [name for name in names if await self._client.ttl(name) == -1 and _BINDINGS not in name]
        return Check("no key is without an expiry, no list of messages is left", len(names), broken)

    async def _nothing_open(self) -> Check:
        broken: list[str] = []
        for index in _INDEXES:
            if left := await self._client.zcard(f"{PREFIX}{index}"):
                broken.append(f"{index} still has {left}")
        unacked = [str(name) async for name in self._client.scan_iter("*unacked*", count=1000)]
        for name in unacked:
            broken.append(f"{name} exists: messages that nobody acknowledged")
        return Check("no index holds an ended task, nothing is unacknowledged", len(_INDEXES) + 1, broken)

    async def _workers_hear(self) -> Check:
        """As `mcptasks worker --health` sees them."""
        seconds, _ = await self._client.time()
        entries = cast("Mapping[str, str]", await self._client.hgetall(self._keys.workers))
        pulses = {name.partition("@")[0]: json.loads(text) for name, text in entries.items()}
        broken: list[str] = []
        for worker in self._herd.workers:
            pulse = pulses.get(worker.name)
            if pulse is None or seconds * 1000 - pulse["at_ms"] > FRESH_MS:
                broken.append(f"{worker.name} does not report itself: {pulse}")
            elif pulse["deaf_ms"] >= DEAF_MS:
                broken.append(f"{worker.name} lives and takes no work: {pulse}")
            elif worker.proc is not None and pulse["pid"] != worker.proc.pid:
                broken.append(f"{worker.name} reports as process {pulse['pid']}, it is {worker.proc.pid}")
        return Check("every worker lives and hears its queue", len(self._herd.workers), broken)
