"""Waits for a task of the store to change. The store tells of changes; in case it does not, the task is looked at."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self
from weakref import WeakSet

import anyio

from mcptasks.model import Record
from mcptasks.server.news import News
from mcptasks.server.refusals import answering, not_found
from mcptasks.store.store import TaskStore

#: A store that is away for longer ends the wait; the task goes on.
PATIENCE_S: Final = 10.0

#: Those of every server in this process.
_all: Final[WeakSet[Watches]] = WeakSet()


def end_waits() -> None:
    """Every call in this process that waits for a task is told to end.

    For a server that goes down: it waits for its open requests, and these take as long as their tasks.
    """
    for watches in tuple(_all):
        watches.end()


class Watches:
    """The calls of one server that wait for their tasks."""

    def __init__(self, store: TaskStore) -> None:
        self.store = store
        #: The server goes down: a call should end, whatever its task does.
        self.ending = False
        self.open = set[Watch]()
        _all.add(self)

    def end(self) -> None:
        """Every wait ends, and so does each that begins from now on."""
        self.ending = True
        for watch in tuple(self.open):
            watch.nudge()


class Watch:
    """One call's view of its task, within a `with` block."""

    def __init__(self, watches: Watches, record: Record) -> None:
        self._watches, self._store, self._record = watches, watches.store, record
        self._news = News([record.task_id], self._store.settings.push_progress_ms / 1000)
        self._nudged = False

    def __enter__(self) -> Self:
        self._watches.open.add(self)
        self._store.changes.follow([self._record.task_id], self._news.hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self._store.changes.leave([self._record.task_id], self._news.hear)
        self._watches.open.discard(self)

    @property
    def over(self) -> bool:
        """The call should end, whatever its task does."""
        return self._watches.ending

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
