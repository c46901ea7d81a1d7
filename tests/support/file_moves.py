"""What can happen to a task's files, as moves: only what the store knows of them, no bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from mcptasks.links import Artifact
from mcptasks.store.store import TaskStore
from tests.support.life import Answer, Life, Window
from tests.support.moves import Move, fenced


@dataclass(frozen=True)
class Reserve(Move):
    """The run is about to write files."""

    token: int

    def expect(self, life: Life, at: Window) -> Answer:
        return life.reserve(at, self.token)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        return (await store.reserve(fenced(task_id, self.token)),)


@dataclass(frozen=True)
class Keep(Move):
    """The run has written a file. Only for a task that has a folder, as every run sees to."""

    token: int
    name: str
    data: str
    #: Every writing makes a new file, whose name no other has.
    file: str = "1"

    @property
    def _digest(self) -> str:
        return hashlib.sha256(self.data.encode()).hexdigest()

    def expect(self, life: Life, at: Window) -> Answer:
        return life.artifact(at, self.token, self.name, self._digest, len(self.data), self.file)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        artifact = Artifact(name=self.name, sha256=self._digest, size=len(self.data), mime="text/csv", file=self.file)
        return await store.artifact(fenced(task_id, self.token), artifact)


@dataclass(frozen=True)
class Discard(Move):
    """A worker asks for folders to be removed, all that are due; with `done` it says that the task's was.

    It is the fleet's: it comes to every task of the store whose folder is due.
    """

    done: bool = False

    def expect(self, life: Life, at: Window) -> Answer:
        return life.discard(at, self.done)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        batch = await store.discard([task_id] * self.done)
        found = set(batch)
        while batch:
            batch = await store.discard()
            found |= set(batch)
        return "DISCARD", task_id in found
