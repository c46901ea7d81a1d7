"""What one listener has yet to be told: the ids of its changed tasks and when each is due, never a task's state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from mcptasks.model import Record
from mcptasks.store.changes import Change


class News:
    """The tasks of one listener. A slow one misses states, never the newest; what it costs is bounded by its tasks."""

    def __init__(self, task_ids: Iterable[str], progress_s: float) -> None:
        """`progress_s`: a change of a status message waits until this long after the last word on its task."""
        self._progress_s = progress_s
        self._clock = asyncio.get_running_loop().time
        #: Revision that the listener knows of each task that it still listens to.
        self._known = dict.fromkeys(task_ids, 0)
        self._told_at: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._stir = asyncio.Event()

    def hear(self, change: Change) -> None:
        """The listener will be told, unless it knows that revision already."""
        known = self._known.get(change.task_id)
        if known is None or (change.revision is not None and change.revision <= known):
            return
        wait_s = 0.0
        if change.progress and (told_at := self._told_at.get(change.task_id)) is not None:
            wait_s = told_at + self._progress_s - self._clock()
        self.again(change.task_id, wait_s)

    def again(self, task_id: str, wait_s: float) -> None:
        """The task is due so long from now, or when it was due before, if that is sooner."""
        due = self._clock() + wait_s
        self._due[task_id] = min(due, self._due.get(task_id, due))
        self._stir.set()

    async def next(self) -> str:
        """The task that has been due longest; waits until one is. It is not due any more."""
        while True:
            self._stir.clear()
            wait_s = None
            if self._due:
                task_id = min(self._due, key=self._due.__getitem__)
                wait_s = self._due[task_id] - self._clock()
                if wait_s <= 0:
                    del self._due[task_id]
                    return task_id
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._stir.wait()

    def fresh(self, record: Record) -> bool:
        """The listener does not know this state of the task, nor a later one."""
        return record.revision > self._known.get(record.task_id, record.revision)

    def told(self, record: Record) -> None:
        """The listener knows this state; of a task that has ended it hears no more."""
        self._known[record.task_id] = record.revision
        self._told_at[record.task_id] = self._clock()
        if record.status.terminal:
            self.drop(record.task_id)

    def drop(self, task_id: str) -> None:
        """The listener hears no more of the task."""
        for of_task in (self._known, self._told_at, self._due):
            of_task.pop(task_id, None)
