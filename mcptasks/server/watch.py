"""Waits for a task of the store to change. It looks, ever more rarely; a nudge makes it look at once."""

from __future__ import annotations

from typing import Final

import anyio

from mcptasks.model import Record
from mcptasks.server.refusals import answering, not_found
from mcptasks.store.store import TaskStore

#: The shortest pause between two looks, and by how much of the time that has passed without a change they grow: what a
#: call waits for is seen a tenth later than it happened, at a cost that falls with the time it takes.
FLOOR_S: Final = 0.01
SHARE: Final = 0.1
#: A store that is away for longer ends the wait; the task goes on.
PATIENCE_S: Final = 10.0


def pause_s(quiet_s: float, poll_ms: int) -> float:
    """How long to wait before the next look at a task that has not changed for `quiet_s`; at most its poll interval."""
    return max(FLOOR_S, min(quiet_s * SHARE, poll_ms / 1000))


class Watch:
    """One call's view of its task."""

    def __init__(self, store: TaskStore, record: Record) -> None:
        self._store = store
        self._record = record
        self._changed = anyio.current_time()
        self._nudged = anyio.Event()

    def nudge(self) -> None:
        """Whoever waits for a change looks now, and goes on with what there is."""
        self._nudged.set()

    async def change(self, deadline: float | None = None) -> Record | None:
        """The task once it has changed, or after a nudge; None when the deadline (by the loop's clock) came first.

        Raises:
            MCPError: -32602, the task is gone; -32603, the store has been away for ten seconds.
        """
        while deadline is None or anyio.current_time() < deadline:
            await self._pause(deadline)
            nudged = self._nudged.is_set()
            if nudged:
                self._nudged = anyio.Event()
            record = await self._look()
            if nudged or record.revision != self._record.revision:
                self._record, self._changed = record, anyio.current_time()
                return record
        return None

    async def _pause(self, deadline: float | None) -> None:
        now = anyio.current_time()
        wait_s = pause_s(now - self._changed, self._record.poll_ms)
        if deadline is not None:
            wait_s = min(wait_s, deadline - now)
        with anyio.move_on_after(wait_s):
            await self._nudged.wait()

    async def _look(self) -> Record:
        task = self._record
        record = await answering(lambda: self._store.read(task.task_id, task.owner), patience_s=PATIENCE_S)
        if record is None:
            raise not_found()
        return record
