"""What a failed task is retried with: its call, and the terms that its tool's policy gave it."""

from __future__ import annotations

from typing import NamedTuple, cast

from mcptasks.model import Record, Submission
from mcptasks.policy import Policy
from mcptasks.store.base import Transitions
from mcptasks.store.records import read_record, read_submission


class Kept(NamedTuple):
    """What is kept of a task. `call` is None where nothing is, or nothing that can be read."""

    record: Record
    call: Submission | None
    policy: Policy


class RetryTransitions(Transitions):
    """The failed tasks."""

    async def kept(self, task_id: str) -> Kept | None:
        """What is kept of the task; None: there is none. Writes nothing.

        Raises:
            SchemaTooNew: a newer mcptasks wrote it.
            Sealed: something of it is sealed with a key that is not here.
        """
        async with self.connection.turn() as client, client.pipeline(transaction=True) as pipe:
            pipe.hgetall(self.keys.task(task_id))
            pipe.get(self.keys.call(task_id))
            fields, call = cast("tuple[dict[str, str], str | None]", await pipe.execute())
        if not fields:
            return None
        record = read_record(fields, self.seal)
        policy = Policy.recorded(
            ttl_ms=record.ttl_ms,
            queue=record.queue,
            max_attempts=record.max_attempts,
            hard_limit_ms=record.hard_limit_ms,
            retry_ms=tuple(int(delay) for delay in fields.get("retry", "").split()),
        )
        return Kept(record, read_submission(self.seal.open(task_id, "call", call or "")), policy)
