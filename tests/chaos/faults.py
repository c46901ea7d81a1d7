"""The faults, and the schedule by which they are committed: three tracks side by side, each a cycle, from one seed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, cast

import psutil
import redis.asyncio
from redis.exceptions import RedisError

from tests.chaos.herd import LEASE_MS, PREFIX, Herd, Member
from tests.chaos.ledger import Ledger

#: Longer than the lease: whoever is frozen loses what it had.
FREEZE_S: Final = (LEASE_MS / 1000 + 0.7, LEASE_MS / 1000 + 3.0)
#: The store's freezes are of all lengths, below and above the lease.
STORE_FREEZE_S: Final = (1.0, 7.0)
STORE_DOWN_S: Final = (0.1, 2.5)
QUEUE: Final = f"{PREFIX}mcptasks"

#: Per five minutes, what a run must have done to prove anything (issue 3).
WANTED: Final = {"worker kills": 30, "server kills": 10, "store restarts": 5}
_COUNTS_AS: Final = {
    "kill worker": "worker kills",
    "kill leader": "worker kills",
    "kill child": "worker kills",
    "kill server": "server kills",
    "restart store": "store restarts",
}

Fault = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Interval:
    """When something was in its unhealthy state, by the driver's clock."""

    began: float
    ended: float


@dataclass
class Faults:
    """Commits faults on the herd until it is cancelled; what is frozen then is thawed."""

    herd: Herd
    ledger: Ledger
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter[str])
    #: Process number -> when it stood still.
    frozen: dict[int, list[Interval]] = field(default_factory=dict[int, list[Interval]])
    #: When the store did not answer.
    store_away: list[Interval] = field(default_factory=list[Interval])

    async def commit(self) -> None:
        """Never returns."""
        workers = ["kill worker", "kill child", "kill leader", "term worker", "kill child", "freeze worker"]
        workers += ["kill worker", "kill leader", "freeze child", "kill child"]
        servers = ["kill server", "term server", "kill server", "kill server"]
        store = ["restart store", "drop queue", "freeze store", "cut connections", "restart store", "drop queue"]
        async with asyncio.TaskGroup() as tracks:
            tracks.create_task(self._track(workers, every_s=5.0))
            tracks.create_task(self._track(servers, every_s=16.0))
            tracks.create_task(self._track(store, every_s=10.0))

    async def _track(self, cycle: Sequence[str], *, every_s: float) -> None:
        while True:
            for kind in cycle:
                await asyncio.sleep(every_s * self.rng.uniform(0.6, 1.4))
                began = time.time()
                target = await self._faults[kind](self)
                self.counts[kind] += 1
                self.ledger.add("faults", kind, target, began, time.time(), "")

    def summary(self) -> dict[str, int]:
        """How many of what the issue counts."""
        done: Counter[str] = Counter()
        for kind, count in self.counts.items():
            if kind in _COUNTS_AS:
                done[_COUNTS_AS[kind]] += count
        return {name: done[name] for name in WANTED}

    # -------------------------------------------------------------------------------------------- workers, servers

    async def _kill_worker(self) -> str:
        async with self._one_of(self.herd.workers) as worker:
            self.herd.kill_group(worker)
            return worker.name

    async def _kill_leader(self) -> str:
        async with self._one_of(self.herd.workers) as worker:
            self.herd.kill_leader(worker)
            return worker.name

    async def _kill_child(self) -> str:
        async with self._one_of(self.herd.workers[:2]) as worker:
            child = self._child_of(worker)
            if child is not None:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            return worker.name

    async def _term_worker(self) -> str:
        async with self._one_of(self.herd.workers) as worker:
            self.herd.terminate(worker)
            return worker.name

    async def _freeze_worker(self) -> str:
        async with self._one_of(self.herd.workers) as worker:
            assert worker.proc is not None
            family = [worker.proc.pid, *worker.proc.children()]
            group = worker.proc.pid
            await self._frozen(lambda signum: os.killpg(group, signum), family, self.rng.uniform(*FREEZE_S))
            return worker.name

    async def _freeze_child(self) -> str:
        async with self._one_of(self.herd.workers[:2]) as worker:
            child = self._child_of(worker)
            if child is not None:
                await self._frozen(child.send_signal, [child.pid], self.rng.uniform(*FREEZE_S))
            return worker.name

    async def _kill_server(self) -> str:
        async with self._one_of(self.herd.servers) as server:
            self.herd.kill_group(server)
            return server.name

    async def _term_server(self) -> str:
        async with self._one_of(self.herd.servers) as server:
            self.herd.terminate(server)
            return server.name

    @asynccontextmanager
    async def _one_of(self, members: Sequence[Member]) -> AsyncGenerator[Member]:
        """One that works and that no other fault has in hand."""
        free: list[Member] = []
        while not free:
            await asyncio.sleep(0.1)
            free = [m for m in members if m.ready and not m.taken and m.told_at is None]
        member = self.rng.choice(free)
        member.taken = True
        try:
            yield member
        finally:
            member.taken = False

    def _child_of(self, worker: Member) -> psutil.Process | None:
        assert worker.proc is not None
        with suppress(psutil.NoSuchProcess):
            if children := psutil.Process(worker.proc.pid).children():
                return self.rng.choice(children)
        return None

    async def _frozen(self, send: Callable[[int], None], pids: Sequence[int], seconds: float) -> None:
        began = time.time()
        try:
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                send(signal.SIGSTOP)
            await asyncio.sleep(seconds)
        finally:
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                send(signal.SIGCONT)
            for pid in pids:
                self.frozen.setdefault(pid, []).append(Interval(began, time.time()))

    # -------------------------------------------------------------------------------------------- the store

    async def _restart_store(self) -> str:
        store, began = self.herd.store, time.time()
        store.held_down = True
        try:
            self.herd.kill_group(store)
            await asyncio.sleep(self.rng.uniform(*STORE_DOWN_S))
        finally:
            store.held_down = False
        await self.herd.until(self.herd.store_answers, "the store is back on its folder and port")
        self.store_away.append(Interval(began, time.time()))
        return "valkey"

    async def _freeze_store(self) -> str:
        assert self.herd.store.proc is not None
        pid, began = self.herd.store.proc.pid, time.time()
        await self._frozen(lambda signum: os.kill(pid, signum), [pid], self.rng.uniform(*STORE_FREEZE_S))
        self.store_away.append(Interval(began, time.time()))
        return "valkey"

    async def _drop_queue(self) -> str:
        """The messages are gone, once there are some; after a while an empty queue will do."""
        async with self._client() as client:
            for _ in range(60):
                if dropped := await self._drop(client):
                    return f"{dropped} messages"
                await asyncio.sleep(0.05)
        return "0 messages"

    async def _drop(self, client: Any) -> int:
        with suppress(RedisError):
            async with client.pipeline(transaction=True) as pipe:
                pipe.llen(QUEUE)
                pipe.delete(QUEUE)
                return int((await pipe.execute())[0])
        return 0

    async def _cut_connections(self) -> str:
        cut = 0
        with suppress(RedisError):
            async with self._client() as client:
                for kind in ("normal", "pubsub"):
                    cut += int(await client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"))
        return f"{cut} connections"

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[Any]:
        client = redis.asyncio.Redis.from_url(self.herd.store_url, socket_timeout=5)
        try:
            yield cast("Any", client)
        finally:
            await client.aclose()

    _faults: ClassVar = {
        "kill worker": _kill_worker,
        "kill leader": _kill_leader,
        "kill child": _kill_child,
        "term worker": _term_worker,
        "freeze worker": _freeze_worker,
        "freeze child": _freeze_child,
        "kill server": _kill_server,
        "term server": _term_server,
        "restart store": _restart_store,
        "freeze store": _freeze_store,
        "drop queue": _drop_queue,
        "cut connections": _cut_connections,
    }
