"""A worker that is told to stop: what it lets finish, what it gives back, and what it leaves (issue 3, part 4; R9)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

import psutil
import pytest

from mcptasks.client import Connection, TaskHandle, TasksClient
from tests.fleet.conftest import Served
from tests.fleet.recovery_system import TARGET, RecoveryFleet, on_recovering
from tests.fleet.system import LEASE_MS, Fleet, Proc, answer, client, new_key, outcome, questions, start
from tests.requirements import covers
from tests.support.processes import living
from tests.support.waiting import wait_until

pytest_plugins = ["tests.fleet.recovery_fixtures"]
pytestmark = [pytest.mark.anyio, pytest.mark.slow]

#: Nothing but the claim that was given back can bring a task to another worker: leases and re-sends take too long.
ONLY_BY_HAND: Final = {"MCPTASKS_LEASE_MS": "120000", "MCPTASKS_RESEND_MS": "120000"}
GRACE_MS: Final = 1_000


def first_and_second(fleet: Fleet, pool: str, *, concurrency: int = 4) -> tuple[Proc, Proc]:
    """Two workers that wait for each other's tasks only where those are handed over; the second stands still."""
    grace = {"MCPTASKS_SHUTDOWN_GRACE_MS": str(GRACE_MS)}
    first = fleet.start_worker(pool, concurrency=concurrency, **ONLY_BY_HAND, **grace)
    second = fleet.start_worker("threads", concurrency=4, **ONLY_BY_HAND)
    fleet.ready(first, second)
    second.freeze()
    return first, second


async def on_first(connection: Connection, fleet: Fleet, second: Proc, tool: str, key: str, path: Path) -> TaskHandle:
    """A task of that tool, which the first worker runs now; the second takes what comes from here on."""
    handle = await start(connection, tool, key=key, path=str(path))
    fleet.ledger.await_event(key, "begin")
    second.thaw()
    return handle


@on_recovering
@covers("R9", "W3", "N5")
@pytest.mark.parametrize("pool", ["threads", "prefork"])
async def test_after_its_grace_a_worker_stops_what_runs_and_another_continues_at_once(
    recovering: Served, tmp_path: Path, pool: str
) -> None:
    """Issue 3.4: interrupted and given back, not lost: no lease has to run out, and no attempt is used up."""
    key, quick, late, release, fleet = new_key(), new_key(), new_key(), tmp_path / "release", recovering.fleet
    first, second = first_and_second(fleet, pool)
    async with client(recovering.url) as connection:
        short = await start(connection, "nap", key=quick, seconds=GRACE_MS / 2000)
        handle = await on_first(connection, fleet, second, "stoppable_gate", key, release)
        fleet.ledger.await_event(quick, "begin")
        first.terminate()
        first.await_output("Warm shutdown")
        other = await start(connection, "ledger", key=late)
        again = fleet.ledger.await_event(key, "begin", times=2)
        assert first.await_end() == 0
        release.touch()
        assert await outcome(handle) == f"passed {key}"
        assert await outcome(short) == f"rested {quick}"
        assert await outcome(other) == f"ran {late}"
    assert again["pid"] == second.pid == fleet.ledger.of(late)[0]["pid"]
    assert fleet.ledger.events(quick) == ["begin", "end"], "what fits into the grace is not interrupted"
    assert fleet.ledger.events(key) == ["begin", "stopped", "begin", "end"]
    assert (fleet.record(handle).token, fleet.record(handle).attempt) == (2, 1)
    assert (fleet.record(short).token, fleet.record(short).attempt) == (1, 1)


@on_recovering
@covers("R9")
@pytest.mark.parametrize("pool", ["threads", "prefork"])
async def test_a_worker_that_was_told_to_stop_takes_nothing_new(recovering: Served, tmp_path: Path, pool: str) -> None:
    """Issue 3.4: it stops claiming at once, however long its last run takes and however many slots are free."""
    key, late, release, fleet = new_key(), new_key(), tmp_path / "release", recovering.fleet
    first = fleet.worker(pool)
    async with client(recovering.url) as connection:
        handle = await start(connection, "gate", key=key, path=str(release))
        fleet.ledger.await_event(key, "begin")
        first.terminate()
        first.await_output("Warm shutdown")
        others = [await start(connection, "ledger", key=late) for _ in range(8)]
        release.touch()
        assert await outcome(handle) == f"passed {key}"
        assert first.await_end() == 0
        assert fleet.ledger.events(late) == []
        fleet.worker()
        for other in others:
            assert await outcome(other) == f"ran {late}"
    assert fleet.ledger.count(late) == 8
    assert {fleet.record(other).attempt for other in others} == {1}


@on_recovering
@covers("R9", "W3")
@pytest.mark.parametrize("pool", ["threads", "prefork"])
async def test_a_sync_tool_that_looks_at_cancelled_is_given_back(recovering: Served, tmp_path: Path, pool: str) -> None:
    """Issue 3.4: a thread cannot be interrupted, but a tool that cooperates need not be."""
    key, release, fleet = new_key(), tmp_path / "release", recovering.fleet
    first, second = first_and_second(fleet, pool)
    async with client(recovering.url) as connection:
        handle = await on_first(connection, fleet, second, "sync_gate", key, release)
        first.terminate()
        assert fleet.ledger.await_event(key, "begin", times=2)["pid"] == second.pid
        assert first.await_end() == 0
        release.touch()
        assert await outcome(handle) == f"passed {key}"
    assert fleet.ledger.events(key) == ["begin", "stopped", "begin", "end"]
    assert (fleet.record(handle).token, fleet.record(handle).attempt) == (2, 1)


@on_recovering
@covers("R9", "W3")
@pytest.mark.parametrize("pool", ["threads", "prefork"])
async def test_a_sync_tool_that_looks_at_nothing_keeps_its_claim_and_its_worker(
    recovering: Served, tmp_path: Path, pool: str
) -> None:
    """Issue 3.4: given back while it still runs, it would run twice at once; so it is left, and ends as it likes."""
    key, release, fleet = new_key(), tmp_path / "release", recovering.fleet
    first = fleet.worker(pool, MCPTASKS_SHUTDOWN_GRACE_MS="100")
    async with client(recovering.url) as connection:
        handle = await start(connection, "deaf_gate", key=key, path=str(release))
        fleet.ledger.await_event(key, "begin")
        fleet.worker()
        first.terminate()
        first.await_output("Warm shutdown")
        lease = lease_of(fleet, handle)
        wait_until(
            lambda: lease_of(fleet, handle) > lease + LEASE_MS,
            description="the lease was renewed for more than its own length",
        )
        assert first.exit_code is None
        release.touch()
        assert await outcome(handle) == f"passed {key}"
        assert first.await_end() == 0
    assert fleet.ledger.events(key) == ["begin", "end"]


def lease_of(fleet: Fleet, handle: TaskHandle) -> float:
    """When the task's worker would be taken for dead."""
    return float(str(fleet.raw.zscore(fleet.keys.leases, handle.task_id)))


# ------------------------------------------------------------------------------------------------ the cold stop


@on_recovering
@covers("R9", "W3")
@pytest.mark.parametrize("pool", ["threads", "prefork"])
@pytest.mark.parametrize("tool", ["stoppable_gate", "deaf_gate"])
async def test_a_cold_stop_ends_a_worker_whatever_runs_in_it(
    recovering: Served, tmp_path: Path, pool: str, tool: str
) -> None:
    """Issue 3.4: what a warm stop leaves running is left to the cold stop, and another worker begins it again."""
    key, release, fleet = new_key(), tmp_path / "release", recovering.fleet
    first = fleet.worker(pool)
    async with client(recovering.url) as connection:
        handle = await start(connection, tool, key=key, path=str(release))
        fleet.ledger.await_event(key, "begin")
        second = fleet.worker()
        children = [psutil.Process(pid) for pid in first.children()]
        first.terminate()
        first.await_output("Warm shutdown")
        first.quit()
        first.await_end(within_s=20)
        assert not living(children), "no orphan"
        assert fleet.ledger.await_event(key, "begin", times=2)["pid"] == second.pid
        release.touch()
        assert await outcome(handle) == f"passed {key}"
    assert fleet.ledger.count(key, "end") == 1


# ------------------------------------------------------------------------------------------------ in a worker's hands


@on_recovering
@covers("R9", "A03")
async def test_a_message_that_was_received_but_not_begun_is_handed_back(recovering: Served) -> None:
    """Issue 3.4: acknowledged with its run and lost with its worker, it would cost the task a whole re-send.

    The pool's child stands still while its worker receives the message and is told to stop.
    """
    key, fleet = new_key(), recovering.fleet
    first = fleet.worker("prefork", concurrency=1, **ONLY_BY_HAND)
    [child] = pool_children(first)
    async with client(recovering.url) as connection:
        os.kill(child, signal.SIGSTOP)
        handle = await start(connection, "ledger", key=key)
        first.await_output("received")
        first.terminate()
        first.await_output("Warm shutdown")
        os.kill(child, signal.SIGCONT)
        assert first.await_end() == 0
        assert fleet.ledger.events(key) == []
        fleet.worker(concurrency=4, **ONLY_BY_HAND)
        assert await outcome(handle) == f"ran {key}"
    assert (fleet.record(handle).token, fleet.record(handle).attempt) == (1, 1)


def pool_children(worker: Proc) -> list[int]:
    """The processes of a prefork worker's pool."""
    return [pid for pid in worker.children() if psutil.Process(pid).ppid() == worker.pid]


@on_recovering
@covers("R6", "W1")
async def test_a_parked_task_whose_re_check_lay_in_a_stopped_worker_resumes(recovering: Served) -> None:
    """DESIGN 5: a countdown sits in one worker's memory; stopped or not, the answer must be enough."""
    key, fleet = new_key(), recovering.fleet
    first = fleet.worker(concurrency=4, **ONLY_BY_HAND)
    async with client(recovering.url) as connection:
        handle = await start(connection, "ask1", key=key, x=4)
        await questions(handle)
        wait_until(lambda: fleet.raw.zcard(fleet.keys.countdowns), description="a re-check is on its way")
        assert first.stop() == 0
        fleet.worker(concurrency=4, **ONLY_BY_HAND)
        await answer(handle, "yes")
        assert await outcome(handle) == "4 yes"
    assert fleet.record(handle).attempt == 1


# ------------------------------------------------------------------------------------------------ dev


@covers("R9", "W1")
@pytest.mark.slow
async def test_dev_stops_cleanly_in_the_middle_of_a_run_and_the_next_start_ends_it(
    shaken: RecoveryFleet, tmp_path: Path
) -> None:
    """Issue 3.4: Ctrl-C is how `dev` is left every day; its Valkey, its workers and its runs go down together."""
    key, quick, release, data = new_key(), new_key(), tmp_path / "release", str(tmp_path / "data")
    argv = ("dev", TARGET, "--port", "0", "--workers", "2", "--data", data)
    # Empty is absent: `dev` runs a Valkey of its own.
    first = shaken.start(*argv, MCPTASKS_REDIS_URL="")
    async with client(serving(first)) as connection:
        handle = await start(connection, "stoppable_gate", key=key, path=str(release))
        shaken.ledger.await_event(key, "begin")
        short = await start(connection, "nap", key=quick, seconds=0.5)
        shaken.ledger.await_event(quick, "begin")
    assert first.stop() == 0
    assert shaken.ledger.events(quick) == ["begin", "end"]
    assert shaken.ledger.events(key) == ["begin", "stopped"]
    second = shaken.start(*argv, MCPTASKS_REDIS_URL="")
    async with client(serving(second)) as connection:
        handle = TasksClient.attach(connection.client, handle.task_id)
        assert (await handle.get()).status == "working"
        shaken.ledger.await_event(key, "begin", times=2)
        release.touch()
        assert await outcome(handle) == f"passed {key}"
        assert await outcome(TasksClient.attach(connection.client, short.task_id)) == f"rested {quick}"
    assert second.stop() == 0
    assert shaken.ledger.events(key) == ["begin", "stopped", "begin", "end"]


def serving(dev: Proc) -> str:
    """The URL that `mcptasks dev` serves."""
    return dev.await_output(r"mcptasks dev: serving (http://\S+)").group(1)
