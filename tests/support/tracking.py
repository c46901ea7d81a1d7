"""A tracker's store for tests: tasks in the states that they are wanted in, and a look past the transitions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, cast

import redis

from mcptasks.model import new_task_id
from mcptasks.tracker.limits import judged
from mcptasks.tracker.model import Claimed, Intent, Observation, Tracked
from mcptasks.tracker.remote import RemoteStatus, Snapshot
from mcptasks.tracker.store.keys import TrackKeys
from mcptasks.tracker.store.polls import Polled
from mcptasks.tracker.store.store import TrackStore
from tests.support.clock import StoreClock

ASK: dict[str, Any] = {
    "method": "elicitation/create",
    "params": {
        "message": "Sure?",
        "requestedSchema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    },
}
YES: dict[str, Any] = {"action": "accept", "content": {"ok": True}}
DONE: dict[str, Any] = {"content": [{"type": "text", "text": "42"}], "isError": False}


def seen(status: str = "working", **said: Any) -> Observation:
    """What a poll that found this comes to."""
    return judged(Snapshot(status=RemoteStatus(status), **said), result_max=10_000)


def polled(status: str = "working", *, answered: tuple[str, ...] = (), cancel: Any = "", **said: Any) -> Polled:
    """The same, as it is written."""
    observation = seen(status, **said)
    return Polled(seen=observation, next_ms=observation.next_ms, answered=answered, cancel=cancel)


def intent(**changed: Any) -> Intent:
    """An intent of a fresh id."""
    task_id = changed.pop("task_id", None) or new_task_id()
    usual: dict[str, Any] = {
        "task_id": task_id,
        "server": "crm",
        "tool": "export",
        "arguments": {"n": 1},
        "key": task_id,
    }
    return Intent(**usual | changed)


async def intended(store: TrackStore, **changed: Any) -> str:
    """The id of an intent that is stored."""
    one = intent(**changed)
    assert await store.intend(one, "nonce") == "INTENDED"
    return one.task_id


async def tracked(store: TrackStore, handle: str | None = None, status: str = "working", **changed: Any) -> str:
    """The id of a task that is tracked."""
    said = {name: changed.pop(name) for name in ("questions", "hint", "message") if name in changed}
    task_id = await intended(store, **changed)
    answer = await store.track(task_id, changed.get("server", "crm"), handle or uuid.uuid4().hex, seen(status, **said))
    assert answer.outcome == "TRACKED"
    return task_id


async def read(store: TrackStore, task_id: str) -> Tracked:
    """The task, which is there."""
    task = await store.read(task_id)
    assert task is not None
    return task


class TrackPeek(StoreClock):
    """What is really stored, and the hands of the clock."""

    def __init__(self, raw: redis.Redis, prefix: str) -> None:
        self.raw = cast("Any", raw)
        self.keys = TrackKeys(f"{prefix}track:")

    def due(self, task_id: str) -> float | None:
        """When the task is due."""
        return self.raw.zscore(self.keys.due, task_id)

    def make_due(self, *task_ids: str) -> None:
        """Their time, or that of their claim or submitter, is up."""
        for task_id in task_ids:
            self.raw.zadd(self.keys.due, {task_id: self.now_ms() - 1})
            self.raw.hdel(self.keys.task(task_id), "lease")

    def deliver_now(self, consumer: str, *task_ids: str) -> None:
        """The wait, or the lease, of their deliveries is over."""
        for task_id in task_ids:
            self.raw.zadd(self.keys.outbox(consumer), {task_id: self.now_ms() - 1})
            self.raw.hdel(self.keys.task(task_id), f"l:{consumer}")

    def fields(self, task_id: str) -> dict[str, str]:
        """The record."""
        return self.raw.hgetall(self.keys.task(task_id))

    def everything(self) -> Mapping[str, Any]:
        """Every key with its content: two that are equal say that nothing was written."""
        found: dict[str, Any] = {}
        for key in self.raw.scan_iter(f"{self.keys.prefix}*"):
            kind = self.raw.type(key)
            found[key] = {
                "hash": lambda key: self.raw.hgetall(key),
                "zset": lambda key: self.raw.zrange(key, 0, -1, withscores=True),
                "string": lambda key: self.raw.get(key),
                "stream": lambda key: self.raw.xrange(key),
            }[kind](key)
        return found


async def claimed(store: TrackStore, peek: TrackPeek, task_id: str, me: str = "me") -> Claimed:
    """The task, which is due now, in this tracker's hand."""
    peek.make_due(task_id)
    batch = await store.claim(me, 100)
    return next(claim for claim in batch.claims if claim.task.task_id == task_id)
