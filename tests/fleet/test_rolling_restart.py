"""A deploy under load: every worker is replaced, one after the other, twice; nothing fails, is lost, or is done twice
(issue 3, part 4 and "Shows")."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from typing import Final

import anyio
import anyio.to_thread
import pytest

from mcptasks import Operations
from mcptasks.client import Connection
from mcptasks.model import Record
from tests.fleet.recovery_system import SOME_DEATHS_S, RecoveryFleet
from tests.fleet.system import Fleet, Proc, client, new_key, start
from tests.requirements import covers

pytest_plugins = ["tests.fleet.recovery_fixtures"]
pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WORKERS: Final = 3
ROUNDS: Final = 2
#: What each worker can hold: three of them more than the load, two of them still.
SLOTS: Final = 200
#: Calls a second, and how long their runs take. The longest outlive the grace and are interrupted.
PER_S: Final = 20
SHORTEST_S, LONGEST_S = 2.0, 30.0

#: Leases and re-sends as in production: with short ones, a stall of a busy machine looks like a death.
ENV: Final = {
    "MCPTASKS_LEASE_MS": "15000",
    "MCPTASKS_RENEW_MS": "5000",
    "MCPTASKS_RESEND_MS": "5000",
    "MCPTASKS_SHUTDOWN_GRACE_MS": "3000",
}


class Load:
    """Calls at a steady rate until it is told to stop."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._over = connection, anyio.Event()
        #: Key -> task id of every call that was accepted.
        self.accepted: dict[str, str] = {}

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            while not self._over.is_set():
                group.start_soon(self._call, len(self.accepted))
                await anyio.sleep(1 / PER_S)  # the load

    def stop(self) -> None:
        """No further call is made."""
        self._over.set()

    async def _call(self, number: int) -> None:
        seconds = SHORTEST_S + number * 0.618 % 1 * (LONGEST_S - SHORTEST_S)
        key = new_key()
        handle = await start(self._connection, "nap", key=key, seconds=seconds)
        self.accepted[key] = handle.task_id


async def replaced(fleet: Fleet, old: Proc) -> Proc:
    """A new worker is up and the old one has gone in order, as a deploy does it."""
    new = await anyio.to_thread.run_sync(partial(fleet.worker, "threads", concurrency=SLOTS, **ENV))
    old.terminate()
    assert await anyio.to_thread.run_sync(old.await_end) == 0
    return new


def events(fleet: Fleet) -> Counter[tuple[str, str]]:
    """How often each event of each key stands in the ledger."""
    lines = (json.loads(line) for line in fleet.ledger.path.read_text().splitlines())
    return Counter((line["key"], line["event"]) for line in lines)


@covers("R9", "W3", "N5")
async def test_a_rolling_restart_under_load_fails_nothing_loses_nothing_and_does_nothing_twice(
    shaken: RecoveryFleet,
) -> None:
    """Issue 3.4: runs that do not fit into the grace go on elsewhere, and no attempt is used up by a deploy."""
    fleet = shaken
    server = fleet.start_server(**ENV)
    workers = [fleet.start_worker("threads", concurrency=SLOTS, **ENV) for _ in range(WORKERS)]
    url = fleet.ready(*workers, server)
    async with client(url) as connection:
        load = Load(connection)
        async with anyio.create_task_group() as group:
            group.start_soon(load.run)
            for _ in range(ROUNDS):
                workers = [await replaced(fleet, worker) for worker in workers]
            load.stop()
    async with Operations(fleet.settings) as operations:
        with anyio.fail_after(SOME_DEATHS_S):
            await operations.drained()
    records = {key: fleet.record(task_id) for key, task_id in load.accepted.items()}
    seen = events(fleet)
    stopped = sum(seen[key, "stopped"] for key in records)
    print(f"\n{len(records)} tasks, {ROUNDS * WORKERS} workers replaced, {stopped} runs interrupted and continued")
    assert fleet.task_ids() == set(load.accepted.values()), "every task there is belongs to an accepted call"
    assert not odd(records)
    assert stopped > 0, "the load was too light to show anything"
    for key, record in records.items():
        assert seen[key, "end"] == 1
        assert record.token == seen[key, "begin"] == seen[key, "stopped"] + 1


def odd(records: dict[str, Record]) -> list[str]:
    """What is not as if no worker had ever been replaced."""
    return [
        f"{key}: {record.status} {record.reason}, attempt {record.attempt}, {record.error}"
        for key, record in records.items()
        if (record.status, record.attempt) != ("completed", 1)
    ]
