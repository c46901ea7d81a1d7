"""A tool asks to be run again later (N4): in time by the store's clock, through restarts, until its list is used up."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import pytest

from mcptasks.client import TaskCancelled, TaskFailed, TaskHandle
from mcptasks.dispatch import Publisher
from mcptasks.fleet.app import make_app
from mcptasks.model import Hint, Reason, Status
from tests.fleet.conftest import Served
from tests.fleet.recovery_system import RecoveryFleet, Supervised, on_recovering
from tests.fleet.system import Fleet, client, new_key, outcome, start
from tests.requirements import covers
from tests.support.waiting import wait_until

pytest_plugins = ["tests.fleet.recovery_fixtures"]
pytestmark = [pytest.mark.anyio, pytest.mark.slow]
on_steady = pytest.mark.xdist_group("one steady fleet for all")

#: The delays of `retry_soon` and `retry_later` as their policies have them.
SOON_S: Final = (0.3, 0.6, 0.9)
LATER_S: Final = 3.0
#: The store counts whole milliseconds; the ledger does not.
TICK_S: Final = 0.001

#: Every delay is too long for a countdown: the store alone keeps it.
NO_COUNTDOWN: Final = {"MCPTASKS_COUNTDOWNS_MS": "[50]"}


def gaps(fleet: Fleet, key: str) -> list[float]:
    """How long after each wish the next run began. Ledger and store share the machine's clock."""
    pairs = itertools.pairwise(fleet.ledger.of(key))
    return [after["at"] - before["at"] for before, after in pairs if before["event"] == "asked"]


def due_ms(fleet: Fleet, handle: TaskHandle) -> int:
    """When the store lets the retry run."""
    return int(str(fleet.raw.hget(fleet.keys.task(handle.task_id), "due")))


def store_ms(fleet: Fleet) -> float:
    """The store's clock."""
    seconds, micros = fleet.raw.time()
    return int(seconds) * 1000 + int(micros) / 1000


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """A server and a worker that nobody takes down."""
    with RecoveryFleet(tmp_path_factory.mktemp("steady")) as mine:
        worker, server = mine.start_worker(), mine.start_server()
        yield Served(mine, mine.ready(worker, server))
        assert mine.keys_for_ever() == []


# ------------------------------------------------------------------------------------------------ the list


@on_steady
@covers("N4")
async def test_a_tool_that_works_in_the_end_was_run_after_each_of_its_delays(steady: Served) -> None:
    """N4: the exact list of delays, in order; asked for, so none of them is an attempt that was lost."""
    key, fleet = new_key(), steady.fleet
    async with client(steady.url) as connection:
        handle = await start(connection, "retry_soon", key=key, failures=3)
        assert await outcome(handle) == f"ran {key}"
    assert fleet.ledger.count(key) == 4
    assert all(gap >= delay - TICK_S for gap, delay in zip(gaps(fleet, key), SOON_S, strict=True)), gaps(fleet, key)
    record = fleet.record(handle)
    assert (record.token, record.attempt, record.reason) == (4, 1, Reason.COMPLETED)


@on_steady
@covers("N4", "P31")
async def test_when_the_list_is_used_up_the_task_fails_with_the_tools_own_error(steady: Served) -> None:
    """N4: the error that the tool gave along, in the same transition that found no delay left."""
    key, fleet = new_key(), steady.fleet
    async with client(steady.url) as connection:
        handle = await start(connection, "retry_soon", key=key, failures=99)
        with pytest.raises(TaskFailed, match="the far end is down") as failed:
            await handle.result(60)
        bare = await start(connection, "retry_without_an_error", key=key + "bare")
        with pytest.raises(TaskFailed, match="it never works") as plain:
            await bare.result(60)
    assert (failed.value.code, plain.value.code) == (-32050, -32603)
    record = fleet.record(handle)
    assert record.error == {"code": -32050, "message": "the far end is down", "data": {"tried": "three times"}}
    assert (record.reason, record.attempt) == (Reason.RETRIES_EXHAUSTED, 1)
    assert fleet.record(bare).reason is Reason.RETRIES_EXHAUSTED
    assert (fleet.ledger.count(key), fleet.ledger.count(key + "bare")) == (4, 2)


@on_steady
@covers("N4")
async def test_a_waiting_retry_is_working_and_says_why_and_a_cancel_ends_it_at_once(steady: Served) -> None:
    """N4: `working` and the tool's own words; there is no run that would have to hear of the cancel."""
    key, fleet = new_key(), steady.fleet
    async with client(steady.url) as connection:
        handle = await start(connection, "retry_later", key=key)
        fleet.await_status(handle, Status.RETRYING)
        task = await handle.get()
        assert (task.status, task.status_message) == ("working", "come back later")
        await handle.cancel()
        assert (await handle.get()).status == "cancelled"
        with pytest.raises(TaskCancelled):
            await handle.result(60)
        assert fleet.raw.zscore(fleet.keys.unsent, handle.task_id) is None, "nothing of it is left to send"
    assert fleet.ledger.count(key) == 1


@on_recovering
@covers("N4", "W3")
async def test_a_lost_worker_uses_up_no_retry_and_a_retry_no_attempt(recovering: Served) -> None:
    """N4: two delays, and a death between their uses."""
    key, fleet = new_key(), recovering.fleet
    with Supervised(fleet, "threads", concurrency=2) as worker:
        async with client(recovering.url) as connection:
            handle = await start(connection, "retry_then_die_then_retry", key=key)
            assert await outcome(handle) == f"ran {key}"
        assert worker.deaths == 1
    record = fleet.record(handle)
    assert (record.token, record.attempt, fleet.ledger.count(key)) == (4, 2, 4)
    assert fleet.raw.hget(fleet.keys.task(handle.task_id), "retries") == "2"


# ------------------------------------------------------------------------------------------------ never early


@on_steady
@covers("N4", "A01")
async def test_a_message_that_comes_before_its_time_runs_nothing(steady: Served) -> None:
    """N4: a copy without its countdown, or one counted down by a clock that runs fast, may not be early by the store's.

    Ten copies come at once; each is put back for the rest of the delay, and one of them runs the task.
    """
    key, fleet = new_key(), steady.fleet
    async with client(steady.url) as connection:
        handle = await start(connection, "retry_later", key=key)
        fleet.await_status(handle, Status.RETRYING)
        due = due_ms(fleet, handle)
        with publisher(fleet) as publish:
            for _ in range(10):
                publish.send(Hint(task_id=handle.task_id, run=2, tool="retry_later", queue="mcptasks"))
        wait_until(lambda: not fleet.messages(), description="the worker has all ten")
        assert store_ms(fleet) < due, "they came in time to be early"
        assert await outcome(handle) == f"ran {key}"
    [first, asked, second] = fleet.ledger.of(key)
    assert (first["event"], asked["event"], second["event"]) == ("run", "asked", "run")
    assert second["at"] * 1000 >= due
    assert (fleet.record(handle).token, fleet.record(handle).attempt) == (2, 1)


@contextmanager
def publisher(fleet: Fleet) -> Generator[Publisher]:
    """Sends messages to the fleet; what was given to it has been sent after the block."""
    with make_app(fleet.settings) as app:
        mine = Publisher(app, broker_is_store=False)
        yield mine
        mine.close()


@on_recovering
@covers("N4")
async def test_a_delay_too_long_for_a_countdown_is_kept_by_the_store(recovering: Served) -> None:
    """N4 and DESIGN 9: a countdown is a message in one worker's memory; long ones are the sweeper's."""
    key, fleet = new_key(), recovering.fleet
    fleet.worker("threads", concurrency=4, **NO_COUNTDOWN)
    async with client(recovering.url) as connection:
        handle = await start(connection, "retry_soon", key=key, failures=2)
        fleet.await_status(handle, Status.RETRYING)
        assert (fleet.raw.zcard(fleet.keys.countdowns), fleet.messages()) == (0, [])
        assert await outcome(handle) == f"ran {key}"
    assert all(gap >= delay - TICK_S for gap, delay in zip(gaps(fleet, key), SOON_S, strict=False)), gaps(fleet, key)


# ------------------------------------------------------------------------------------------------ restarts


@on_recovering
@covers("N4", "W3")
@pytest.mark.parametrize(("pool", "end"), [("threads", "kill"), ("prefork", "terminate")])
async def test_a_retry_survives_the_worker_that_counted_it_down(recovering: Served, pool: str, end: str) -> None:
    """N4: killed, the countdown is lost with its memory; stopped, it goes back to the queue. On time both ways."""
    key, fleet = new_key(), recovering.fleet
    first = fleet.worker(pool)
    async with client(recovering.url) as connection:
        handle = await start(connection, "retry_later", key=key)
        fleet.await_status(handle, Status.RETRYING)
        due = due_ms(fleet, handle)
        wait_until(lambda: not fleet.messages(), description="the worker counts it down")
        assert store_ms(fleet) < due
        if end == "kill":
            first.kill()
        else:
            assert first.stop() == 0
        fleet.worker()
        assert await outcome(handle) == f"ran {key}"
    assert fleet.ledger.count(key) == 2
    assert fleet.ledger.of(key)[-1]["at"] * 1000 >= due
    assert fleet.record(handle).attempt == 1


@covers("N4", "W1")
async def test_a_retry_survives_its_store(shaken: RecoveryFleet) -> None:
    """N4: a `kill -9` of the store while the task waits; its time and its list are in the record."""
    key, fleet = new_key(), shaken
    server, worker = fleet.start_server(), fleet.start_worker()
    async with client(fleet.ready(worker, server)) as connection:
        handle = await start(connection, "retry_later", key=key)
        fleet.await_status(handle, Status.RETRYING)
        due = due_ms(fleet, handle)
        fleet.store.kill()
        fleet.store.restart()
        assert await outcome(handle) == f"ran {key}"
    assert fleet.ledger.count(key) == 2
    assert fleet.ledger.of(key)[-1]["at"] * 1000 >= due
    assert (fleet.record(handle).token, fleet.record(handle).attempt) == (2, 1)
