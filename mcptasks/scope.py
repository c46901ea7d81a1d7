"""The tasks that somebody may see, by their lists, their numbers and the beginnings of their ids."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Collection
from typing import Final

from mcptasks.errors import AmbiguousTask, ArtifactsUnavailable, UnknownTask
from mcptasks.links import Artifact
from mcptasks.model import Record, Status, is_task_id, label
from mcptasks.observe.timeline import Timeline, timeline_of
from mcptasks.store.files import BLOCK
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

    async def artifacts(self, task: str) -> list[Artifact]:
        """The task's artifacts by name; a large result has the empty name.

        Raises:
            UnknownTask, AmbiguousTask, Sealed: as `read`.
        """
        task_id = await self._whole(task)
        found = await self._store.artifacts(task_id, self._owner)
        if found is None:
            raise UnknownTask(unknown(task_id))
        return found

    async def download(self, task: str, artifact: Artifact) -> AsyncGenerator[bytes]:
        """The artifact's bytes, a MiB at a time. The last come only once all are known to be those that were written.

        Raises:
            ArtifactsUnavailable: its file cannot be had, is not whole, or holds something else; or the task has another
                artifact of this name by now.
            UnknownTask, AmbiguousTask, Sealed: as `read`.
        """
        task_id, files = await self._whole(task), self._store.files
        if artifact not in await self.artifacts(task_id):
            raise ArtifactsUnavailable(f"Task {label(task_id)} has no such artifact any more; look at it again.")
        digest, held = hashlib.sha256(), b""
        for at in range(0, artifact.size, BLOCK):
            length = min(BLOCK, artifact.size - at)
            block = await files.read(task_id, artifact.file, at, length, sealed=artifact.sealed)
            if block is None or len(block) != length:
                raise ArtifactsUnavailable(
                    f"Task {label(task_id)} has this artifact, but its file is not at {files.where}, or not all of it. "
                    "MCPTASKS_ARTIFACTS_URL must name one place for workers, servers and operators alike."
                )
            digest.update(block)
            if held:
                yield held
            held = block
        if digest.hexdigest() != artifact.sha256:
            raise ArtifactsUnavailable(
                f"The file of this artifact of task {label(task_id)} is not what its tool wrote: somebody has changed "
                f"it at {files.where}."
            )
        if held:
            yield held

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
