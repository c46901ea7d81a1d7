"""Keeps the claims of one process alive and hears what happens to its tasks, in a thread and on a loop of its own.

A busy event loop or a sync tool that never yields must not cost a run its lease, so nothing here shares their thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final
from weakref import WeakSet

from mcptasks.errors import StoreUnavailable
from mcptasks.fleet.shutdown import LOOK_S, Shutdown
from mcptasks.fleet.threads import LoopThread
from mcptasks.model import label
from mcptasks.observe.trouble import Trouble
from mcptasks.runtime.runner import Run
from mcptasks.runtime.watchdog import Stop
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from mcptasks.store.wakes import wakes

log: Final = logging.getLogger("mcptasks.fleet")

#: A loop that has not obeyed for so long does not turn.
DEAF_S: Final = 2.0

_STOPS: Final = {"cancel": Stop.CANCEL, "lost": Stop.LOST}


class Keeper:
    """The runs of one process: their leases are renewed, and cancels, answers and losses reach them."""

    def __init__(
        self, settings: Settings, shutdown: Shutdown, leave: Callable[[Run], Awaitable[None]] | None = None
    ) -> None:
        """`leave`: ends the task of a run whose own loop does not turn; None: there is no other loop to do it."""
        self._leave = leave
        self._settings = settings
        self._shutdown = shutdown
        self._store = TaskStore(settings)
        self._runs: dict[tuple[str, int], Run] = {}
        self._left = WeakSet[Run]()
        self._lock = threading.Lock()
        self._trouble = Trouble(log, "The leases of this process's runs are not renewed")
        #: What it does, each for ever; `start` does them in a thread.
        self.jobs: Sequence[Callable[[], Awaitable[None]]] = (self._renewing, self._listening, self._watching)
        self._thread = LoopThread("mcptasks-keeper", self.jobs)

    def start(self) -> None:
        """Renewing and listening have begun."""
        self._thread.start()

    def close(self) -> None:
        """The thread has ended."""
        self._thread.close()

    def add(self, run: Run) -> None:
        """From now on the run's lease is renewed."""
        with self._lock:
            self._runs[run.claim.task_id, run.claim.token] = run

    def remove(self, run: Run) -> None:
        """The run's lease is not renewed any more."""
        with self._lock:
            self._runs.pop((run.claim.task_id, run.claim.token), None)

    @property
    def held_by(self) -> str:
        """The tool that holds the event loop of this process although its task has ended; empty: none does."""
        with self._lock:
            return next((run.claim.record.tool for run in self._runs.values() if run in self._left), "")

    def find(self, task_id: str, token: int) -> Run | None:
        """The run of this process with that token."""
        with self._lock:
            return self._runs.get((task_id, token))

    async def _renewing(self) -> None:
        async with aclosing(self._store):
            while True:
                await asyncio.sleep(self._settings.renew_ms / 1000)
                await self.renew()

    async def renew(self) -> None:
        """Every lease holds for another `lease_ms`, and each run has heard of its cancel, or that its claim is lost."""
        with self._lock:
            runs = list(self._runs.values())
        if not runs:
            return
        try:
            news = await self._store.renew((run.claim.task_id, run.claim.token) for run in runs)
        except StoreUnavailable as exc:
            # The runs go on: if the store comes back within the lease nothing happened, else the tokens decide.
            self._trouble.failed(exc)
            return
        self._trouble.over()
        for run, word in zip(runs, news, strict=True):
            self._tell(run, word)

    def _tell(self, run: Run, word: str) -> None:
        match word:
            case "LOST":
                log.warning("Task %s: this run lost its claim and is stopped", label(run.claim.task_id))
                run.interrupt.request(Stop.LOST)
            case "CANCEL":
                run.interrupt.request(Stop.CANCEL)
            case "RUNNING":
                run.interrupt.wake()  # does nothing unless the run is held and its wake was lost
            case _:
                pass

    async def _watching(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            with self._lock:
                runs = list(self._runs.values())
            for run in runs:
                if self._shutdown.letting_go:
                    run.interrupt.request(Stop.SHUTDOWN)
                if self._leave is not None and run not in self._left and run.interrupt.ignored_s > DEAF_S:
                    log.error(
                        "Task %s: its tool %s holds the event loop of this process and cannot be stopped",
                        *(label(run.claim.task_id), run.claim.record.tool),
                    )
                    self._left.add(run)
                    await self._leave(run)

    async def _listening(self) -> None:
        trouble = Trouble(log, "Wakes are not heard, renewals still tell of cancels")
        while True:
            try:
                async for wake in wakes(self._settings, trouble.over):
                    with self._lock:
                        runs = [run for name, run in self._runs.items() if wake.concerns(*name)]
                    for run in runs:
                        if wake.kind == "answer":
                            run.interrupt.wake()
                        else:
                            run.interrupt.request(_STOPS[wake.kind])
            except StoreUnavailable as exc:
                trouble.failed(exc)
                await asyncio.sleep(1)
