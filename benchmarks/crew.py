"""Two workers of one system and a job on one of them; that one gets `kill -9`, and the other has to begin the job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import long_job
from benchmarks.driver import PATIENCE_S
from benchmarks.services import Service

WORKERS: Final = 2

#: A worker's command line, for the node name it is to have.
Command = Callable[[str], Sequence[str | Path]]


@dataclass(frozen=True)
class Kill:
    """One `kill -9` and what it cost."""

    #: How long the job had run.
    after_s: float
    #: From the kill until the job's body began again.
    took_s: float


class Crew:
    """The workers of one system."""

    def __init__(self, name: str, command: Command, env: dict[str, str], logs: Path) -> None:
        self._name, self._command, self._env, self._logs = name, command, env, logs
        self._workers: list[Service] = []
        self._started = 0

    def start(self) -> Service:
        """One more worker is starting."""
        self._started += 1
        name = f"{self._name}-worker-{self._started}"
        worker = Service(name, self._command(f"{name}@bench"), self._env, self._logs / f"{name}.log")
        self._workers.append(worker)
        return worker

    def await_ready(self) -> None:
        """Every worker takes work.

        Raises:
            RuntimeError: one does not; with the end of its log.
        """
        for worker in self._workers:
            worker.wait_for("being ready", partial(_is_ready, worker))

    def stop(self) -> None:
        """No worker runs any more."""
        for worker in self._workers:
            worker.stop()

    async def kill_one(self, folder: Path, after_s: float, patience_s: float) -> Kill:
        """The job with that folder ran for `after_s`, its worker was killed, the job began again on the other.

        It may end now, and a new worker stands for the one that was killed.

        Raises:
            TimeoutError: the job began neither at first within a minute nor again within `patience_s`.
            RuntimeError: the new worker does not start; with the end of its log.
        """
        first = await long_job.started(folder, 1, PATIENCE_S)
        await asyncio.sleep(first.at + after_s - time.time())
        [doomed] = [worker for worker in self._workers if worker.owns(first.pid)]
        killed_at = time.time()
        doomed.kill()
        self._workers.remove(doomed)
        again = await long_job.started(folder, 2, patience_s)
        long_job.release(folder)
        self.start()
        await asyncio.to_thread(self.await_ready)
        return Kill(after_s=killed_at - first.at, took_s=again.at - killed_at)


def _is_ready(worker: Service) -> bool:
    return " ready." in worker.output()


@contextmanager
def crew(name: str, command: Command, env: dict[str, str], logs: Path) -> Generator[Crew]:
    """Two workers are ready; those that are there at the end of the block are stopped."""
    mine = Crew(name, command, env, logs)
    try:
        for _ in range(WORKERS):
            mine.start()
        mine.await_ready()
        yield mine
    finally:
        mine.stop()
