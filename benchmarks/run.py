"""One run: everything started, warmed up, measured in interleaved rounds, and stopped.

Within a round every measure is taken on both systems one right after the other, and the order changes with every
round, so that whatever else this machine does hits both alike; ratios are of neighbours.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Final

from benchmarks import bare_celery, measures
from benchmarks.driver import Samples, now_ms
from benchmarks.systems import (
    CELERY,
    FASTMCP,
    OURS,
    SLOTS,
    BareCelery,
    System,
    fastmcp,
    ours,
    store_info,
    valkey,
)
from benchmarks.systems import bare_celery as bare_celery_worker

Measure = Callable[[int, int, int], Awaitable[Samples]]

MEASURES: Final[dict[str, Measure]] = {
    "plain": measures.plain,
    "create": measures.create,
    "get": measures.get,
    "complete": measures.complete,
    "answer": measures.answer,
    "burst": measures.burst,
}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    #: Operations per measure and round with 1 client, with 16 clients, and in a burst of 16 clients.
    single: int
    many: int
    burst: int
    #: Tasks waiting when a stopped worker goes on.
    backlog: int
    #: Calls through each system's own client per round.
    own: int

    def steps(self) -> list[tuple[str, int, int]]:
        """Measure, concurrency and count of all that is measured once per round and system."""
        latencies = [name for name in MEASURES if name != "burst"]
        return [
            *((name, 1, self.single) for name in latencies),
            *((name, SLOTS, self.many) for name in latencies),
            ("burst", SLOTS, self.burst),
        ]


FULL: Final = Plan(rounds=7, single=40, many=160, burst=240, backlog=300, own=10)
QUICK: Final = Plan(rounds=2, single=8, many=32, burst=64, backlog=100, own=4)


@dataclass
class Results:
    """Everything a run gave, raw."""

    #: System -> "measure@concurrency" -> one entry per round.
    samples: dict[str, dict[str, list[Samples]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    #: System -> tasks per second of a worker that finds a backlog, one entry per round.
    backlog_per_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    #: System -> CPU milliseconds per task of a burst, one entry per round: server, worker and store.
    cpu_ms: dict[str, list[dict[str, float]]] = field(default_factory=lambda: defaultdict(list))
    #: System -> what it takes while nothing is asked of it: percent of one core, and MiB.
    idle: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    store_version: str = ""


class Run:
    """The systems of one run, and what was measured on them so far."""

    def __init__(self, plan: Plan, only: frozenset[str], pool: str, tell: Callable[[str, float], None]) -> None:
        self.plan, self.only, self.pool, self._tell = plan, only, pool, tell
        self.results = Results()
        self._systems: list[System] = []
        self._celery: BareCelery | None = None
        self._store = ""

    def total(self) -> int:
        """How many steps `tell` will count."""
        servers = len(self.only & {OURS, FASTMCP})
        backlog = len(self.only & {OURS, CELERY})
        return 1 + self.plan.rounds * ((len(self.plan.steps()) + 1) * servers + backlog)

    def measure(self, logs: Path) -> Results:
        """The results of all rounds; nothing that was started still runs.

        Raises:
            RuntimeError: something did not start; with the end of its log.
            WrongAnswer, TimeoutError: a server answered wrongly or not at all.
        """
        with ExitStack() as stack:
            self._tell("starting", 0)
            self._store = stack.enter_context(valkey())
            self.results.store_version = str(store_info(self._store)["valkey_version"])
            if FASTMCP in self.only:
                self._systems.append(stack.enter_context(fastmcp(self._store, logs)))
            if OURS in self.only:
                self._systems.append(stack.enter_context(ours(self._store, logs, self.pool)))
            if CELERY in self.only:
                self._celery = stack.enter_context(bare_celery_worker(self._store, logs, self.pool))
            asyncio.run(self._rounds())
        return self.results

    async def _rounds(self) -> None:
        await self._warm_up()
        self._at_rest()
        self._tell("warmed up", 1)
        for number in range(self.plan.rounds):
            order = self._systems[::-1] if number % 2 else self._systems
            for name, concurrency, count in self.plan.steps():
                for system in order:
                    await self._one(system, name, concurrency, count, f"round {number + 1}")
            for system in order:
                samples = await measures.own_client(system.client, system.port, self.plan.own)
                self.results.samples[system.name]["own@1"].append(samples)
                self._tell(f"round {number + 1}, {system.name}: its own client", 1)
            await self._backlogs(f"round {number + 1}")

    async def _warm_up(self) -> None:
        """Twice, because the first calls import, compile and fill pools; nothing of it is kept."""
        for _ in range(2):
            for system in self._systems:
                for measure in MEASURES.values():
                    await measure(system.port, SLOTS, SLOTS)
            if self._celery:
                bare_celery.publish(self._celery.settings, SLOTS)
                bare_celery.drained(self._celery.settings)

    def _at_rest(self, seconds: float = 3.0) -> None:
        before = {system.name: system.server.cpu_ms() + system.worker.cpu_ms() for system in self._systems}
        time.sleep(seconds)
        for system in self._systems:
            used = system.server.cpu_ms() + system.worker.cpu_ms() - before[system.name]
            self.results.idle[system.name] = {
                "cpu_percent": used / seconds / 10,
                "server_rss_mib": system.server.rss_mib(),
                "worker_rss_mib": system.worker.rss_mib(),
            }

    async def _one(self, system: System, name: str, concurrency: int, count: int, where: str) -> None:
        before = self._cpu(system)
        samples = await MEASURES[name](system.port, concurrency, count)
        self.results.samples[system.name][f"{name}@{concurrency}"].append(samples)
        if name == "burst":
            after = self._cpu(system)
            self.results.cpu_ms[system.name].append({part: (after[part] - before[part]) / count for part in after})
        self._tell(f"{where}, {system.name}: {name} with {concurrency}", 1)

    def _cpu(self, system: System) -> dict[str, float]:
        info = store_info(self._store)
        store = (info["used_cpu_user"] + info["used_cpu_sys"]) * 1000
        return {"server": system.server.cpu_ms(), "worker": system.worker.cpu_ms(), "store": store}

    async def _backlogs(self, where: str) -> None:
        """How fast a worker alone is: it stands still while the tasks are made, then goes on."""
        for system in self._systems:
            if system.name == OURS:
                system.worker.signal(SIGSTOP)
                handles = await measures.create_backlog(system.port, SLOTS, self.plan.backlog)
                system.worker.signal(SIGCONT)
                began = now_ms()
                wall_ms = await measures.drain(system.port, handles) - began
                self._backlog(OURS, wall_ms, where)
        if self._celery:
            self._celery.worker.signal(SIGSTOP)
            bare_celery.publish(self._celery.settings, self.plan.backlog)
            self._celery.worker.signal(SIGCONT)
            began = now_ms()
            self._backlog(CELERY, bare_celery.drained(self._celery.settings) - began, where)

    def _backlog(self, name: str, wall_ms: float, where: str) -> None:
        self.results.backlog_per_s[name].append(self.plan.backlog / wall_ms * 1000)
        self._tell(f"{where}, {name}: working off a backlog", 1)
