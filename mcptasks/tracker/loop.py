"""The tracker's loop in one process: claims what is due, polls it, and has the news told, until it is cancelled."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from mcptasks.errors import StoreUnavailable
from mcptasks.model import label
from mcptasks.observe.logs import about
from mcptasks.observe.trouble import Trouble
from mcptasks.tracker.deliverer import Deliverer
from mcptasks.tracker.model import Claimed, Tracked
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.poller import Poller
from mcptasks.tracker.pushes import Pushes
from mcptasks.tracker.store.polls import CLAIM_BATCH
from mcptasks.tracker.store.store import TrackStore

log: Final = logging.getLogger("mcptasks.tracker")

#: Between two attempts while the store is away.
_STORE_AWAY_S: Final = 1.0
#: A stop waits so long for the step that is under way.
_LAST_STEP_S: Final = 2.0
#: Behind a bug of ours.
_AGAIN_S: Final = 1.0
#: A task of a server that has all its slots taken is due again after about this long, the longer the more there are.
_CROWDED_MS: Final = 1_000
_CROWDED_MAX_MS: Final = 60_000
_CROWDED_PAUSE_S: Final = 0.1
#: How often the tasks that durable tasks follow are looked at.
_ORPHANS_S: Final = 2.0
#: How often what Redis has dropped is cleared out of the lists.
_FORGET_S: Final = 60.0
#: The most recent polls whose lag is remembered.
_LAGS_MAX: Final = 100_000


class TrackerLoop:
    """Polls and delivers, for one event loop."""

    def __init__(
        self,
        store: TrackStore,
        options: TrackOptions,
        poller: Poller,
        deliverers: Sequence[Deliverer],
        pushes: Pushes | None = None,
    ) -> None:
        self._store, self._options, self._poller = store, options, poller
        self._deliverers, self._pushes = deliverers, pushes
        self._me = f"{socket.gethostname()}:{os.getpid()}:{random.getrandbits(32):08x}"
        self._polls: set[asyncio.Task[bool]] = set()
        self._by_server: Counter[str] = Counter()
        #: Tasks that were put back, less those polled since: how long the queue at the server is, about.
        self._crowd: Counter[str] = Counter()
        #: How late the polls were claimed, in ms, newest last.
        self.lags_ms: list[int] = []

    async def run(self) -> None:
        """Tracks until it is cancelled; then every poll is cancelled, and its claim given back."""
        works = [*(deliverer.run for deliverer in self._deliverers), self._forgetting, self._minding]
        others = [asyncio.ensure_future(_for_ever(work)) for work in works]
        try:
            await self._polling()
        finally:
            with suppress(asyncio.CancelledError):  # once more
                await asyncio.sleep(0)  # a poll that was never begun could not give its claim back
            running: list[asyncio.Task[Any]] = [*others, *self._polls]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            if self._pushes is not None:
                await self._pushes.aclose()
            self._sum_up()

    def _sum_up(self) -> None:
        lags = sorted(self.lags_ms)
        if lags:
            p50, p99 = lags[len(lags) // 2], lags[len(lags) * 99 // 100]
            log.info("Tracking ends: of the last %d polls, due lag p50 %d ms, p99 %d ms", len(lags), p50, p99)

    async def _polling(self) -> None:
        trouble = Trouble(log, "Polls wait for the store")
        while True:
            try:
                wait_s = await self._whole_step()
                trouble.over()
            except StoreUnavailable as exc:
                trouble.failed(exc)
                wait_s = _STORE_AWAY_S
            except Exception:  # a bug in one step must not end what runs beside it
                log.exception("Tracking failed and goes on")
                wait_s = _AGAIN_S
            if wait_s > 0:
                # A poll that ends makes room; whatever else becomes due is seen within `look_ms`.
                full = len(self._polls) >= self._options.polls
                await asyncio.wait(self._polls, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED) if full else (
                    await asyncio.sleep(wait_s)
                )

    async def _whole_step(self) -> float:
        """A step that a stop does not cut off: what it claims is given back like all else, not left to its lease."""
        step = asyncio.ensure_future(self.step())
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step], timeout=_LAST_STEP_S)
            if not step.done() or step.cancelled() or step.exception() is not None:
                step.cancel()
                log.warning("What was being claimed runs out by itself")
            raise

    async def step(self) -> float:
        """What is due now and has room is being polled. Returns the seconds after which to look again."""
        room = min(self._options.polls - len(self._polls), CLAIM_BATCH)
        batch = await self._store.claim(self._me, room)
        crowded: list[Claimed] = []
        for claim in batch.claims:
            if self._by_server[claim.task.server] >= self._options.polls_per_server:
                crowded.append(claim)
            else:
                self._start(claim)
        # Elsewhere, or here a little later: a slow server must not take the slots of all others.
        await asyncio.gather(*(self._put_back(claim) for claim in crowded))
        longest = self._options.look_ms / 1000
        if room and len(batch.claims) == room:
            # More is due. Not in a hurry where most of it only comes back to a crowded server.
            return _CROWDED_PAUSE_S if crowded else 0
        return longest if batch.wait_ms is None else min(longest, max(batch.wait_ms, 1) / 1000)

    def _start(self, claim: Claimed) -> None:
        server = claim.task.server
        self.lags_ms.append(claim.late_ms)
        if len(self.lags_ms) > _LAGS_MAX:
            del self.lags_ms[: _LAGS_MAX // 2]
        if self._pushes is not None:
            self._pushes.follow(claim.task)
        self._by_server[server] += 1
        task = asyncio.ensure_future(self._poller.poll(claim))
        self._polls.add(task)
        task.add_done_callback(lambda done: self._polled(done, claim.task))

    def _polled(self, task: asyncio.Task[bool], polled: Tracked) -> None:
        server = polled.server
        self._polls.discard(task)
        self._by_server[server] -= 1
        self._crowd[server] = max(0, self._crowd[server] - 1)
        if task.cancelled():
            return
        if (exc := task.exception()) is not None:
            with about(polled.task_id, polled.tool):
                log.error("Task %s: its poll ended badly", label(polled.task_id), exc_info=exc)
        elif task.result() and self._pushes is not None:
            self._pushes.leave(polled)

    async def _put_back(self, claim: Claimed) -> None:
        server = claim.task.server
        self._crowd[server] += 1
        rounds = 1 + self._crowd[server] / self._options.polls_per_server
        delay_ms = int(min(_CROWDED_MS * rounds, _CROWDED_MAX_MS) * (0.5 + random.random()))
        await self._store.release(claim.task.task_id, claim.token, delay_ms)

    async def _minding(self) -> None:
        while True:
            await asyncio.sleep(_ORPHANS_S)
            with suppress(StoreUnavailable):  # the polls say so
                await self._store.orphans()

    async def _forgetting(self) -> None:
        while True:
            await asyncio.sleep(_FORGET_S)
            with suppress(StoreUnavailable):
                while await self._store.forget():
                    pass


async def _for_ever(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await work()
        except Exception:  # nobody looks after it until the tracker stops: it has to go on by itself
            log.exception("A part of the tracker failed and begins again")
        await asyncio.sleep(_AGAIN_S)
