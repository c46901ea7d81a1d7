"""A job that takes its process down: bounded, and the others beside it do not pay for it (case A05, issue 3, part 2).

Where runs share a process (threads), nobody knows which of them killed it, so every task's last attempt is made in a
process of its own.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

import psutil
import pytest
from mcp_types import INTERNAL_ERROR

from mcptasks.client import Connection, TaskFailed, TaskHandle
from mcptasks.model import Reason
from tests.fleet.conftest import Served
from tests.fleet.recovery_system import SOME_DEATHS_S, Supervised, await_event
from tests.fleet.system import Fleet, Proc, client, new_key, outcome, start
from tests.requirements import covers
from tests.support.waiting import wait_until

pytest_plugins = ["tests.fleet.recovery_fixtures"]
pytestmark = pytest.mark.anyio
shared = pytest.mark.xdist_group("shared fleets")

QUICK: Final = 10
LONG: Final = 2
#: Nothing but the claim that was given back can bring a task to another worker: leases and re-sends take too long.
ONLY_BY_HAND: Final = {"MCPTASKS_LEASE_MS": "120000", "MCPTASKS_RESEND_MS": "120000"}


@shared
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


@shared
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


async def lone_run(connection: Connection, fleet: Fleet, key: str, path: Path) -> tuple[TaskHandle, psutil.Process]:
    """A task whose last attempt runs now, and the process that it has to itself."""
    handle = await start(connection, "exits_first", key=key, path=str(path))
    return handle, psutil.Process(await_event(fleet, key, "begin")["pid"])


def ended(process: psutil.Process) -> bool:
    """It does not run any more."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@shared
@covers("A05", "P52")
@pytest.mark.slow
async def test_a_lone_run_has_a_process_of_its_own_and_ends_like_any_other(recovering: Served, tmp_path: Path) -> None:
    """Issue 3.2: completed by the lone process itself, or cancelled in it; the id is on no command line."""
    key, release, fleet = new_key(), tmp_path / "release", recovering.fleet
    with Supervised(fleet, "threads", concurrency=4) as worker:
        async with client(recovering.url) as connection:
            handle, process = await lone_run(connection, fleet, key, release)
            assert process.pid != worker.lives[-1].pid and process.ppid() == worker.lives[-1].pid
            assert handle.task_id not in " ".join(process.cmdline())
            other, second = await lone_run(connection, fleet, key + "other", tmp_path / "never")
            await other.cancel()
            assert (await other.wait(60)).status == "cancelled"
            wait_until(lambda: ended(second), description="the cancelled run's process has ended")
            release.touch()
            assert await outcome(handle) == f"passed {key}"
            wait_until(lambda: ended(process), description="its process has ended")
    assert fleet.ledger.events(key) == ["run", "run", "begin", "end"]
    assert fleet.ledger.events(key + "other") == ["run", "run", "begin", "stopped"]
    assert fleet.record(handle).attempt == 2


@shared
@covers("R9", "W3")
@pytest.mark.slow
async def test_a_worker_that_stops_gives_its_lone_run_back(recovering: Served, tmp_path: Path) -> None:
    """Issue 3.4 with 3.2: the last attempt is not used up by a deploy; the lone process goes with its worker."""
    key, release, fleet = new_key(), tmp_path / "release", recovering.fleet
    with Supervised(fleet, "threads", concurrency=4) as doomed:
        async with client(recovering.url) as connection:
            handle = await start(connection, "exits_first", key=key, path=str(release))
            wait_until(lambda: doomed.deaths == 1, description="it died of it", within_s=SOME_DEATHS_S)
    [first] = doomed.lives[1:]
    async with client(recovering.url) as connection:
        process = psutil.Process(await_event(fleet, key, "begin")["pid"])
        second = fleet.worker("threads", concurrency=4, **ONLY_BY_HAND)
        assert process.ppid() == first.pid
        first.terminate()
        again = await_event(fleet, key, "begin", times=2)
        assert psutil.Process(again["pid"]).ppid() == second.pid
        assert first.await_end() == 0
        assert ended(process)
        release.touch()
        assert await outcome(handle) == f"passed {key}"
    record = fleet.record(handle)
    assert (record.attempt, record.token) == (2, 3)
    assert fleet.ledger.count(key, "end") == 1


@shared
@covers("R9", "A05")
@pytest.mark.slow
async def test_a_lone_process_does_not_outlive_its_worker(recovering: Served, tmp_path: Path) -> None:
    """R9: an orphan would go on beside whatever comes next; its last attempt is lost with the worker all the same."""
    key, fleet = new_key(), recovering.fleet
    with Supervised(fleet, "threads", concurrency=4) as worker:
        async with client(recovering.url) as connection:
            handle, process = await lone_run(connection, fleet, key, tmp_path / "never")
            parent = worker.lives[-1]
            kill_alone(parent)
            wait_until(lambda: ended(process), description="the lone process has ended too")
            with pytest.raises(TaskFailed, match="The worker process was lost 2 times"):
                await handle.result(SOME_DEATHS_S)
    assert fleet.record(handle).reason is Reason.WORKER_LOST
    assert fleet.ledger.count(key, "end") == 0


def kill_alone(proc: Proc) -> None:
    """The process got `kill -9`, and nothing that it had started did."""
    psutil.Process(proc.pid).send_signal(signal.SIGKILL)
