"""Time limits, and tools that try to take their worker down (case E07, behaviour W4, the Celery facts behind both)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from mcp_types import INTERNAL_ERROR

from mcptasks.client import TaskFailed
from mcptasks.model import Reason
from tests.fleet.conftest import Running, Served, on_running, on_served
from tests.fleet.system import answer, client, new_key, outcome, questions, start, text
from tests.requirements import covers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

#: Longer than the time limit of the tools that ask.
A_PERSONS_TIME_S = 3.5


@on_running
@covers("W4", "E07")
@pytest.mark.parametrize("tool", ["work_ask_work", "work_ask_work_held"])
async def test_a_persons_time_does_not_count_against_the_tools(running: Running, tool: str) -> None:
    """E07 (a): the 60-second limit ran while a person was answering, and the late answer met a dead task."""
    async with client(running.url) as connection:
        handle = await start(connection, tool, key=new_key(), seconds=0.2)
        await questions(handle)
        await anyio.sleep(A_PERSONS_TIME_S)  # the thing under test: time passes
        await answer(handle, "at last")
        assert await outcome(handle) == "at last"


@on_running
@covers("W4", "E07")
async def test_a_tool_over_its_time_limit_fails_with_it(running: Running) -> None:
    """E07 (b, c): Celery's own limits do nothing on the threads pool, without a word."""
    async with client(running.url) as connection:
        handle = await start(connection, "over_time", key=new_key())
        with pytest.raises(TaskFailed, match=r"over_time ran into its time limit of 0\.5 s") as failed:
            await handle.result(60)
    assert failed.value.code == INTERNAL_ERROR
    assert running.fleet.record(handle).reason is Reason.WALL_TIMEOUT


@on_running
@covers("W4", "E07")
async def test_a_sync_tool_that_ignores_its_limit_keeps_neither_its_task_nor_its_slot(
    running: Running, tmp_path: Path
) -> None:
    """E07 (d): a thread cannot be stopped. The task ends all the same, and a late return changes nothing."""
    key, release, fleet = new_key(), tmp_path / "release", running.fleet
    async with client(running.url) as connection:
        handle = await start(connection, "over_time_sync", key=key, path=str(release))
        ran_in = fleet.ledger.await_event(key, "begin")["pid"]
        with pytest.raises(TaskFailed, match="time limit"):
            await handle.result(60)
        before = fleet.raw.hgetall(fleet.keys.task(handle.task_id))
        assert fleet.record(handle).reason is Reason.WALL_TIMEOUT
        if ran_in == running.worker.pid:
            release.touch()
            fleet.ledger.await_event(key, "end")
        else:
            wait_until(lambda: ran_in not in running.worker.children(), description="the stuck child was replaced")
        for after in [new_key() for _ in range(8)]:
            assert await outcome(await start(connection, "ledger", key=after)) == f"ran {after}"
        assert fleet.raw.hgetall(fleet.keys.task(handle.task_id)) == before
        if ran_in != running.worker.pid:
            assert fleet.ledger.count(key, "end") == 0


@on_served
@pytest.mark.slow
@covers("W4", "E07")
@pytest.mark.parametrize("pool", ["threads", "prefork"])
async def test_an_async_tool_that_never_yields_is_over_at_its_hard_limit(
    served: Served, tmp_path: Path, pool: str
) -> None:
    """E07 (d), the worst case: nothing on its event loop can stop it. The task ends; in prefork the child is killed."""
    key, release, fleet = new_key(), tmp_path / "release", served.fleet
    worker, other = fleet.start_worker(pool, concurrency=2), fleet.start_worker("threads")
    fleet.ready(worker, other)
    async with client(served.url) as connection:
        other.freeze()  # so that it is `worker` that gets the task
        handle = await start(connection, "blocks_the_loop", key=key, path=str(release))
        ran_in = fleet.ledger.await_event(key, "begin")["pid"]
        other.thaw()
        with pytest.raises(TaskFailed, match="time limit"):
            await handle.result(90)
        assert fleet.record(handle).reason is Reason.WALL_TIMEOUT
        before = fleet.raw.hgetall(fleet.keys.task(handle.task_id))
        if pool == "prefork":
            wait_until(lambda: ran_in not in worker.children(), description="the blocked child was killed")
        after = new_key()
        assert await outcome(await start(connection, "ledger", key=after)) == f"ran {after}"
        release.touch()
        if pool == "threads":
            fleet.ledger.await_event(key, "end")
        assert fleet.raw.hgetall(fleet.keys.task(handle.task_id)) == before
    assert fleet.ledger.count(key, "begin") == 1, "a tool over its limit is not run again"


@on_running
@covers("R9")
@pytest.mark.parametrize("tool", ["exit_sync", "exit_async", "memory_sync", "memory_async"])
async def test_a_tool_that_exits_or_runs_out_of_memory_takes_nothing_with_it(running: Running, tool: str) -> None:
    """Left to Celery, MemoryError ends a prefork worker, and either one leaks the slot of a threads worker."""
    key, fleet = new_key(), running.fleet
    async with client(running.url) as connection:
        # More often than there are slots: one that leaks would be missed only then.
        handles = [await start(connection, tool, key=key) for _ in range(6)]
        for handle in handles:
            if tool.startswith("exit"):
                with pytest.raises(TaskFailed, match="ended its process") as failed:
                    await handle.result(60)
                assert failed.value.code == INTERNAL_ERROR
            else:
                # MemoryError is an Exception like any other: the live call masks it, and so does the task.
                result = await handle.result(60)
                assert result.is_error and text(result) == f"Error executing tool {tool}"
            assert fleet.record(handle).attempt == 1
        after = new_key()
        assert await outcome(await start(connection, "ledger", key=after)) == f"ran {after}"
    assert fleet.ledger.count(key) == 6
    assert {line["pid"] for line in fleet.ledger.of(key)} <= {running.worker.pid, *running.worker.children()}, (
        "every process that ran it is still there"
    )


@on_served
@covers("R9", "W4", "E07")
@pytest.mark.parametrize(
    ("pool", "tool"),
    [
        ("threads", "over_time_sync"),
        ("prefork", "ignore_cancel_within_grace"),
        pytest.param("threads", "ignore_cancel_within_grace", marks=pytest.mark.slow),
        pytest.param("prefork", "over_time_sync", marks=pytest.mark.slow),
    ],
)
async def test_a_worker_can_be_stopped_in_spite_of_a_tool_that_cannot(
    served: Served, tmp_path: Path, pool: str, tool: str
) -> None:
    """E07 (d): the interpreter joins its threads and asyncio its tasks; a tool that never ends must hold neither."""
    key, fleet = new_key(), served.fleet
    worker = fleet.worker(pool, concurrency=2)
    async with client(served.url) as connection:
        handle = await start(connection, tool, key=key, path=str(tmp_path / "never"))
        fleet.ledger.await_event(key, "begin")
        await handle.cancel()
        assert (await handle.wait(60)).terminal
    assert worker.stop() == 0
