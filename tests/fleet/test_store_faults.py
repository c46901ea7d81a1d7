"""The store stalls, restarts, drops everybody or refuses writes in mid-run: runs keep their claims, results wait, and
workers come back by themselves (W10, A09, A17)."""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from mcptasks.client import Connection, TaskHandle
from mcptasks.model import Status
from tests.fleet.recovery_system import RecoveryFleet
from tests.fleet.system import Fleet, Proc, answer, client, new_key, outcome, questions, start
from tests.requirements import covers
from tests.support.waiting import eventually, wait_until

pytest_plugins = ["tests.fleet.recovery_fixtures"]
pytestmark = [pytest.mark.anyio, pytest.mark.slow]

#: No lease runs out in a fault of these tests, so a second run would be a mistake.
LONG_LEASE: Final = {"MCPTASKS_LEASE_MS": "120000", "MCPTASKS_SHUTDOWN_GRACE_MS": "1000"}
#: A09 has 45 s; what matters is that it is longer than every time-out of ours and of the broker's client (10 s).
FROZEN_S: Final = 20.0


async def fleet_up(fleet: Fleet, pool: str) -> tuple[Proc, Proc, str]:
    """A worker with free slots, a server, and its URL."""
    server, worker = fleet.start_server(**LONG_LEASE), fleet.start_worker(pool, concurrency=3, **LONG_LEASE)
    return worker, server, fleet.ready(worker, server)


async def running(connection: Connection, fleet: Fleet, tool: str, key: str, path: Path) -> TaskHandle:
    """A task that runs until the file is there."""
    handle = await start(connection, tool, key=key, path=str(path))
    fleet.ledger.await_event(key, "begin")
    return handle


async def probe(connection: Connection, fleet: Fleet) -> None:
    """The fleet works: a new call is taken, run and answered, without anybody's help."""
    key = new_key()

    async def accepted() -> TaskHandle | None:
        try:
            return await start(connection, "ledger", key=key)
        except MCPError:
            return None

    handle = await eventually(accepted, description="the server takes a call")
    assert await outcome(handle) == f"ran {key}"


# ------------------------------------------------------------------------------------------------ away and back

Fault = Callable[[Fleet], Awaitable[None]]


async def twice_killed(fleet: Fleet) -> None:
    """`kill -9` and a restart, and at once again: the second restart is the one that took workers down."""
    for _ in range(2):
        fleet.store.kill()
        fleet.store.restart()


async def frozen(fleet: Fleet) -> None:
    """It takes connections and answers nothing, for longer than any time-out."""
    fleet.store.freeze()
    await anyio.sleep(FROZEN_S)  # the thing under test: time passes
    fleet.store.thaw()


async def everybody_dropped(fleet: Fleet) -> None:
    """Every connection is closed, the subscriptions too, again and again."""
    for _ in range(5):
        for kind in ("normal", "pubsub"):
            fleet.raw.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        await anyio.sleep(0.1)  # so that they are back, and are dropped again


@covers("A09", "W10", "W1", "A08")
@pytest.mark.slow
@pytest.mark.parametrize("pool", ["threads", "prefork"])
@pytest.mark.parametrize("fault", [twice_killed, frozen, everybody_dropped])
async def test_a_fault_in_mid_run_costs_no_run_and_no_worker(
    shaken: RecoveryFleet, tmp_path: Path, fault: Fault, pool: str
) -> None:
    """A09: the worker lived and was deaf, or died in its reconnect path, once a task was running and a slot was free.

    One task runs, one waits for a person, one is cancelled after the fault. Nothing runs twice.
    """
    key, asks, stop, release, fleet = new_key(), new_key(), new_key(), tmp_path / "release", shaken
    worker, _, url = await fleet_up(fleet, pool)
    async with client(url) as connection:
        parked = await start(connection, "ask1", key=asks, x=9)
        await questions(parked)
        handle = await running(connection, fleet, "stoppable_gate", key, release)
        doomed = await running(connection, fleet, "stoppable_gate", stop, tmp_path / "never")
        await fault(fleet)
        await probe(connection, fleet)
        release.touch()
        assert await outcome(handle) == f"passed {key}"
        await answer(parked, "yes")
        assert await outcome(parked) == "9 yes"
        await doomed.cancel()
        assert (await doomed.wait(60)).status == "cancelled"
    assert worker.exit_code is None
    assert fleet.ledger.events(key) == ["begin", "end"]
    assert fleet.ledger.events(stop) == ["begin", "stopped"]
    assert fleet.ledger.count(asks, "answered") == 1
    assert {fleet.record(task).attempt for task in (handle, parked, doomed)} == {1}


# ------------------------------------------------------------------------------------------------ no writes


def dead_port() -> int:
    """Where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def demote(fleet: Fleet) -> None:
    """The store is a replica of nobody: it reads, and answers READONLY to writes, as after a failover."""
    fleet.raw.execute_command("REPLICAOF", "127.0.0.1", dead_port())


def promote(fleet: Fleet) -> None:
    """It takes writes again."""
    fleet.raw.execute_command("REPLICAOF", "NO", "ONE")


def fill_up(fleet: Fleet) -> None:
    """The store has no memory for writes, and evicts nothing."""
    fleet.raw.config_set("maxmemory", "1mb")


def make_room(fleet: Fleet) -> None:
    """It has memory again."""
    fleet.raw.config_set("maxmemory", "0")


@covers("A09", "A17", "W10", "P62")
@pytest.mark.slow
@pytest.mark.parametrize("pool", ["threads", "prefork"])
@pytest.mark.parametrize(("begin", "end"), [(demote, promote), (fill_up, make_room)], ids=["readonly", "out of memory"])
async def test_what_a_run_came_to_while_no_write_was_taken_is_written_when_one_is(
    shaken: RecoveryFleet, tmp_path: Path, begin: Callable[[Fleet], None], end: Callable[[Fleet], None], pool: str
) -> None:
    """A09, A17 (b), W10: a result and a question wait and are stored once; meanwhile reads work and calls are refused.

    A durable backend may say no to new work, but may not lose what it accepted, nor do it again.
    """
    key, asks, stop, release, fleet = new_key(), new_key(), new_key(), tmp_path / "release", shaken
    worker, server, url = await fleet_up(fleet, pool)
    async with client(url) as connection:
        handle = await running(connection, fleet, "gate", key, release)
        asking = await running(connection, fleet, "gate_then_ask", asks, release)
        before = fleet.task_ids()
        begin(fleet)
        release.touch()
        fleet.ledger.await_event(key, "end")
        fleet.ledger.await_event(asks, "asks")
        wait_until(lambda: len(waiting(worker)) == 2, description="both wait for the store and say so")
        with pytest.raises(MCPError, match="task store is not available") as refused:
            await start(connection, "ledger", key=stop)
        assert refused.value.error.code == INTERNAL_ERROR
        server.await_output("refused the write")
        assert (await handle.get()).status == (await asking.get()).status == "working"
        assert {fleet.record(task).status for task in (handle, asking)} == {Status.RUNNING}
        end(fleet)
        assert await outcome(handle) == f"passed {key}"
        await answer(asking, "at last")
        assert await outcome(asking) == "at last"
        assert fleet.task_ids() == before, "the refused call left nothing"
        await probe(connection, fleet)
    assert worker.exit_code is None
    assert fleet.ledger.events(key) == ["begin", "end"]
    assert fleet.ledger.events(stop) == []
    assert {fleet.record(task).attempt for task in (handle, asking)} == {1}


def waiting(worker: Proc) -> set[str]:
    """The tasks whose runs wait for the store, by its log."""
    return set(re.findall(r"Task (\S+) waits for the store", worker.output))
