"""Processes that write to the store at the same moment, each with connections of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Final, Protocol, Self

from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.support.life import Answer

#: Orders that a writer has under way at once, so that the server takes them in any order.
ABREAST: Final = 8
#: No batch takes longer; a writer that is silent for so long hangs.
_PATIENCE_S: Final = 120.0


class Deed(Protocol):
    """Something that can be done to a task."""

    async def do(self, store: TaskStore, task_id: str) -> Answer: ...


@dataclass(frozen=True)
class Order:
    """One deed on one task. `changed`: other settings than the workload's own, for this one."""

    task_id: str
    deed: Deed
    changed: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Done:
    """The store's answer, and how long it took."""

    answer: Answer
    took_ms: float


class WriterFailed(Exception):
    """A writer ended, hung, or met an error that no transition may answer with."""


class Writers:
    """So many processes inside the `with` block."""

    def __init__(self, settings: Settings, count: int) -> None:
        self._settings, self._count = settings, count
        self._ends: list[Connection] = []
        self._processes: list[BaseProcess] = []

    def __enter__(self) -> Self:
        spawn = multiprocessing.get_context("spawn")
        # Kept here: the writers find it by its name, which goes with it.
        self._barrier = spawn.Barrier(self._count)
        for _ in range(self._count):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_write, args=(theirs, self._barrier, self._settings), daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()

    def race(self, batches: Sequence[Sequence[Order]]) -> list[list[Done]]:
        """What each writer was answered to its own batch, in its order; all begin together.

        Raises:
            WriterFailed: one of them did not come back with answers.
        """
        for end, batch in zip(self._ends, batches, strict=True):
            end.send(list(batch))
        answers: list[list[Done]] = []
        for end in self._ends:
            if not end.poll(_PATIENCE_S):
                raise WriterFailed(f"a writer is silent for {_PATIENCE_S:g} s")
            try:
                reply = end.recv()
            except (EOFError, OSError):
                raise WriterFailed("a writer has ended") from None
            if isinstance(reply, str):
                raise WriterFailed(reply)
            answers.append(reply)
        return answers


def _write(end: Connection, barrier: Any, settings: Settings) -> None:
    """The life of one writer: batch after batch, until the other end is closed."""
    asyncio.run(_batches(end, barrier, settings))


async def _batches(end: Connection, barrier: Any, settings: Settings) -> None:
    stores: dict[str, TaskStore] = {}

    def store(changed: Mapping[str, Any] | None) -> TaskStore:
        return stores.setdefault(repr(changed), TaskStore(settings.model_copy(update=dict(changed or {}))))

    try:
        # Nothing else runs on this loop meanwhile, so it may block.
        while batch := _received(end):
            barrier.wait(_PATIENCE_S)
            try:
                end.send(await _done(batch, [store(order.changed) for order in batch]))
            except Exception:
                end.send(traceback.format_exc())
    finally:
        for each in stores.values():
            await each.aclose()


def _received(end: Connection) -> list[Order] | None:
    try:
        return end.recv()
    except EOFError:
        return None


async def _done(batch: Sequence[Order], stores: Sequence[TaskStore]) -> list[Done]:
    places = asyncio.Semaphore(ABREAST)

    async def one(order: Order, store: TaskStore) -> Done:
        async with places:
            started = time.perf_counter()
            answer = await order.deed.do(store, order.task_id)
            return Done(answer, (time.perf_counter() - started) * 1000)

    return await asyncio.gather(*map(one, batch, stores))
