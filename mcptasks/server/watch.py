"""Waits for a task of the store to change. The store tells of changes; in case it does not, the task is looked at."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

import anyio

from mcptasks.model import Record
from mcptasks.server.closing import Closing
from mcptasks.server.news import News
from mcptasks.server.refusals import answering, not_found
from mcptasks.store.store import TaskStore

#: A store that is away for longer ends the wait; the task goes on.
PATIENCE_S: Final = 10.0


class Watch:
    """One call's view of its task, within a `with` block."""

    def __init__(self, store: TaskStore, closing: Closing, record: Record) -> None:
        self._store, self._closing, self._record = store, closing, record
        self._news = News([record.task_id], self._store.settings.push_progress_ms / 1000)
        self._nudged = False

    def __enter__(self) -> Self:
        self._closing.add(self.nudge)
        self._store.changes.follow([self._record.task_id], self._news.hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self._store.changes.leave([self._record.task_id], self._news.hear)
        self._closing.discard(self.nudge)

    @property
    def over(self) -> bool:
        """The call should end, whatever its task does."""
        return self._closing.begun

    def nudge(self) -> None:
        """Whoever waits for a change looks now, and goes on with what there is."""
        self._nudged = True
        self._news.again(self._record.task_id, 0)

    async def change(self, deadline: float | None = None) -> Record | None:
        """The task once it has changed, or after a nudge; None when the deadline (by the loop's clock) came first.

        Raises:
            MCPError: -32602, the task is gone; -32603, the store has been away for ten seconds.
        """
        while deadline is None or anyio.current_time() < deadline:
            await self._stir(deadline)
            nudged, self._nudged = self._nudged, False
            record = await self._look()
            self._news.told(record)
            if nudged or record.revision != self._record.revision:
                self._record = record
                return record
        return None

    async def _stir(self, deadline: float | None) -> None:
        wait_s = self._record.poll_ms / 1000
        if deadline is not None:
            wait_s = min(wait_s, deadline - anyio.current_time())
        with anyio.move_on_after(wait_s):
            await self._news.next()

    async def _look(self) -> Record:
        task = self._record
        record = await answering(lambda: self._store.read(task.task_id, task.owner), patience_s=PATIENCE_S)
        if record is None:
            raise not_found()
        return record
