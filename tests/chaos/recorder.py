"""Watches every record in the store, five times a second, and says where one moved as none may."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

import redis.asyncio
from redis.exceptions import RedisError

from mcptasks.store.keys import Keys
from mcptasks.store.records import with_payload

TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})

#: DESIGN section 4: what one transition can do to a status. Each raises `rev` by one.
MOVES: Final[Mapping[str, frozenset[str]]] = {
    "queued": frozenset({"running", "cancelled", "failed"}),
    "running": frozenset({"parked", "retrying", "sleeping", "queued"}) | TERMINAL,
    "parked": frozenset({"queued", "running", "cancelled", "failed"}),
    "retrying": frozenset({"running", "cancelled", "failed"}),
    "sleeping": frozenset({"running", "cancelled", "failed"}),
    **{status: frozenset[str]() for status in TERMINAL},
}

_EVERY_S: Final = 0.2
#: How many ended tasks are looked at again each time.
_AGAIN: Final = 20
_FIELDS: Final = ("status", "rev", "token", "attempt", "updated", "cancel", "due", "started", "retries")


def steps_between(before: str, after: str) -> int | None:
    """How many transitions it takes at least; None: there is no way."""
    ways, seen = deque([(before, 0)]), {before}
    while ways:
        status, steps = ways.popleft()
        if status == after:
            return steps
        for reached in MOVES[status] - seen:
            seen.add(reached)
            ways.append((reached, steps + 1))
    return None


async def whole_record(client: Any, keys: Keys, task_id: str) -> dict[str, str]:
    """All fields of the record, and the result or error that stands beside it as one more."""
    async with client.pipeline(transaction=True) as pipe:
        pipe.hgetall(keys.task(task_id)).get(keys.result(task_id))
        fields, payload = cast("tuple[dict[str, str], str | None]", await pipe.execute())
    return with_payload(fields, payload)


@dataclass(frozen=True)
class Look:
    """What a record said at one moment."""

    status: str
    rev: int
    token: int
    attempt: int
    updated: int
    cancel: bool
    due: int | None
    started: int | None
    retries: int

    @classmethod
    def of(cls, fields: Mapping[str, str | None]) -> Look:
        """The record's fields, read."""

        def number(name: str) -> int | None:
            text = fields.get(name)
            return int(text) if text else None

        return cls(
            status=str(fields["status"]),
            rev=number("rev") or 0,
            token=number("token") or 0,
            attempt=number("attempt") or 0,
            updated=number("updated") or 0,
            cancel=fields.get("cancel") == "1",
            due=number("due"),
            started=number("started"),
            retries=number("retries") or 0,
        )


def wrongs(before: Look, after: Look) -> list[str]:
    """What may not have happened between the two looks, in words."""
    found: list[str] = []
    revisions = after.rev - before.rev
    steps = steps_between(before.status, after.status)
    if revisions < 0:
        found.append(f"its revision went back from {before.rev} to {after.rev}")
    if steps is None or steps > revisions:
        found.append(f"{before.status} became {after.status} within {revisions} revision(s)")
    if before.status in TERMINAL and after != before:
        found.append(f"it had ended as {before.status} and changed")
    if after.token < before.token or after.attempt < before.attempt or after.updated < before.updated:
        found.append("its token, attempt or lastUpdatedAt went back")
    if before.cancel and after.token > before.token:
        found.append("a run was claimed after its cancel was stored")
    early = before.status == "retrying" and after.token > before.token and before.retries == after.retries
    if early and before.due and after.started and after.started < before.due and after.token == before.token + 1:
        found.append(f"its retry began {before.due - after.started} ms early")
    return found


@dataclass
class Recorder:
    """The looks at all tasks of one run."""

    url: str
    keys: Keys
    violations: list[str] = field(default_factory=list[str])
    #: Task id -> all fields of its record when it was first seen ended.
    ends: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    looks: int = 0
    _last: dict[str, Look] = field(default_factory=dict[str, Look])
    _live: set[str] = field(default_factory=set[str])

    def expect(self, task_id: str) -> None:
        """This task is watched from now on, if it is not already."""
        if task_id not in self.ends:
            self._live.add(task_id)

    async def watch(self) -> None:
        """Never returns; the store may be away meanwhile."""
        client = redis.asyncio.Redis.from_url(self.url, decode_responses=True, socket_timeout=3)
        try:
            while True:
                with suppress(RedisError, OSError):
                    await self._look(client)
                await asyncio.sleep(_EVERY_S)
        finally:
            await client.aclose()

    async def _look(self, client: Any) -> None:
        self._live |= set(await client.zrange(self.keys.active, 0, -1)) - self.ends.keys()
        again = random.sample(sorted(self.ends), min(_AGAIN, len(self.ends)))
        ids = [*self._live, *again]
        async with client.pipeline(transaction=False) as pipe:
            for task_id in ids:
                pipe.hmget(self.keys.task(task_id), _FIELDS)
            rows = cast("list[list[str | None]]", await pipe.execute())
        for task_id, row in zip(ids, rows, strict=True):
            await self._saw(client, task_id, dict(zip(_FIELDS, row, strict=True)))

    async def _saw(self, client: Any, task_id: str, fields: dict[str, str | None]) -> None:
        if fields["status"] is None:
            if task_id in self._last:
                self.violations.append(f"{task_id}: its record is gone")
                self._live.discard(task_id)
            return
        look = Look.of(fields)
        self.looks += 1
        if (before := self._last.get(task_id)) is not None:
            self.violations += [f"{task_id}: {wrong}" for wrong in wrongs(before, look)]
        self._last[task_id] = look
        if look.status in TERMINAL and task_id not in self.ends:
            self.ends[task_id] = await whole_record(client, self.keys, task_id)
            self._live.discard(task_id)
