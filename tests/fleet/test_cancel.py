"""Cancels reach the work, through every process and past every one that is gone (cases A08 and B04, duty P51, P52)."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from mcptasks.client import Connection, TaskCancelled
from mcptasks.model import Reason
from tests.fleet.conftest import Running, Served, on_running, on_served
from tests.fleet.system import accepted, client, new_key, outcome, questions, start
from tests.requirements import covers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

#: Rounds of an answer against a cancel, so many at once, the later one by up to this long.
ROUNDS: Final = 300
AT_ONCE: Final = 20
OFFSET_S: Final = 0.06


@on_served
@covers("A08", "P52")
async def test_a_task_cancelled_while_no_worker_is_up_never_runs(served: Served) -> None:
    """A08 (a): Celery's revoke lives in workers' memory, so one that comes later runs the job all the same."""
    cancelled, after, fleet = new_key(), new_key(), served.fleet
    async with client(served.url) as connection:
        handle = await start(connection, "ledger", key=cancelled)
        await handle.cancel()
        assert (await handle.get()).status == "cancelled"
        fleet.worker()
        assert await outcome(await start(connection, "ledger", key=after)) == f"ran {after}"
    # One queue, one order: the message of the cancelled task was taken before.
    assert fleet.ledger.of(cancelled) == []
    assert fleet.record(handle).status == "cancelled"


@on_served
@covers("A08")
@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
async def test_a_cancel_in_a_warm_shutdown_stops_the_run_and_lets_the_worker_go(served: Served, pool: str) -> None:
    """A08 (b): a worker that shuts down has left Celery's remote control, and waits for the very run it cannot stop."""
    key, fleet = new_key(), served.fleet
    worker = fleet.worker(pool)
    async with client(served.url) as connection:
        handle = await start(connection, "loop_sync", key=key)
        fleet.ledger.await_event(key, "tick")
        worker.terminate()
        worker.await_output("Warm shutdown")
        await handle.cancel()
        assert worker.await_end() == 0
        assert (await handle.get()).status == "cancelled"
    assert fleet.ledger.events(key)[-1] == "stopped"


@on_served
@covers("A08")
async def test_a_cancel_that_pub_sub_lost_is_told_by_the_lease(served: Served) -> None:
    """A08 (c): a subscription that died takes every cancel published meanwhile with it."""
    key, fleet = new_key(), served.fleet
    fleet.worker()
    async with client(served.url) as connection:
        handle = await start(connection, "loop_sync", key=key)
        fleet.ledger.await_event(key, "tick")
        killed = fleet.raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        assert int(str(killed)) > 0
        await handle.cancel()
        fleet.ledger.await_event(key, "stopped")
        with pytest.raises(TaskCancelled):
            await handle.result(60)
        after = new_key()
        assert await outcome(await start(connection, "ledger", key=after)) == f"ran {after}"


@on_running
@covers("B04", "P52")
@pytest.mark.parametrize(("tool", "first"), [("loop_sync", "tick"), ("ledger_slow", "begin")])
async def test_a_cancelled_body_stops(running: Running, tool: str, first: str) -> None:
    """B04: a record that says cancelled while a model call goes on for its 90 seconds costs money all the same."""
    key, ledger = new_key(), running.fleet.ledger
    arguments = {"key": key, "seconds": 600} if tool == "ledger_slow" else {"key": key}
    async with client(running.url) as connection:
        handle = await start(connection, tool, **arguments)
        ledger.await_event(key, first)
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result(60)
    assert ledger.events(key)[-1] == "stopped", "what is cancelled has stopped before that is told"
    assert running.fleet.record(handle).reason is Reason.CANCELLED


@on_running
@covers("B04", "P51", "R5")
async def test_a_tool_that_finishes_in_spite_of_its_cancel_has_completed(running: Running, tmp_path: Path) -> None:
    """B04: the acknowledgement is immediate; without a grace the tool decides how its task ends (P51)."""
    key, release = new_key(), tmp_path / "release"
    async with client(running.url) as connection:
        handle = await start(connection, "ignore_cancel", key=key, path=str(release))
        running.fleet.ledger.await_event(key, "begin")
        await handle.cancel()
        running.fleet.ledger.await_event(key, "ignored")
        assert (await handle.get()).status == "working"
        release.touch()
        assert await outcome(handle) == "finished anyway"


@on_running
@covers("B04", "P52", "W5")
async def test_a_tool_over_its_cancel_grace_is_cancelled_without_it_and_cannot_take_it_back(
    running: Running, tmp_path: Path
) -> None:
    """B04: once `cancelled` was visible, what the tool brings later never replaces it."""
    key, release, fleet = new_key(), tmp_path / "release", running.fleet
    async with client(running.url) as connection:
        handle = await start(connection, "ignore_cancel_within_grace", key=key, path=str(release))
        ran_in = fleet.ledger.await_event(key, "begin")["pid"]
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result(60)
        before = fleet.raw.hgetall(fleet.keys.task(handle.task_id))
        assert fleet.record(handle).reason is Reason.CANCEL_TIMEOUT
        if ran_in == running.worker.pid:
            release.touch()
            fleet.ledger.await_event(key, "end")
        else:
            wait_until(lambda: ran_in not in running.worker.children(), description="the stuck child was replaced")
        after = new_key()
        assert await outcome(await start(connection, "ledger", key=after)) == f"ran {after}"
        assert fleet.raw.hgetall(fleet.keys.task(handle.task_id)) == before


@on_running
@covers("R6", "P52")
@pytest.mark.parametrize("tool", ["ask1", "ask1_held"])
async def test_a_cancel_ends_a_task_that_waits_for_a_person(running: Running, tool: str) -> None:
    """R6: parked it has no worker that could hear of it, held it sleeps in one."""
    key = new_key()
    arguments = {"key": key, "x": 1} if tool == "ask1" else {"key": key}
    async with client(running.url) as connection:
        handle = await start(connection, tool, **arguments)
        await questions(handle)
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result(60)
        assert running.fleet.record(handle).questions == {}
    assert running.fleet.ledger.events(key) == ["run"]


@on_running
@pytest.mark.slow
@covers("R6", "P51", "B04")
async def test_of_an_answer_and_a_cancel_one_wins_with_all_its_effect(running: Running) -> None:
    """Issue 3: 300 parked tasks, each answered and cancelled at once: one effect and `completed`, or neither."""
    chance, ends = random.Random(3), Counter[str]()
    async with client(running.url) as connection:
        for _ in range(ROUNDS // AT_ONCE):
            async with anyio.create_task_group() as group:
                for _ in range(AT_ONCE):
                    group.start_soon(_race, running, connection, chance.uniform(-OFFSET_S, OFFSET_S), ends)
    print(f"\n{dict(ends)}")
    assert sum(ends.values()) == ROUNDS
    assert ends.keys() == {"completed", "cancelled"}, "the offsets were too one-sided to show anything"


async def _race(running: Running, connection: Connection, offset_s: float, ends: Counter[str]) -> None:
    key = new_key()
    handle = await start(connection, "ask1", key=key, x=1)
    [question] = await questions(handle)

    async def later(by_s: float, move: Any, *args: Any) -> None:
        await anyio.sleep(max(by_s, 0.0))  # the race
        await move(*args)

    async with anyio.create_task_group() as group:
        group.start_soon(later, offset_s, handle.cancel)
        group.start_soon(later, -offset_s, handle.update, {question: accepted("yes")})
    status = (await handle.wait(60)).status
    ends[status] += 1
    effects = running.fleet.ledger.events(key).count("answered")
    assert (status, effects) in (("completed", 1), ("cancelled", 0))
