"""Gauges that are looked up when somebody scrapes: of the store, the same in every process, and of this worker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from mcptasks.errors import StoreUnavailable
from mcptasks.model import Status
from mcptasks.settings import Settings
from mcptasks.store.gauges import Levels
from mcptasks.store.registry import FRESH_MS, WorkerPulse
from mcptasks.store.store import TaskStore

#: Two scrapes within this time are one look at the store.
_FRESH_S: Final = 5.0


class StoreGauges(Collector):
    """The store as it is now. Every process tells the same: take `max`, never `sum`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._again_at = 0.0
        self._seen: Levels | None = None

    def describe(self) -> list[Metric]:
        """Nothing is looked up for it: a registry asks when the collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauges; without a store only that it is down."""
        seen = self._look()
        yield _gauge("store_up", "Whether the store answered.", float(seen is not None))
        if seen is None:
            return
        tasks = GaugeMetricFamily("mcptasks_tasks", "Unfinished tasks, by status.", labels=["status"])
        since = GaugeMetricFamily(
            "mcptasks_oldest_seconds", "For how long the longest has been in that status.", labels=["status"]
        )
        for status in (status for status in Status if not status.terminal):
            tasks.add_metric([status], seen.counts.by_status[status])
            at_ms = seen.counts.since_ms.get(status)
            since.add_metric([status], 0 if at_ms is None else max(0, seen.now_ms - at_ms) / 1000)
        yield tasks
        yield since
        yield _gauge("overdue_tasks", "Unfinished tasks whose time to live is over.", seen.counts.overdue)
        yield _gauge("unsent_tasks", "Tasks that wait for a worker or a time, their messages unclaimed.", seen.unsent)
        late = GaugeMetricFamily(
            "mcptasks_sweep_late_seconds",
            "How overdue the first entry of each of the sweeper's indexes is.",
            labels=["index"],
        )
        for name, late_ms in seen.late_ms.items():
            late.add_metric([name], late_ms / 1000)
        yield late
        yield _gauge("admission_open", "Whether new tasks are accepted.", float(seen.admission_open))
        yield _gauge("workers", "Workers that are heard of.", len(seen.workers))
        yield _gauge(
            "deaf_workers",
            "Those that have free slots and take none of the messages that wait.",
            sum(pulse.deaf for pulse in seen.workers.values()),
        )
        yield _gauge(
            "tracked_due_late_seconds", "How overdue the first poll of a tracked task is.", seen.tracked_late_ms / 1000
        )
        yield _gauge("tracked_tasks", "Tracked remote tasks that have not ended.", seen.tracked)
        yield _gauge("dead_letters", "Events of tracked tasks that their consumers did not take.", seen.dead_letters)
        depth = GaugeMetricFamily(
            "mcptasks_outbox_events", "Events of tracked tasks that their consumer is owed.", labels=["consumer"]
        )
        waits = GaugeMetricFamily(
            "mcptasks_outbox_late_seconds",
            "For how long the first event that could be delivered waits for a tracker to do that.",
            labels=["consumer"],
        )
        for name, outbox in seen.outboxes.items():
            depth.add_metric([name], outbox.depth)
            waits.add_metric([name], outbox.late_ms / 1000)
        yield depth
        yield waits

    def _look(self) -> Levels | None:
        with self._lock:
            if time.monotonic() >= self._again_at:
                self._seen = asyncio.run(_levels(self._settings))
                self._again_at = time.monotonic() + _FRESH_S
            return self._seen


async def _levels(settings: Settings) -> Levels | None:
    try:
        async with aclosing(TaskStore(settings)) as store:
            return await store.levels()
    except StoreUnavailable:
        return None


class WorkerGauges(Collector):
    """What this worker last said of itself; nothing before that, and nothing that it has not renewed for a while.

    Who cannot reach the store says nothing new: numbers of an hour ago would look like those of now.
    """

    def __init__(self, pulse: Callable[[], WorkerPulse | None]) -> None:
        self._pulse = pulse
        self._last: WorkerPulse | None = None
        self._since = 0.0

    def describe(self) -> list[Metric]:
        """As of `StoreGauges`."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        pulse, now = self._pulse(), time.monotonic()
        if pulse is not self._last:
            self._last, self._since = pulse, now
        if pulse is None or now - self._since > FRESH_MS / 1000:
            return
        yield _gauge("worker_slots", "How many runs this worker takes at a time.", pulse.slots)
        yield _gauge("worker_busy", "How many it has.", pulse.active)
        yield _gauge(
            "worker_deaf_seconds",
            "For how long messages have waited while it had free slots and took none.",
            pulse.deaf_ms / 1000,
        )
        yield _gauge("worker_stuck_runs", "Runs that go on although their tasks have ended.", sum(pulse.stuck.values()))
        if pulse.waiting is not None:
            yield _gauge("worker_waiting_messages", "Messages that wait in its queues.", pulse.waiting)


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"mcptasks_{name}", about, value=value)
