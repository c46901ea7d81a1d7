"""A tool's progress on its way to the store: the newest wins, one write at a time, a tool never waits for it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from mcptasks.errors import StoreUnavailable
from mcptasks.model import Claim, label
from mcptasks.progress import Progress
from mcptasks.store.store import TaskStore

log: Final = logging.getLogger("mcptasks.runtime")

#: Between two writes. Clients poll far slower; a tool that reports every row must not write every row.
_INTERVAL_S: Final = 0.1

#: How many reports a rate is taken from, how far they are apart at least, and how far the first and the last.
_SAMPLES: Final = 16
_APART_S: Final = 0.5
_ENOUGH_S: Final = 1.0


class Pace:
    """How fast a run gets on, by its latest reports."""

    def __init__(self) -> None:
        self._samples = deque[tuple[float, float]](maxlen=_SAMPLES)

    def rate(self, at_s: float, done: float) -> float | None:
        """Per second, now that this was reported; None: it is too early to tell, or nothing moves."""
        samples = self._samples
        if len(samples) > 1 and at_s - samples[-2][0] < _APART_S:
            samples.pop()  # so that a tool that reports every row is measured over more than a few of them
        samples.append((at_s, done))
        taken_s, moved = at_s - samples[0][0], done - samples[0][1]
        return moved / taken_s if taken_s >= _ENOUGH_S and moved > 0 else None


class Reporter:
    """The progress of one run."""

    def __init__(self, store: TaskStore, claim: Claim, now_s: Callable[[], float]) -> None:
        """`now_s`: seconds that the tool has worked."""
        self._store = store
        self._claim = claim
        self._now_s, self._pace = now_s, Pace()
        # A replay climbs the same stairs again; only what is above the highest step is news.
        self._high = claim.progress if claim.progress is not None else float("-inf")
        journal = claim.journal
        # Nothing is recorded that would tell how far the lost run came: until this one stands on that very step, with
        # these very words, whatever it says on the step was said before.
        self._climbing = claim.progress is not None and not (journal.asked or journal.steps or journal.timers)
        self._latest: Progress | None = None
        self._writer: asyncio.Task[None] | None = None

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """This progress will be written, unless a newer one comes first."""
        # What is no number moves nothing; its words are shown all the same.
        done = progress if math.isfinite(progress) else max(self._high, 0.0)
        told = Progress(done, total if total is not None and math.isfinite(total) else None, message)
        if done < self._high:
            return
        if self._climbing and done == self._high:
            self._climbing = told.text != self._claim.record.status_message
            return
        self._climbing = False
        self._high = done
        self._latest = replace(told, rate=self._pace.rate(self._now_s(), done))
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
        latest, self._latest = self._latest, None
        try:
            await self._store.progress(self._claim, latest.text, latest.done, latest.total, latest.rate)
        except StoreUnavailable as exc:
            log.warning("Task %s: progress is not stored: %s", label(self._claim.task_id), exc)
