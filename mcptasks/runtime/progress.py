"""What a tool says on its way to the store: of progress the newest wins, and a tool never waits for it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Literal, TypeAlias

from mcptasks.errors import StoreUnavailable
from mcptasks.model import Claim, label
from mcptasks.progress import Progress
from mcptasks.store.store import TaskStore
from mcptasks.store.timeline import Remark

log: Final = logging.getLogger("mcptasks.runtime")

#: Between two writes. Clients poll far slower; a tool that reports every row must not write every row.
_INTERVAL_S: Final = 0.1

#: Remarks that wait to be written; a timeline has no room for more.
_REMARKS_MAX: Final = 256

#: How many reports a rate is taken from, how far they are apart at least, and how far the first and the last.
_SAMPLES: Final = 16
_APART_S: Final = 0.5
_ENOUGH_S: Final = 1.0


_Said: TypeAlias = tuple[float, Literal["log", "note"], str]


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
    """The progress and the remarks of one run: one write at a time for both, so many a second at most."""

    def __init__(self, store: TaskStore, claim: Claim, now_s: Callable[[], float], clock: Callable[[], float]) -> None:
        """`now_s`: seconds that the tool has worked; `clock`: seconds that always go."""
        self._store = store
        self._claim = claim
        self._now_s, self._pace, self._clock = now_s, Pace(), clock
        # A replay climbs the same stairs again; only what is above the highest step is news.
        self._high = claim.progress if claim.progress is not None else float("-inf")
        journal = claim.journal
        # Nothing is recorded that would tell how far the lost run came: until this one stands on that very step, with
        # these very words, whatever it says on the step was said before.
        self._climbing = claim.progress is not None and not (journal.asked or journal.steps or journal.timers)
        self._latest: Progress | None = None
        #: How many reports the latest stands for.
        self._reports = 0
        #: What was said when, oldest first, and how much of it there was no room for.
        self._remarks = deque[_Said]()
        self._omitted = 0
        self._writer: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

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
        self._reports += 1
        self._wake()

    def remark(self, word: Literal["log", "note"], text: str) -> None:
        """This will be written. `text` is JSON."""
        self._remarks.append((self._clock(), word, text))
        while len(self._remarks) > _REMARKS_MAX:
            self._remarks.popleft()
            self._omitted += 1
        self._wake()

    async def flush(self) -> None:
        """What was said is written."""
        await self._write_once()

    async def close(self) -> None:
        """No writer is left behind, and what was remarked is written; the end says more than the last progress."""
        self._latest = None
        async with self._writing:
            if self._writer is not None:
                self._writer.cancel()
        if self._writer is not None:
            await asyncio.wait([self._writer])
        await self._write_once()

    @property
    def _pending(self) -> bool:
        return self._latest is not None or bool(self._remarks)

    def _wake(self) -> None:
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        while await self._write_once():
            await asyncio.sleep(_INTERVAL_S)
            if not self._pending:
                return

    async def _write_once(self) -> bool:
        """All that there is was written; False: the store does not answer. Progress is lost then, remarks wait."""
        async with self._writing:
            if not self._pending:
                return True
            latest, reports, self._latest, self._reports = self._latest, self._reports, None, 0
            remarks, omitted, self._remarks, self._omitted = self._remarks, self._omitted, deque(), 0
            said = self._said(remarks, omitted)
            try:
                if latest is None:
                    await self._store.note(self._claim, said)
                else:
                    of = latest.text, latest.done, latest.total, latest.rate
                    await self._store.progress(self._claim, *of, reports=reports, remarks=said)
            except StoreUnavailable as exc:
                what, name = "what the tool says" if latest is None else "progress", label(self._claim.task_id)
                log.warning("Task %s: %s is not stored: %s", name, what, exc)
                self._omitted += omitted
                self._remarks.extendleft(reversed(remarks))
                return False
            return True

    def _said(self, remarks: Iterable[_Said], omitted: int) -> list[Remark]:
        now_s = self._clock()
        said = [Remark(max(0, int((now_s - at_s) * 1000)), word, text) for at_s, word, text in remarks]
        return [Remark(said[0].age_ms, "omitted", str(omitted)), *said] if omitted else said
