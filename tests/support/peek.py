"""Looks past the store's transitions at what Redis really holds of a task, and moves its deadlines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, cast

import redis

from mcptasks.store.keys import Keys
from tests.support.clock import StoreClock

#: Every index that a task may stand in.
INDEXES: Final = ("unsent", "leases", "expiry", "countdowns")


@dataclass(frozen=True)
class Stored:
    """Everything that is stored of one task, as plain text."""

    task: dict[str, str]
    call: str | None
    journal: dict[str, str]
    result: str | None
    timeline: list[str]
    #: Index -> score.
    indexes: dict[str, float]
    #: Key -> its PEXPIRETIME, -1 for never.
    expires: dict[str, int] = field(repr=False)


class Peek(StoreClock):
    """The tasks below one prefix, as a plain client sees them."""

    def __init__(self, raw: redis.Redis, prefix: str) -> None:
        # redis-py's own types say that every command may return an awaitable.
        self.raw = cast("Any", raw)
        self.keys = Keys(prefix)

    def stored(self, task_id: str) -> Stored:
        """What is stored of the task now."""
        keys = self.keys
        fields: dict[str, str] = self.raw.hgetall(keys.task(task_id))
        names = (keys.task, keys.call, keys.journal, keys.result, keys.timeline)
        own = [name(task_id) for name in names]
        if "idem" in fields:
            own.append(f"{keys.prefix}idem:{fields['idem']}")
        scores = {index: self.score(index, task_id) for index in INDEXES}
        times = {key: int(self.raw.pexpiretime(key)) for key in own}
        return Stored(
            task=fields,
            call=self.raw.get(keys.call(task_id)),
            journal=self.raw.hgetall(keys.journal(task_id)),
            result=self.raw.get(keys.result(task_id)),
            timeline=self.raw.lrange(keys.timeline(task_id), 0, -1),
            indexes={index: score for index, score in scores.items() if score is not None},
            expires={key: time for key, time in times.items() if time != -2},
        )

    def field(self, task_id: str, name: str) -> str | None:
        """One field of the record."""
        return self.raw.hget(self.keys.task(task_id), name)

    def score(self, index: str, task_id: str) -> float | None:
        """Where the task stands in the index; None: not in it."""
        return self.raw.zscore(getattr(self.keys, index), task_id)

    def holds(self, name: str, task_id: str) -> bool:
        """The key is a sorted set that has an entry of the task."""
        return self.raw.type(name) == "zset" and any(task_id in entry for entry in self.raw.zrange(name, 0, -1))

    def all_keys(self) -> set[str]:
        """Every key below the prefix."""
        return set(self.raw.scan_iter(match=f"{self.keys.prefix}*", count=1000))

    def dump(self) -> str:
        """Every key below the prefix and all that it holds, as text."""
        return "\n".join(f"{key} {self.value(key)}" for key in sorted(self.all_keys()))

    def value(self, key: str) -> Any:
        """All that the key holds, whatever its type."""
        match self.raw.type(key):
            case "hash":
                return self.raw.hgetall(key)
            case "zset":
                return self.raw.zrange(key, 0, -1, withscores=True)
            case "list":
                return self.raw.lrange(key, 0, -1)
            case "set":
                return self.raw.smembers(key)
            case _:
                return self.raw.get(key)

    # -------------------------------------------------------------------------------------------- moving time

    def put(self, task_id: str, **fields: str) -> None:
        """The record's fields have these values."""
        self.raw.hset(self.keys.task(task_id), mapping=fields)

    def make_due(self, index: str, task_id: str) -> None:
        """The task's deadline in that index passed long ago."""
        assert self.score(index, task_id) is not None, f"the task does not stand in {index}"
        self.raw.zadd(getattr(self.keys, index), {task_id: 1}, xx=True)

    def expire(self, task_id: str) -> None:
        """The unfinished task's time to live is over."""
        self.put(task_id, expires="1")
        self.make_due("expiry", task_id)

    def drop(self, task_id: str) -> None:
        """Redis has dropped the task's keys, because their time was over."""
        keys = self.keys
        own = (keys.task, keys.call, keys.journal, keys.result, keys.timeline)
        self.raw.delete(*(name(task_id) for name in own))
        assert self.raw.zadd(keys.drops, {task_id: 1}, xx=True, ch=True) == 1

    def age(self, task_id: str) -> None:
        """The task was last updated long ago: its next update shows without waiting for the clock to tick."""
        self.put(task_id, updated="1")

    def updated(self, task_id: str) -> bool:
        """The task was updated since `age`."""
        return self.field(task_id, "updated") != "1"
