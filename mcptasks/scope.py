"""The tasks that somebody may see, by their lists, their numbers and the beginnings of their ids."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from mcptasks.errors import AmbiguousTask, UnknownTask
from mcptasks.model import Record, Status, is_task_id, label
from mcptasks.observe.timeline import Timeline, timeline_of
from mcptasks.store.lists import PREFIX_MIN, Counts, Page
from mcptasks.store.store import TaskStore

#: Tasks of one page, unless another number is asked for, and at most.
PAGE: Final = 50
PAGE_MAX: Final = 500


class Scope:
    """One caller's tasks, or for the operator everybody's. What is not in it is nowhere to be seen.

    A caller without an identity (no authentication) has lists without a task, and finds none by a beginning: his
    ids are secrets, and everybody is that caller. By its whole id he reaches a task, as with `tasks/get`.

    Every method raises `StoreUnavailable` when the store does not answer.
    """

    def __init__(self, store: TaskStore, owner: str | None) -> None:
        """`owner` None is the operator."""
        self._store, self._owner = store, owner

    async def page(
        self,
        *,
        statuses: Collection[Status] = tuple(Status),
        tool: str | None = None,
        limit: int = PAGE,
        cursor: str | None = None,
    ) -> Page:
        """Up to `limit` tasks (at most 500) in these statuses, newest first: the newest, or those after the cursor.

        What is created or ends meanwhile makes none of them appear twice or not at all.

        Raises:
            BadCursor: the cursor is none of ours.
            ValueError: `limit` is not from 1 to 500.
        """
        return await self._store.page(self._owner, statuses=statuses, tool=tool, limit=size(limit), cursor=cursor)

    async def count(self, tool: str | None = None) -> Counts:
        """How many tasks there are in each status, of all tools or of one."""
        return await self._store.count(self._owner, tool)

    async def find(self, task: str) -> str:
        """The id of the one task whose id begins so; at least 4 characters.

        Raises:
            UnknownTask: there is none.
            AmbiguousTask: there are several.
        """
        found = await self._store.find(task, self._owner)
        if found == "NONE":
            raise UnknownTask(unknown(task))
        if found == "SEVERAL":
            raise AmbiguousTask(f"More than one task's id begins with {label(task)!r}; give more of it.")
        return found

    async def read(self, task: str) -> Record:
        """The task as it is now, by its id or the beginning of it.

        Raises:
            UnknownTask: there is none.
            AmbiguousTask: there are several.
            SchemaTooNew: a newer mcptasks wrote it.
            Sealed: it is sealed with a key that is not among these settings' `encryption_keys`.
        """
        task_id = await self._whole(task)
        record = await self._store.read(task_id, self._owner)
        if record is None:
            raise UnknownTask(unknown(task_id))
        return record

    async def timeline(self, task: str) -> Timeline:
        """What happened to the task so far, by its id or the beginning of it. It stays until the task is gone.

        Raises:
            UnknownTask, AmbiguousTask, SchemaTooNew, Sealed: as `read`.
        """
        task_id = await self._whole(task)
        told = await self._store.told(task_id, self._owner)
        if told is None:
            raise UnknownTask(unknown(task_id))
        return timeline_of(told.record, told.noted, told.labels)

    async def _whole(self, task: str) -> str:
        """The whole id; whether there is such a task is known only where a beginning was given."""
        return task if is_task_id(task) else await self.find(task)


def size(limit: int) -> int:
    """The limit of a page, which one script can answer.

    Raises:
        ValueError: it cannot.
    """
    if not 1 <= limit <= PAGE_MAX:
        raise ValueError(f"a page has 1 to {PAGE_MAX} tasks, not {limit}")
    return limit


def unknown(task: str) -> str:
    """What is said of an id, or the beginning of one, that no task has."""
    short = f" Give {PREFIX_MIN} characters of it." if len(task) < PREFIX_MIN else ""
    return f"There is no task {label(task)!r}...; it never was, or its time to live is over.{short}"
