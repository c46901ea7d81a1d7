"""Moves on what nobody else does: lost messages, dead workers, tasks whose time is up. One worker at a time.

It lives in a thread of the worker's main process, because Celery's own timers stop while the broker is away and during
a warm shutdown, which is when it is needed most.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import aclosing
from enum import StrEnum
from typing import Final

from mcptasks.dispatch import Dispatcher
from mcptasks.errors import StoreUnavailable
from mcptasks.fleet.threads import LoopThread
from mcptasks.model import label
from mcptasks.observe.logs import about
from mcptasks.observe.trouble import Trouble
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from mcptasks.store.upkeep import SWEEP_BATCH

log: Final = logging.getLogger("mcptasks.fleet")

#: So many sweeps are left out by a sweeper that has met tasks it is too old for. Its turn is over before that, and a
#: newer worker, if there is one, has the sweep from then on.
_STEP_BACK: Final = 5


class Sweeper:
    """Asks for the sweep every `sweep_ms` and, when this worker has it, reaps what is overdue."""

    def __init__(self, settings: Settings, dispatcher: Dispatcher) -> None:
        self._settings = settings
        self._dispatcher = dispatcher
        self._store = TaskStore(settings)
        self._me = f"{socket.gethostname()}:{os.getpid()}"
        #: This worker has the sweep.
        self._sweeps = False
        self._thread = LoopThread("mcptasks-sweeper", [self._sweeping, self._discarding])

    def start(self) -> None:
        """Sweeping has begun."""
        self._thread.start()

    def close(self) -> None:
        """Sweeping has ended; another worker takes over within three sweeps."""
        self._thread.close()

    async def _sweeping(self) -> None:
        async with aclosing(self._store):
            trouble = Trouble(log, "The sweep waits for the store")
            while True:
                swept = Swept.DONE
                try:
                    swept = await sweep(self._store, self._me, self._dispatcher)
                    self._sweeps = swept is Swept.DONE
                    trouble.over()
                except StoreUnavailable as exc:
                    trouble.failed(exc)
                await asyncio.sleep(self._settings.sweep_ms / 1000 * (_STEP_BACK if swept is Swept.TOO_NEW else 1))

    async def _discarding(self) -> None:
        # Beside the sweep: to remove files may take long, and leases are looked after meanwhile.
        trouble = Trouble(log, "Files of tasks that are gone are not removed yet")
        while True:
            await asyncio.sleep(self._settings.sweep_ms / 1000)
            if self._sweeps:
                try:
                    await discard(self._store)
                    trouble.over()
                except StoreUnavailable as exc:
                    trouble.failed(exc)


class Swept(StrEnum):
    """What a round of the sweep came to."""

    DONE = "done"
    #: There were tasks that a newer mcptasks has written, which only a newer worker's sweep moves on.
    TOO_NEW = "too new"
    #: Another worker has the sweep.
    ELSEWHERE = "elsewhere"


async def sweep(store: TaskStore, me: str, dispatcher: Dispatcher) -> Swept:
    """All that is overdue now has moved on, as far as it is this worker's to move, and what is gone is forgotten.

    Of messages that no worker claimed, a batch is sent again: more would flood a fleet that is only slow.
    """
    swept = Swept.DONE
    while True:
        if (overdue := await store.sweep(me)) is None:
            return Swept.ELSEWHERE
        moved = 0
        for task_id in overdue:
            answer = await store.reap(task_id)
            if answer.hint is not None:
                dispatcher.send(answer.hint)
            if answer.outcome not in ("NOTHING", "WAITING"):
                with about(task_id):
                    log.info("Task %s: reap: %s %s", label(task_id), answer.outcome, answer.detail)
            moved += answer.outcome != "RESEND"
            if answer.outcome == "NEWER":
                swept = Swept.TOO_NEW
        if len(overdue) < SWEEP_BATCH or moved < len(overdue) / 2:
            break
    while await store.forget():
        pass
    return swept


async def discard(store: TaskStore) -> None:
    """The files of all tasks that are gone are removed.

    Raises:
        ArtifactsUnavailable: not all of them; those that are left come again in ten minutes.
    """
    gone = await store.discard()
    while gone:
        done: list[str] = []
        try:
            for task_id in gone:
                await store.files.remove_all(task_id)
                done.append(task_id)
                log.info("Task %s: discard", label(task_id))
        finally:
            gone = await store.discard(done)
