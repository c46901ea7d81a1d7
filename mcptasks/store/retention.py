"""How long tasks are kept: extend, by the run that has the task or by an operator; and purge, by an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from mcptasks.actors import operator_word
from mcptasks.model import Claim
from mcptasks.store.base import TASK_KEYS, Transitions
from mcptasks.store.callers import EXPIRY_GRACE_MS
from mcptasks.store.keys import NEVER
from mcptasks.store.records import newer

#: Tasks of which one script removes all that is stored, at most: some milliseconds.
PURGE_BATCH: Final = 100


class Extension(NamedTuple):
    """Answer of `extend`. `until_ms`: so long the task is kept at least (Unix ms); None with UNLIMITED and refusals."""

    outcome: Literal["EXTENDED", "KEPT", "UNLIMITED", "STALE", "TERMINAL", "GONE"]
    until_ms: int | None


class RetentionTransitions(Transitions):
    """The tasks' time to live."""

    async def extend(self, task: str | Claim, ttl_ms: int, *, operator: str = "") -> Extension:
        """The task is kept for at least `ttl_ms` from now: EXTENDED | KEPT (it is already) | UNLIMITED | GONE.

        By id it is the wish of the operator (of that name), with a claim that run's: STALE | TERMINAL where it may not
        write any more. All keys and index entries of the task move as one; nothing ever gets shorter. An unfinished
        task has its new end on the wire at once (`ttlMs`). One that has ended stays as it is, and is only kept longer
        than `ttlMs` promises.

        Raises:
            SchemaTooNew: a newer mcptasks wrote the task.
        """
        task_id, token = (task, None) if isinstance(task, str) else (task.task_id, task.token)
        reply = await self.run_script(
            "extend",
            {**self.own(task_id, *TASK_KEYS), **self.fleet("unsent", "leases", "expiry", "countdowns")},
            {
                "task_id": task_id,
                "token": token,
                "operator": operator_word(operator) if token is None else "",
                "ttl_ms": ttl_ms,
                "grace_ms": EXPIRY_GRACE_MS,
            },
        )
        if reply[0] == "NEWER":
            raise newer(task_id, reply[1])
        return Extension(reply[0], int(reply[1]) if len(reply) > 1 else None)

    async def kept_until(self, task_id: str) -> int | None:
        """When Redis drops the task (Unix ms), unfinished or ended; None: never, or it has already."""
        async with self.connection.turn() as client:
            moment = await client.zscore(self.keys.drops, task_id)
        return None if moment is None or moment >= NEVER else int(moment)

    async def purge(self, task_ids: Sequence[str], before_ms: int) -> int:
        """Those of the tasks (at most `PURGE_BATCH`) that ended before that moment are gone. Returns how many.

        All keys and index entries of a task go as one; its files go with the next sweep. What has not ended, ended
        later, or was written by a newer mcptasks stays.
        """
        args = {"before_ms": before_ms, "tasks": list(task_ids[:PURGE_BATCH])}
        return int((await self.run_script("purge", self.fleet("ids"), args))[1])
