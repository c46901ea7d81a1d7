"""A job that takes its process down: bounded, and the others beside it do not pay for it (case A05, issue 3, part 2).

Where runs share a process (threads), nobody knows which of them killed it, so every task's last attempt is made in a
process of its own.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

import psutil
import pytest
from mcp_types import INTERNAL_ERROR

from mcptasks.client import Connection, TaskFailed, TaskHandle
from mcptasks.model import Reason
from tests.fleet.conftest import Served
from tests.fleet.recovery_system import EXIT_CODE, SOME_DEATHS_S, Supervised, await_event, on_recovering
from tests.fleet.system import LEASE_MS, SWEEP_MS, Fleet, client, new_key, outcome, start
from tests.requirements import covers
from tests.support.processes import living
from tests.support.waiting import wait_until

pytest_plugins = ["tests.fleet.recovery_fixtures"]
pytestmark = [pytest.mark.anyio, pytest.mark.slow]

QUICK: Final = 10
LONG: Final = 2
#: On top of lease and sweep: a busy machine, and the message's way.
MARGIN_S: Final = 10.0


@on_recovering
@covers("A05", "W3")
@pytest.mark.slow
@pytest.mark.parametrize("pool", ["threads", "prefork"])
async def test_a_job_that_ends_its_process_is_given_up_and_nothing_beside_it_is(
    recovering: Served, tmp_path: Path, pool: str
) -> None:
    """A05: at most three runs, then `worker_lost`; ten quick calls and the long jobs beside it complete.

    In threads the long ones lose two attempts to their neighbour. Their third is made alone, as is the neighbour's.
    """
    poison, quick, long, release, fleet = new_key(), new_key(), new_key(), tmp_path / "release", recovering.fleet
    with Supervised(fleet, pool, concurrency=4) as worker:
        async with client(recovering.url) as connection:
            innocents = [await start(connection, "gate", key=f"{long}{n}", path=str(release)) for n in range(LONG)]
            for n in range(LONG):
                await_event(fleet, f"{long}{n}", "begin")
            deadly = await start(connection, "exits", key=poison)
            calls = [await start(connection, "ledger", key=f"{quick}{n}") for n in range(QUICK)]
            for n, call in enumerate(calls):
                assert await outcome_after_deaths(call) == f"ran {quick}{n}"
            with pytest.raises(TaskFailed, match="The worker process was lost 3 times") as failed:
                await deadly.result(SOME_DEATHS_S)
            release.touch()
            for n, innocent in enumerate(innocents):
                assert await outcome_after_deaths(innocent) == f"passed {long}{n}"
        deaths = worker.deaths
    assert failed.value.code == INTERNAL_ERROR
    assert (fleet.record(deadly).reason, fleet.record(deadly).attempt) == (Reason.WORKER_LOST, 3)
    assert fleet.ledger.count(poison) == 3
    # The third run was alone, so that it took no worker along; prefork's children die without their worker.
    assert deaths == (2 if pool == "threads" else 0)
    for n in range(LONG):
        assert fleet.ledger.count(f"{long}{n}", "end") == 1


async def outcome_after_deaths(handle: TaskHandle) -> str:
    """The text of the task's result, which may take a few deaths of its worker."""
    [block] = (await handle.result(SOME_DEATHS_S)).content
    return getattr(block, "text", "")


@on_recovering
@covers("A05", "W3")
@pytest.mark.parametrize("pool", ["threads", "prefork"])
async def test_a_job_that_must_not_begin_twice_fails_at_its_first_loss(recovering: Served, pool: str) -> None:
    """Issue 3.2, `on_worker_lost="fail"`: what cannot be repeated is given up, and says why."""
    key, fleet = new_key(), recovering.fleet
    with Supervised(fleet, pool, concurrency=2):
        async with client(recovering.url) as connection:
            handle = await start(connection, "exits_and_must_not_begin_twice", key=key)
            with pytest.raises(TaskFailed, match="The worker process was lost 1 time") as failed:
                await handle.result(SOME_DEATHS_S)
    assert failed.value.code == INTERNAL_ERROR
    assert (fleet.record(handle).reason, fleet.record(handle).attempt) == (Reason.WORKER_LOST, 1)
    assert fleet.ledger.count(key) == 1


# ------------------------------------------------------------------------------------------------ the lone process


async def lone_run(
    connection: Connection, fleet: Fleet, key: str, path: Path, tool: str = "exits_first"
) -> tuple[TaskHandle, psutil.Process]:
    """A task whose last attempt runs now, and the process that it has to itself."""
    handle = await start(connection, tool, key=key, path=str(path))
    return handle, psutil.Process(await_event(fleet, key, "begin")["pid"])


def await_end_of(process: psutil.Process) -> None:
    """It does not run any more."""
    wait_until(lambda: not living([process]), description="the lone process has ended")


@on_recovering
@covers("A05")
@pytest.mark.slow
@pytest.mark.parametrize("cancelled", [False, True], ids=["to its end", "to its cancel"])
async def test_a_lone_run_has_a_process_of_its_own_and_ends_like_any_other(
    recovering: Served, tmp_path: Path, cancelled: bool
) -> None:
    """The lone process itself stores how the run ended, and hears its cancel; its id is on no command line."""
    key, release, fleet = new_key(), tmp_path / "release", recovering.fleet
    with Supervised(fleet, "threads", concurrency=4) as worker:
        async with client(recovering.url) as connection:
            handle, process = await lone_run(connection, fleet, key, release)
            assert process.ppid() == worker.lives[-1].pid
            assert handle.task_id not in " ".join(process.cmdline())
            if cancelled:
                await handle.cancel()
                assert (await handle.wait(60)).status == "cancelled"
            else:
                release.touch()
                assert await outcome(handle) == f"passed {key}"
            await_end_of(process)
    assert fleet.ledger.events(key) == ["run", "run", "begin", "stopped" if cancelled else "end"]
    assert fleet.record(handle).attempt == 2


@on_recovering
@covers("A05", "W3", "R9")
@pytest.mark.slow
@pytest.mark.parametrize("end", ["its neighbour kills it", "it is killed", "it is stopped"])
async def test_a_last_attempt_is_not_lost_with_the_worker_that_made_it(
    recovering: Served, tmp_path: Path, end: str
) -> None:
    """Issue 3.2: a poison job takes no other's attempt along, the last one least of all; nor does a deploy.

    The lone process goes with its worker, and gives back what it has not done.
    """
    key, release, fleet = new_key(), tmp_path / "release", recovering.fleet
    with Supervised(fleet, "threads", concurrency=4) as worker:
        async with client(recovering.url) as connection:
            handle, process = await lone_run(connection, fleet, key, release)
            first = worker.lives[-1]
            match end:
                case "its neighbour kills it":
                    await start(connection, "exits_and_must_not_begin_twice", key=key + "neighbour")
                case "it is killed":
                    # Nobody but it: the whole group's end is nobody's fault, and costs the attempt.
                    os.kill(first.pid, signal.SIGKILL)
                case _:
                    first.terminate()
            second = psutil.Process(await_event(fleet, key, "begin", times=2)["pid"])
            await_end_of(process)
            assert first.await_end() == {"its neighbour kills it": EXIT_CODE, "it is killed": -9}.get(end, 0)
            assert second.ppid() == worker.lives[-1].pid != first.pid
            release.touch()
            assert await outcome(handle) == f"passed {key}"
    assert fleet.ledger.events(key) == ["run", "run", "begin", "stopped", "run", "begin", "end"]
    assert (fleet.record(handle).attempt, fleet.record(handle).token) == (2, 3)


@on_recovering
@covers("A05", "R9")
@pytest.mark.slow
async def test_a_lone_process_that_cannot_be_stopped_does_not_outlive_its_worker(
    recovering: Served, tmp_path: Path
) -> None:
    """R9: an orphan would go on beside whatever comes next. What it had not done is lost, and the task says so."""
    key, fleet = new_key(), recovering.fleet
    with Supervised(fleet, "threads", concurrency=4) as worker:
        async with client(recovering.url) as connection:
            handle, process = await lone_run(connection, fleet, key, tmp_path / "never", "exits_first_then_deaf")
            os.kill(worker.lives[-1].pid, signal.SIGKILL)
            await_end_of(process)
            with pytest.raises(TaskFailed, match="The worker process was lost 2 times"):
                await handle.result(SOME_DEATHS_S)
    assert fleet.record(handle).reason is Reason.WORKER_LOST
    assert fleet.ledger.count(key, "end") == 0


# ------------------------------------------------------------------------------------------------ prefork's children


@on_recovering
@covers("B06", "W3")
async def test_after_kill_9_of_a_pools_child_its_task_runs_again_within_lease_and_sweep(
    recovering: Served, tmp_path: Path
) -> None:
    """B06: the kernel's out-of-memory killer takes a child, not the worker; its neighbours do not notice."""
    key, other, release, fleet = new_key(), new_key(), tmp_path / "release", recovering.fleet
    worker = fleet.worker("prefork", concurrency=2)
    async with client(recovering.url) as connection:
        handle = await start(connection, "stoppable_gate", key=key, path=str(release))
        beside = await start(connection, "stoppable_gate", key=other, path=str(release))
        child = fleet.ledger.await_event(key, "begin")["pid"]
        fleet.ledger.await_event(other, "begin")
        assert child in worker.children()
        killed_at = time.time()
        os.kill(child, signal.SIGKILL)
        again = await_event(fleet, key, "begin", times=2)
        assert again["at"] - killed_at < (LEASE_MS + SWEEP_MS) / 1000 + MARGIN_S
        release.touch()
        assert await outcome(handle) == f"passed {key}"
        assert await outcome(beside) == f"passed {other}"
    assert worker.exit_code is None
    assert fleet.ledger.events(key) == ["begin", "begin", "end"]
    assert fleet.ledger.events(other) == ["begin", "end"]
    assert (fleet.record(handle).attempt, fleet.record(beside).attempt) == (2, 1)
