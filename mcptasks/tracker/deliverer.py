"""Brings one consumer its news: takes them from its outbox, and says what has become of each."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from mcptasks.errors import StoreUnavailable
from mcptasks.model import label
from mcptasks.observe.logs import about
from mcptasks.observe.trouble import Trouble
from mcptasks.strict_json import clean
from mcptasks.tracker.consumers import Consumer
from mcptasks.tracker.errors import Refused, Unhandled
from mcptasks.tracker.intervals import after_refusal
from mcptasks.tracker.model import Delivery
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.questions import Questions
from mcptasks.tracker.stopping import told_to_stop
from mcptasks.tracker.store.store import TrackStore

log: Final = logging.getLogger("mcptasks.tracker")

_STORE_AWAY_S: Final = 1.0
#: A delivery's lease is half as long again as the delivery, and by so much longer at least.
_LEASE_MORE_MS: Final = 5_000
#: Tasks whose questions one process puts to its handler at a time.
_PEOPLE: Final = 1_000
#: Characters of what is kept of a consumer's reason.
WHY_MAX: Final = 200
#: What an attempt's end may wait for the store.
_RECORD_AGAIN_S: Final = (0.2, 1, 3)


class Deliverer:
    """One consumer's outbox, in one event loop. Each delivery runs on its own: one that hangs delays its task alone."""

    def __init__(self, name: str, consumer: Consumer | Questions, store: TrackStore, options: TrackOptions) -> None:
        self.name, self._consumer, self._store, self._options = name, consumer, store, options
        self._running: set[asyncio.Task[None]] = set()
        # A person takes hours, and holds little more than a place in this set.
        self._slots = _PEOPLE if isinstance(consumer, Questions) else options.deliveries

    async def run(self) -> None:
        """Delivers until it is cancelled; what is under way then comes again, with its event id."""
        trouble = Trouble(log, f"News for {self.name} wait for the store")
        try:
            while True:
                try:
                    wait_s = await self.step()
                    trouble.over()
                except StoreUnavailable as exc:
                    trouble.failed(exc)
                    wait_s = _STORE_AWAY_S
                await self._pause(wait_s)
        finally:
            running = list(self._running)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def step(self) -> float:
        """What is owed now, and has room, is being delivered. Returns the seconds after which to look again."""
        room = self._slots - len(self._running)
        longest = self._options.look_ms / 1000
        if room <= 0:
            return 0
        longest_ms = self._options.delivery_ms
        post = await self._store.take(self.name, room, longest_ms + max(longest_ms // 2, _LEASE_MORE_MS))
        for delivery in post.deliveries:
            task = asyncio.ensure_future(self.deliver(delivery))
            self._running.add(task)
            task.add_done_callback(self._ended)
        if len(post.deliveries) == room:
            return 0  # there may be more; where there is no room, whichever ends first makes some
        return longest if post.wait_ms is None else min(longest, max(post.wait_ms, 1) / 1000)

    async def _pause(self, wait_s: float) -> None:
        if len(self._running) >= self._slots:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(wait_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.error("A delivery to %s ended badly, and comes again", self.name, exc_info=exc)

    async def deliver(self, delivery: Delivery) -> None:
        """The event is handled, waits for its next attempt, or is a dead letter. Raises nothing but a cancel."""
        with about(delivery.task.task_id, delivery.task.tool):
            await self._settled(delivery)

    async def _settled(self, delivery: Delivery) -> None:
        try:
            revision = await self._bring(delivery)
        except Refused as exc:
            await self._failed(delivery, str(exc) or "refused", permanent=True)
        except TimeoutError:
            await self._failed(delivery, f"not handled within {self._options.delivery_ms / 1000:g} s")
        except Unhandled as exc:
            await self._failed(delivery, str(exc))
        except asyncio.CancelledError:
            if told_to_stop():
                raise
            await self._failed(delivery, "CancelledError")
        except Exception as exc:  # a consumer's own error, whose text may hold anything
            log.warning("Consumer %s failed with %s", self.name, type(exc).__name__)
            log.debug("Consumer %s", self.name, exc_info=exc)
            await self._failed(delivery, type(exc).__name__)
        else:
            if revision is not None:
                await self._record(delivery, None, revision=revision)

    async def _bring(self, delivery: Delivery) -> int | None:
        """The revision up to which the consumer has handled the task's news; None: another process has them."""
        if isinstance(self._consumer, Questions):
            return await self._consumer.serve(delivery)
        async with asyncio.timeout(self._options.delivery_ms / 1000):
            await self._consumer.deliver(delivery)
        return delivery.revision

    async def _failed(self, delivery: Delivery, why: str, *, permanent: bool = False) -> None:
        await self._record(delivery, why, permanent=permanent)

    async def _record(
        self, delivery: Delivery, why: str | None, *, permanent: bool = False, revision: int | None = None
    ) -> None:
        for wait_s in (*_RECORD_AGAIN_S, None):
            try:
                if why is None:
                    word = await self._store.delivered(delivery, revision)
                else:
                    delay_ms = after_refusal(delivery.failed + 1)
                    word = await self._store.undelivered(
                        delivery, delay_ms=delay_ms, permanent=permanent, why=clean(why[:WHY_MAX])
                    )
            except StoreUnavailable as exc:
                if wait_s is None:
                    log.warning("News of %s for %s come again: %s", label(delivery.event.task_id), self.name, exc)
                    return
                await asyncio.sleep(wait_s)
            else:
                task = label(delivery.event.task_id)
                if word == "DEAD":
                    log.warning("Task %s: its %s is a dead letter of %s: %s", task, delivery.event.kind, self.name, why)
                else:
                    log.info("Task %s: %s for %s: %s", task, delivery.event.kind, self.name, word)
                return
