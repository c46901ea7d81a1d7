"""The watchdog with real workers: ten orders of events, and what becomes of a tool that obeys nothing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from mcptasks.client import TaskCancelled, TaskFailed, TaskHandle
from mcptasks.model import Reason
from tests.fleet.conftest import Running, Served, on_running, on_served
from tests.fleet.system import answer, client, new_key, outcome, questions, start
from tests.requirements import covers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

#: How the tool behaves, whether it is cancelled at once, and the reason. Limits: idle 1.5 s, wall 3 s, grace 0.5 s.
ORDERS: Final[dict[str, tuple[dict[str, Any], bool, Reason]]] = {
    "completion before the idle limit": ({"way": "returns", "seconds": 0.2}, False, Reason.COMPLETED),
    "progress, idle limit, completion": ({"way": "returns", "seconds": 2, "counts": True}, False, Reason.COMPLETED),
    "idle limit, obeyed": ({"way": "obeys"}, False, Reason.IDLE_TIMEOUT),
    "idle limit, completion in the grace": ({"way": "gives in"}, False, Reason.IDLE_TIMEOUT),
    "idle limit, ignored": ({"way": "ignores"}, False, Reason.IDLE_TIMEOUT),
    "progress, wall limit, obeyed": ({"way": "obeys", "counts": True}, False, Reason.WALL_TIMEOUT),
    "progress, wall limit, ignored": ({"way": "ignores", "counts": True}, False, Reason.WALL_TIMEOUT),
    "cancel, obeyed": ({"way": "obeys", "counts": True}, True, Reason.CANCELLED),
    "cancel, completion in the grace": ({"way": "gives in", "counts": True}, True, Reason.COMPLETED),
    "cancel, ignored": ({"way": "ignores", "counts": True}, True, Reason.CANCEL_TIMEOUT),
}


async def _ended(handle: TaskHandle) -> None:
    with suppress(TaskFailed, TaskCancelled):
        await handle.result(60)


@on_running
@covers("W4", "R5")
async def test_every_order_that_matters_has_its_reason_on_a_worker(running: Running, tmp_path: Path) -> None:
    """W4, as `tests/unit/test_watchdog.py` has it in all orders; here with real clocks, four at a time."""
    fleet, release = running.fleet, tmp_path / "release"
    found = dict[str, Reason | None]()

    async def run(name: str, arguments: dict[str, Any], cancel: bool) -> None:
        async with client(running.url) as connection:
            key = new_key()
            handle = await start(connection, "watched", key=key, path=str(release), **arguments)
            if cancel:
                await anyio.to_thread.run_sync(lambda: fleet.ledger.await_event(key, "begin"))
                await handle.cancel()
            await _ended(handle)
            found[name] = fleet.record(handle).reason

    async with anyio.create_task_group() as group:
        for name, (arguments, cancel, _) in ORDERS.items():
            group.start_soon(run, name, arguments, cancel)
    release.touch()
    assert found == {name: reason for name, (_, _, reason) in ORDERS.items()}


@on_running
@covers("W4")
async def test_a_persons_time_is_not_idle_on_a_worker(running: Running) -> None:
    """W4: waiting for a person suspends the idle clock."""
    async with client(running.url) as connection:
        handle = await start(connection, "idle_ask", key=new_key())
        await questions(handle)
        await anyio.sleep(1.5)  # the thing under test: time passes
        await answer(handle, "at last")
        assert await outcome(handle) == "at last"


@on_running
@covers("W4", "E07")
async def test_a_sync_tool_hears_of_its_idle_limit_or_is_left(running: Running, tmp_path: Path) -> None:
    """Left, it frees its slot: in prefork the child is replaced; in threads the register says what goes on there."""
    fleet, release = running.fleet, tmp_path / "release"
    async with client(running.url) as connection:
        keys = {way: new_key() for way in ("obeys", "ignores")}
        for way, key in keys.items():
            handle = await start(connection, "idle_sync", key=key, way=way, path=str(release))
            with pytest.raises(TaskFailed, match=r"idle_sync made no progress for 0\.5 s, its idle limit"):
                await handle.result(60)
            assert fleet.record(handle).reason is Reason.IDLE_TIMEOUT
        fleet.ledger.await_event(keys["obeys"], "end")
        ran_in = fleet.ledger.await_event(keys["ignores"], "begin")["pid"]
        if ran_in != running.worker.pid:
            wait_until(lambda: ran_in not in running.worker.children(), description="the stuck child was replaced")
        else:
            stuck = '"stuck": {"idle_sync": 1}'
            wait_until(lambda: stuck in _register(running), description="the register names the tool")
            release.touch()
            wait_until(lambda: stuck not in _register(running), description="the register names it no more")
        after = new_key()
        assert await outcome(await start(connection, "ledger", key=after)) == f"ran {after}"


def _register(running: Running) -> str:
    return str(running.fleet.raw.hvals(running.fleet.keys.workers))


@on_served
@covers("W4", "E07")
@pytest.mark.parametrize("pool", ["threads", "prefork"])
async def test_an_idle_tool_that_holds_the_loop_ends_all_the_same(served: Served, tmp_path: Path, pool: str) -> None:
    """Nothing on its loop can look at it; the keeper's thread does. The child is replaced, or the doctor says so."""
    key, release, fleet = new_key(), tmp_path / "release", served.fleet
    worker = fleet.worker(pool, concurrency=2)
    async with client(served.url) as connection:
        handle = await start(connection, "idle_on_the_loop", key=key, path=str(release))
        with pytest.raises(TaskFailed, match="made no progress"):
            await handle.result(60)
        assert fleet.record(handle).reason is Reason.IDLE_TIMEOUT
        ran_in = fleet.ledger.await_event(key, "begin")["pid"]
        if pool == "prefork":
            wait_until(lambda: ran_in not in worker.children(), description="the child was replaced")
        else:
            held = '"held_by": "idle_on_the_loop"'
            register = fleet.keys.workers
            wait_until(lambda: held in str(fleet.raw.hvals(register)), description="the register names the tool")
            release.touch()
            fleet.ledger.await_event(key, "end")
        after = new_key()
        assert await outcome(await start(connection, "ledger", key=after)) == f"ran {after}"
    assert fleet.ledger.count(key, "begin") == 1


@on_served
@covers("R9", "W4")
async def test_what_must_not_be_begun_twice_fails_when_its_worker_goes_down(served: Served) -> None:
    """Half of it may have happened: given to another worker, it would begin again."""
    key, fleet = new_key(), served.fleet
    worker = fleet.worker("threads", MCPTASKS_SHUTDOWN_GRACE_MS="100")
    async with client(served.url) as connection:
        handle = await start(connection, "only_once", key=key)
        fleet.ledger.await_event(key, "begin")
        assert worker.stop() == 0
        with pytest.raises(TaskFailed, match="went down before the tool was done"):
            await handle.result(60)
        assert fleet.record(handle).reason is Reason.SHUTDOWN
    assert fleet.ledger.count(key, "begin") == 1
