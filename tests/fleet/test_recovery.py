"""Messages vanish or multiply; workers, servers and the store die: every task ends, once (A01, A03, A05, B01, B06)."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from mcptasks.client import TaskFailed, TasksClient
from mcptasks.model import Reason, Status
from tests.fleet.conftest import Served, on_served
from tests.fleet.system import LEASE_MS, SWEEP_MS, Fleet, answer, client, new_key, outcome, questions, start
from tests.requirements import covers
from tests.support.waiting import eventually, wait_until

pytestmark = pytest.mark.anyio

#: On top of lease and sweep: a busy machine, and the message's way.
MARGIN_S = 10.0


# ------------------------------------------------------------------------------------------------ messages


@on_served
@covers("A01", "B06")
async def test_ten_copies_of_a_message_and_three_workers_make_one_run_at_a_time(served: Served) -> None:
    """A01, B06: one held or unacked message was given to every worker that started; leases ended before their jobs.

    The job takes three leases; workers start one after another while it runs.
    """
    slow, asking, fleet = new_key(), new_key(), served.fleet
    async with client(served.url) as connection:
        working = await start(connection, "ledger_slow", key=slow, seconds=3 * LEASE_MS / 1000)
        waiting = await start(connection, "ask1", key=asking, x=1)
        wait_until(lambda: len(fleet.messages()) >= 2, description="both messages are in the queue")
        fleet.multiply_messages(10)
        workers = [fleet.worker()]
        fleet.ledger.await_event(slow, "begin")
        workers += [fleet.worker(), fleet.worker()]
        await answer(waiting, "yes")
        assert await outcome(waiting) == "1 yes"
        assert await outcome(working) == f"worked {slow}"
        wait_until(lambda: not fleet.messages(), description="every copy was taken")
    assert fleet.ledger.events(slow) == ["begin", "end"]
    assert fleet.ledger.events(asking) == ["run", "run", "answered"]
    assert (fleet.record(working).token, fleet.record(working).attempt) == (1, 1)
    assert "dropped: HELD (its owner is" in "".join(worker.output for worker in workers), "told, not only dropped"


@on_served
@covers("A03", "N2")
async def test_a_task_whose_message_vanished_is_run_all_the_same(served: Served) -> None:
    """A03: on Redis a pop and its bookkeeping are two steps; a crash between them loses the message for good."""
    key, fleet = new_key(), served.fleet
    async with client(served.url) as connection:
        handle = await start(connection, "ledger", key=key)
        wait_until(fleet.messages, description="its message is in the queue")
        fleet.drop_messages()
        fleet.worker()
        assert await outcome(handle) == f"ran {key}"
    assert fleet.ledger.count(key) == 1


@on_served
@covers("F09")
async def test_garbage_on_the_queue_costs_one_line_each_and_no_worker(served: Served) -> None:
    """F09: a message that cannot be decoded killed the worker, and the next one, and the next."""
    key, fleet = new_key(), served.fleet
    worker = fleet.worker()
    for garbage in fleet.garbage():
        fleet.raw.lpush(fleet.queue, garbage)
    async with client(served.url) as connection:
        assert await outcome(await start(connection, "ledger", key=key)) == f"ran {key}"
    wait_until(lambda: not fleet.messages(), description="nothing of it is left in the queue")
    assert worker.exit_code is None
    assert "The queue mcptasks held 7 bytes that are no message of Celery's (no JSON)" in worker.output


# ------------------------------------------------------------------------------------------------ workers


@on_served
@covers("A05", "W3")
async def test_a_job_that_kills_its_worker_is_given_up_after_three_attempts(served: Served) -> None:
    """A05: with acks_late and reject_on_worker_lost such a job goes straight back and takes child after child."""
    key, quick, fleet = new_key(), new_key(), served.fleet
    fleet.worker("prefork", concurrency=2)
    async with client(served.url) as connection:
        deadly = await start(connection, "kill_self", key=key, signum=signal.SIGKILL.value)
        handles = [await start(connection, "ledger", key=quick) for _ in range(10)]
        for handle in handles:
            assert await outcome(handle) == f"ran {quick}"
        with pytest.raises(TaskFailed, match="The worker process was lost 3 times") as failed:
            await deadly.result(60)
    assert failed.value.code == INTERNAL_ERROR
    assert fleet.ledger.count(key) == 3
    assert fleet.ledger.count(quick) == 10
    assert (fleet.record(deadly).attempt, fleet.record(deadly).reason) == (3, Reason.WORKER_LOST)


@on_served
@covers("B06", "W3")
@pytest.mark.parametrize("pool", ["threads", pytest.param("prefork", marks=pytest.mark.slow)])
async def test_after_kill_9_of_a_worker_its_task_runs_again_within_lease_and_sweep(
    served: Served, tmp_path: Path, pool: str
) -> None:
    """B06: crash detection through the broker takes minutes, or runs live tasks twice."""
    key, release, fleet = new_key(), tmp_path / "release", served.fleet
    first = fleet.worker(pool, concurrency=1)
    async with client(served.url) as connection:
        handle = await start(connection, "gate", key=key, path=str(release))
        fleet.ledger.await_event(key, "begin")
        fleet.worker("threads")
        assert fleet.ledger.count(key, "begin") == 1
        killed_at = time.time()
        first.kill()
        again = fleet.ledger.await_event(key, "begin", times=2)
        assert again["at"] - killed_at < (LEASE_MS + SWEEP_MS) / 1000 + MARGIN_S
        release.touch()
        assert await outcome(handle) == f"passed {key}"
    assert fleet.ledger.events(key) == ["begin", "begin", "end"]
    assert (fleet.record(handle).token, fleet.record(handle).attempt) == (2, 2)


@on_served
@covers("B06", "N6")
async def test_a_stalled_worker_that_comes_back_writes_nothing(served: Served, tmp_path: Path) -> None:
    """B06: stalled, given up, then back: the guess was wrong, and the fencing token covers for it."""
    key, release, fleet = new_key(), tmp_path / "release", served.fleet
    first = fleet.worker()
    async with client(served.url) as connection:
        handle = await start(connection, "gate", key=key, path=str(release))
        fleet.ledger.await_event(key, "begin")
        second = fleet.worker()
        first.freeze()
        assert fleet.ledger.await_event(key, "begin", times=2)["pid"] == second.pid
        release.touch()
        assert await outcome(handle) == f"passed {key}"
        before = fleet.raw.hgetall(fleet.keys.task(handle.task_id))
        first.thaw()
        first.await_output(r"lost its claim|its end is not stored|: (terminal|stale|lost)")
        after = new_key()
        assert await outcome(await start(connection, "ledger", key=after)) == f"ran {after}"
    assert fleet.raw.hgetall(fleet.keys.task(handle.task_id)) == before
    assert fleet.record(handle).token == 2


@on_served
@pytest.mark.slow
@covers("B06")
async def test_three_workers_that_start_together_adopt_an_orphan_once(served: Served, tmp_path: Path) -> None:
    """B06: on boot several recoverers adopted the same job."""
    key, release, fleet = new_key(), tmp_path / "release", served.fleet
    first = fleet.worker()
    async with client(served.url) as connection:
        handle = await start(connection, "gate", key=key, path=str(release))
        fleet.ledger.await_event(key, "begin")
        first.kill()
        fleet.ready(*[fleet.start_worker() for _ in range(3)])
        fleet.ledger.await_event(key, "begin", times=2)
        probes = [await start(connection, "ledger_slow", key=new_key(), seconds=LEASE_MS / 1000) for _ in range(3)]
        for probe in probes:
            await probe.result(60)
        release.touch()
        assert await outcome(handle) == f"passed {key}"
    assert fleet.ledger.events(key) == ["begin", "begin", "end"]


@on_served
@covers("W3")
@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
async def test_a_warm_shutdown_lets_the_run_end(served: Served, tmp_path: Path, pool: str) -> None:
    """R9, W3: SIGTERM is an order to finish, not to abandon; what runs keeps its lease until it is done."""
    key, release, fleet = new_key(), tmp_path / "release", served.fleet
    worker = fleet.worker(pool)
    async with client(served.url) as connection:
        handle = await start(connection, "gate", key=key, path=str(release))
        fleet.ledger.await_event(key, "begin")
        worker.terminate()
        worker.await_output("Warm shutdown")
        lease = float(str(fleet.raw.zscore(fleet.keys.leases, handle.task_id)))
        wait_until(
            lambda: float(str(fleet.raw.zscore(fleet.keys.leases, handle.task_id))) > lease + LEASE_MS,
            description="the lease was renewed for more than its own length",
        )
        release.touch()
        assert await outcome(handle) == f"passed {key}"
        assert worker.await_end() == 0
    assert fleet.ledger.events(key) == ["begin", "end"]


@on_served
@pytest.mark.slow
@covers("W3")
async def test_a_cold_shutdown_costs_no_task(served: Served, tmp_path: Path) -> None:
    """W3: SIGQUIT stops what runs; another worker begins it again, and not beside the first."""
    key, release, fleet = new_key(), tmp_path / "release", served.fleet
    first = fleet.worker("prefork", concurrency=1)
    async with client(served.url) as connection:
        handle = await start(connection, "gate", key=key, path=str(release))
        fleet.ledger.await_event(key, "begin")
        fleet.worker()
        first.quit()
        fleet.ledger.await_event(key, "begin", times=2)
        release.touch()
        assert await outcome(handle) == f"passed {key}"
        first.await_end()
    assert fleet.ledger.events(key) == ["begin", "begin", "end"]


# ------------------------------------------------------------------------------------------------ servers


@covers("B01", "P20", "P60", "P80")
async def test_a_task_is_found_through_another_server_by_its_caller_alone(fleet: Fleet) -> None:
    """B01: a task's key contained the transport session; after a restart the client's own task was "not found"."""
    key = new_key()
    first, second = fleet.start_server(FLEET_AUTH="1"), fleet.start_server(FLEET_AUTH="1")
    worker = fleet.start_worker(FLEET_AUTH="1")
    async with client(fleet.ready(first, worker), token="alice") as connection:
        handle = await start(connection, "ask1", key=key, x=1)
        await questions(handle)
    first.kill()
    url = fleet.ready(second)
    async with client(url, token="bob") as foreign:
        unknown = TasksClient.attach(foreign.client, "no-such-task-was-ever-made-by-anyone")
        stolen = TasksClient.attach(foreign.client, handle.task_id)
        refusals: list[tuple[int, str]] = []
        for other in (unknown, stolen):
            for request in (other.get(), other.cancel(), other.update({"k": {"action": "decline"}})):
                with pytest.raises(MCPError) as refused:
                    await request
                refusals.append((refused.value.error.code, refused.value.error.message))
        assert len(set(refusals)) == 1 and refusals[0][0] == INVALID_PARAMS, "no answer confirms that the task exists"
    with pytest.raises((ConnectionError, MCPError)):
        async with client(url) as nobody:
            await TasksClient.attach(nobody.client, handle.task_id).get()
    async with client(url, token="alice") as connection:
        mine = TasksClient.attach(connection.client, handle.task_id)
        assert (await mine.get()).status == "input_required", "nobody's cancel changed it"
        await answer(mine, "mine")
        assert await outcome(mine) == "1 mine"


# ------------------------------------------------------------------------------------------------ the store


@covers("W1", "W10")
async def test_a_store_killed_in_the_middle_of_everything_loses_nothing(fleet: Fleet, tmp_path: Path) -> None:
    """W1, W10: queued, running, parked, half answered and completed tasks, and the store gets `kill -9`.

    Long leases, so that a run that ends while the store is away has to wait and write; it may not be run again.
    """
    key, release, lease = new_key(), tmp_path / "release", {"MCPTASKS_LEASE_MS": "60000"}
    worker, server = fleet.start_worker(concurrency=2, **lease), fleet.start_server(**lease)
    async with client(fleet.ready(worker, server)) as connection:
        done = await start(connection, "ledger", key=key)
        assert await outcome(done) == f"ran {key}"
        parked = await start(connection, "ask1", key=key, x=3)
        await questions(parked)
        half = await start(connection, "fan2", key=key)
        by_text = {asked["params"]["message"]: name for name, asked in (await questions(half)).items()}
        await half.update({by_text["one?"]: {"action": "accept", "content": {"value": "1"}}})
        gates = [await start(connection, "gate", key=f"{key}{n}", path=str(release)) for n in range(2)]
        for n in range(2):
            fleet.ledger.await_event(f"{key}{n}", "begin")
        queued = await start(connection, "ledger", key=f"{key}q")
        before = fleet.raw.hgetall(fleet.keys.task(done.task_id))
        fleet.store.kill()
        release.touch()
        for n in range(2):
            fleet.ledger.await_event(f"{key}{n}", "end")
        fleet.store.restart()
        for n, gate in enumerate(gates):
            assert await outcome(gate) == f"passed {key}{n}"
            assert fleet.ledger.events(f"{key}{n}") == ["begin", "end"]
        assert await outcome(queued) == f"ran {key}q"
        assert fleet.raw.hgetall(fleet.keys.task(done.task_id)) == before
        await answer(parked, "yes")
        assert await outcome(parked) == "3 yes"
        await half.update({by_text["two?"]: {"action": "accept", "content": {"value": "2"}}})
        assert await outcome(half) == "1 2"
    assert worker.exit_code is None and server.exit_code is None


@pytest.mark.slow
@covers("W10")
async def test_short_leases_that_ran_out_with_the_store_cost_a_second_run_and_no_task(
    fleet: Fleet, tmp_path: Path
) -> None:
    """W10: the store was away for longer than a lease. Whoever owns the task now ends it; nothing hangs, one result."""
    key, release = new_key(), tmp_path / "release"
    worker, server = fleet.start_worker(), fleet.start_server()
    async with client(fleet.ready(worker, server)) as connection:
        handle = await start(connection, "gate", key=key, path=str(release))
        fleet.ledger.await_event(key, "begin")
        fleet.store.freeze()
        await anyio.sleep(2 * LEASE_MS / 1000)  # the thing under test: time passes while nobody can renew
        fleet.store.thaw()

        async def owned() -> bool:
            record = fleet.record(handle)
            return record.status is Status.RUNNING

        await eventually(owned, description="somebody runs it")
        release.touch()
        assert await outcome(handle) == f"passed {key}"
        after = new_key()
        assert await outcome(await start(connection, "ledger", key=after)) == f"ran {after}"
    assert fleet.ledger.count(key, "begin") <= 2
