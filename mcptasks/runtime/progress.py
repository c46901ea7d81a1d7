"""A tool's progress on its way to the store: the newest wins, one write at a time, a tool never waits for it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from mcptasks.errors import StoreUnavailable
from mcptasks.model import Claim, Progress, label
from mcptasks.store.store import TaskStore

log: Final = logging.getLogger("mcptasks.runtime")

#: Between two writes. Clients poll far slower; a tool that reports every row must not write every row.
_INTERVAL_S: Final = 0.1


class Reporter:
    """The progress of one run."""

    def __init__(self, store: TaskStore, claim: Claim) -> None:
        self._store = store
        self._claim = claim
        # A replay climbs the same stairs again; only what is above the highest step is news.
        self._high = claim.progress if claim.progress is not None else float("-inf")
        journal = claim.journal
        # Nothing is recorded that would tell how far the lost run came: until this one stands on that very step, with
        # these very words, whatever it says on the step was said before.
        self._climbing = claim.progress is not None and not (journal.asked or journal.steps or journal.timers)
        self._latest: tuple[float, float | None, str] | None = None
        self._writer: asyncio.Task[None] | None = None

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """This progress will be written, unless a newer one comes first."""
        text = Progress(progress, total, message).text
        if progress < self._high:
            return
        if self._climbing and progress == self._high:
            self._climbing = text != self._claim.record.status_message
            return
        self._climbing = False
        self._high = progress
        self._latest = (progress, total, text)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write())

    async def flush(self) -> None:
        """What was reported is written."""
        if self._writer is not None:
            await asyncio.wait([self._writer])
        if self._latest is not None:
            await self._write_once()

    async def close(self) -> None:
        """No writer is left behind; the end of the task says more than its last progress."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])

    async def _write(self) -> None:
        while self._latest is not None:
            await self._write_once()
            await asyncio.sleep(_INTERVAL_S)

    async def _write_once(self) -> None:
        assert self._latest is not None
        progress, total, message = self._latest
        self._latest = None
        try:
            await self._store.progress(self._claim, message, progress, total)
        except StoreUnavailable as exc:
            log.warning("Task %s: progress is not stored: %s", label(self._claim.task_id), exc)
