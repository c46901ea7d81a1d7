"""Five thousand tasks wait for people on one worker with two slots, and cost it nothing (case A07)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, cast

import anyio
import anyio.to_thread
import psutil
import pytest

from mcptasks.client import Connection, TaskHandle
from mcptasks.fleet.app import make_app
from tests.fleet.recovery_system import RecoveryFleet
from tests.fleet.system import Fleet, Proc, answer, client, new_key, outcome, start
from tests.requirements import covers
from tests.support.waiting import eventually

pytest_plugins = ["tests.fleet.recovery_fixtures"]
pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CROWD: Final = 5_000
#: The worker's caches and pools are full after these; from here on only the crowd can make it grow.
FIRST: Final = 200
CALLERS: Final = 8

GROWTH_MIB: Final = 100
#: A07's own bound.
QUICK_S: Final = 5.0
#: Half an hour would be a worker that takes them one by one from countdowns.
ALL_PARKED_S: Final = 1_200.0
#: How many parked tasks of the fleet may hold a countdown message (settings.countdown_budget).
BUDGET: Final = 200

#: A day to live and ordinary leases: the crowd must not expire, nor look dead, while the machine is slow.
ENV: Final = {"MCPTASKS_TTL_MS": "86400000", "MCPTASKS_LEASE_MS": "15000"}


async def park(connection: Connection, key: str, count: int) -> list[TaskHandle]:
    """So many tasks that ask a question were accepted."""
    handles: list[TaskHandle] = []

    async def some(share: int) -> None:
        for _ in range(share):
            handles.append(await start(connection, "ask1", key=key, x=len(handles)))

    async with anyio.create_task_group() as group:
        for _ in range(CALLERS):
            group.start_soon(some, count // CALLERS)
    return handles


async def await_parked(fleet: Fleet, handles: Sequence[TaskHandle]) -> None:
    """All of them wait for an answer."""

    async def parked() -> bool:
        await anyio.sleep(0.5)  # each look reads every task
        return await anyio.to_thread.run_sync(statuses, fleet, handles) == {"parked"}

    await eventually(parked, description=f"{len(handles)} tasks are parked", within_s=ALL_PARKED_S)


def statuses(fleet: Fleet, handles: Sequence[TaskHandle]) -> set[str]:
    """Every status that one of them has in the store."""
    with fleet.raw.pipeline(transaction=False) as pipe:
        for handle in handles:
            pipe.hget(fleet.keys.task(handle.task_id), "status")
        return set(cast("list[str]", pipe.execute()))


def rss_mib(worker: Proc) -> float:
    """The worker's resident memory."""
    return psutil.Process(worker.pid).memory_info().rss / 2**20


def held(fleet: Fleet) -> dict[str, int]:
    """How many messages the workers and the broker have in hand."""
    with make_app(fleet.settings) as app:
        scheduled = cast("dict[str, list[object]]", app.control.inspect(timeout=10, limit=1).scheduled() or {})
    return {
        "countdowns": sum(map(len, scheduled.values())),
        "unacked": fleet.raw.hlen(f"{fleet.prefix}unacked"),
        "waiting": len(fleet.messages()),
    }


async def quick(connection: Connection) -> float:
    """How many seconds a call takes that asks nobody."""
    key, began = new_key(), time.monotonic()
    assert await outcome(await start(connection, "ledger", key=key)) == f"ran {key}"
    return time.monotonic() - began


@covers("A07", "W1")
async def test_a_crowd_that_waits_costs_its_worker_neither_memory_nor_messages(shaken: RecoveryFleet) -> None:
    """A07: each waiting task was a message in one worker's memory, until that was killed and the next took the lot."""
    key, fleet = new_key(), shaken
    worker, server = fleet.start_worker(concurrency=2, **ENV), fleet.start_server(**ENV)
    async with client(fleet.ready(worker, server)) as connection:
        crowd = await park(connection, key, FIRST)
        await await_parked(fleet, crowd)
        before, began = rss_mib(worker), time.monotonic()
        crowd += await park(connection, key, CROWD - FIRST)
        while_full = held(fleet)
        await await_parked(fleet, crowd)
        parked_s, grown, after = time.monotonic() - began, rss_mib(worker) - before, held(fleet)
        first_s = await quick(connection)
        print(f"\n{CROWD} parked in {parked_s:.0f} s; +{grown:.1f} MiB; {while_full}, {after}; quick {first_s:.2f} s")
        assert grown < GROWTH_MIB
        for messages in (while_full, after):
            assert messages["countdowns"] + messages["unacked"] <= BUDGET + 2, "two are what the slots work on"
        assert first_s < QUICK_S
        stopping = time.monotonic()
        assert worker.stop() == 0
        stop_s = time.monotonic() - stopping
        worker = fleet.worker("threads", concurrency=2, **ENV)
        assert statuses(fleet, crowd) == {"parked"}
        second_s = await quick(connection)
        resumed_s: list[float] = []
        for chosen in (0, CROWD // 2, CROWD - 1):
            asked = time.monotonic()
            await answer(crowd[chosen], "yes")
            assert (await outcome(crowd[chosen])).endswith(" yes")
            resumed_s.append(time.monotonic() - asked)
        print(f"stopped in {stop_s:.1f} s; quick {second_s:.2f} s; resumed in {max(resumed_s):.2f} s at most")
        assert second_s < QUICK_S and max(resumed_s) < QUICK_S
        still = [handle for n, handle in enumerate(crowd) if n not in (0, CROWD // 2, CROWD - 1)]
        assert statuses(fleet, still) == {"parked"}
        assert rss_mib(worker) < before + GROWTH_MIB
    assert fleet.ledger.count(key, "answered") == 3
    assert fleet.ledger.count(key) == CROWD + 3
