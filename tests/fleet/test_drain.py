"""The fleet's door (T1-T5, issue 3 part 5): closed with a reason, drained, opened again; for people and programs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from pathlib import Path
from typing import Final

import anyio
import pytest
from mcp.shared.exceptions import MCPError

from mcptasks import Operations
from mcptasks.client import Connection, TaskHandle, TasksClient
from mcptasks.model import Status, label
from mcptasks.settings import Settings
from tests.fleet.conftest import ENDED, Running
from tests.fleet.recovery_system import RecoveryFleet
from tests.fleet.system import START_S, Fleet, Proc, answer, client, new_key, outcome, questions, start
from tests.requirements import covers
from tests.support.waiting import eventually, wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
on_door = pytest.mark.xdist_group("one door for all")

SLOTS: Final = 4


@pytest.fixture(scope="module")
def _door(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    # Nobody dies here, so leases can be long: a stall of a busy machine must not look like a death.
    with RecoveryFleet(tmp_path_factory.mktemp("door"), MCPTASKS_LEASE_MS="15000") as mine:
        worker, server = mine.start_worker(concurrency=SLOTS), mine.start_server()
        yield Running(mine, mine.ready(worker, server), worker)
        assert worker.stop() == 0
        assert server.stop() in ENDED
        assert mine.keys_for_ever() == []


@pytest.fixture
def door(_door: Running) -> Generator[Running]:
    """A fleet whose door is open, before and after the test; whatever the test leaves unfinished is cancelled."""
    yield _door
    asyncio.run(_emptied(_door.fleet.settings))


async def _emptied(settings: Settings) -> None:
    async with Operations(settings) as operations:
        await operations.open_admission()
        await operations.cancel_all("the test is over")
        async with asyncio.timeout(60):
            await operations.drained()


async def end(command: Proc) -> int:
    """The command's exit code."""

    async def code() -> list[int] | None:
        return None if command.exit_code is None else [command.exit_code]

    [ended] = await eventually(code, description=f"{command.name} ends", within_s=START_S)
    return ended


async def refusal(connection: Connection, key: str) -> str:
    """What a durable call is told now."""
    with pytest.raises(MCPError) as error:
        await start(connection, "ledger", key=key)
    return error.value.error.message


def statuses(fleet: Fleet, handles: list[TaskHandle]) -> set[str]:
    """What has become of the tasks, by the store."""
    return {fleet.record(handle).status.value for handle in handles}


async def working(connection: Connection, fleet: Fleet, key: str, path: Path) -> TaskHandle:
    """A task that runs until the file is there."""
    handle = await start(connection, "stoppable_gate", key=key, path=str(path))
    fleet.ledger.await_event(key, "begin")
    return handle


# ------------------------------------------------------------------------------------------------ admission


@on_door
@covers("T1", "T5")
async def test_a_closed_door_refuses_with_its_reason_and_leaves_nothing_and_can_be_opened(
    door: Running, tmp_path: Path
) -> None:
    """T1, T5: refused before any record exists; what was admitted goes on, is readable, answered and found again."""
    key, release, fleet = new_key(), tmp_path / "release", door.fleet
    async with client(door.url) as connection:
        running = await working(connection, fleet, key, release)
        parked = await start(connection, "ask1", key=key + "asks", x=1)
        await questions(parked)
        accepted = await TasksClient.start(connection.client, "ledger", {"key": key}, idempotency_key=key)
        await outcome(accepted)
        before = fleet.task_keys()
        assert await end(fleet.start("admission", "close", "--reason", "moving house")) == 0
        assert "moving house" in await refusal(connection, key + "late")
        assert fleet.task_keys() == before
        assert (await connection.client.call_tool("plain", {"key": key + "plain"})).content
        again = await TasksClient.start(connection.client, "ledger", {"key": key}, idempotency_key=key)
        assert again.task_id == accepted.task_id, "it was admitted before"
        release.touch()
        assert await outcome(running) == f"passed {key}"
        await answer(parked, "yes")
        assert await outcome(parked) == "1 yes"
        status = fleet.start("admission", "status", "--json")
        assert await end(status) == 0
        assert json.loads(status.output) == {"open": False, "reason": "moving house", "active": 0}
        assert await end(fleet.start("admission", "open")) == 0
        assert await outcome(await start(connection, "ledger", key=key + "late")) == f"ran {key}late"
    assert fleet.ledger.count(key + "late") == 1, "the refused call did not run after all"


@on_door
@covers("T2", "T3")
async def test_what_is_unfinished_is_listed_in_order_and_cancelled_with_a_reason(door: Running, tmp_path: Path) -> None:
    """T2, T3: running, waiting for a slot, waiting for a person; the reason is what each of them ends with."""
    key, never, fleet = new_key(), tmp_path / "never", door.fleet
    async with client(door.url) as connection, Operations(fleet.settings) as operations:
        parked = await start(connection, "ask1", key=key + "asks", x=1)
        await questions(parked)
        running = [await working(connection, fleet, f"{key}{n}", never) for n in range(SLOTS)]
        queued = await start(connection, "ledger", key=key + "queued")
        everything = [parked, *running, queued]
        assert await operations.active() == sorted(handle.task_id for handle in everything)
        assert await operations.cancel_all("the ship sinks") == len(everything)
        for handle in everything:
            task = await handle.wait(60)
            assert (task.status, task.status_message) == ("cancelled", "the ship sinks")
        assert (await operations.active(), await operations.admission()) == ([], None)
        assert await outcome(await start(connection, "ledger", key=key + "after")) == f"ran {key}after"
    assert fleet.ledger.events(key + "queued") == []
    assert [fleet.ledger.events(f"{key}{n}") for n in range(SLOTS)] == [["begin", "stopped"]] * SLOTS


# ------------------------------------------------------------------------------------------------ drain


@on_door
@covers("T1", "T4")
async def test_drain_returns_when_the_last_admitted_run_has_written_its_end(door: Running) -> None:
    """T4, and issue 3 ("Shows"): drain in one terminal, load in another; no gap between admission and execution."""
    key, fleet = new_key(), door.fleet
    admitted: list[TaskHandle] = []
    reasons: list[str] = []

    async def load(connection: Connection) -> None:
        while not reasons:
            try:
                seconds = 0.2 + len(admitted) % 5 / 10
                admitted.append(await start(connection, "nap", key=f"{key}{len(admitted)}", seconds=seconds))
            except MCPError as error:
                reasons.append(error.error.message)
            await anyio.sleep(0.05)  # the load: some twenty calls a second

    async def enough() -> bool:
        return len(admitted) >= SLOTS

    async with client(door.url) as connection, anyio.create_task_group() as group:
        group.start_soon(load, connection)
        await eventually(enough, description="some were admitted")
        drain = fleet.start("drain", "--reason", "closing time")
        assert await end(drain) == 0
        assert statuses(fleet, admitted) == {"completed"}
        assert "drained" in drain.output
    assert reasons and "closing time" in reasons[0]
    keys = [f"{key}{n}" for n in range(len(admitted))]
    assert all(fleet.ledger.events(one) == ["begin", "end"] for one in keys)


@on_door
@covers("T4")
async def test_drain_waits_for_a_run_and_for_a_person(door: Running, tmp_path: Path) -> None:
    """T4: admitted is admitted; a task that waits for an answer has not ended, and can still be answered."""
    key, release, fleet = new_key(), tmp_path / "release", door.fleet
    async with client(door.url) as connection:
        running = await working(connection, fleet, key, release)
        parked = await start(connection, "ask1", key=key + "asks", x=1)
        await questions(parked)
        drain = fleet.start("drain")
        wait_until(lambda: fleet.raw.exists(fleet.keys.admission), description="the door is closed", within_s=START_S)
        await answer(parked, "yes")
        assert await outcome(parked) == "1 yes"
        assert drain.exit_code is None
        release.touch()
        assert await end(drain) == 0
        assert statuses(fleet, [running, parked]) == {"completed"}


@on_door
@covers("T4")
async def test_a_drain_that_runs_out_of_time_names_what_is_left_and_the_next_one_cancels_it(
    door: Running, tmp_path: Path
) -> None:
    """T4: the caller owns the time-out; the names are labels, because an id is a secret."""
    key, release, fleet = new_key(), tmp_path / "release", door.fleet
    async with client(door.url) as connection:
        running = await working(connection, fleet, key, release)
        parked = await start(connection, "ask1", key=key + "asks", x=1)
        await questions(parked)
        drain = fleet.start("drain", "--timeout", "300ms")
        assert await end(drain) == 1
        assert "2 tasks have not ended" in drain.output and "admission open" in drain.output
        for handle in (running, parked):
            assert label(handle.task_id) in drain.output and handle.task_id not in drain.output
        assert statuses(fleet, [running, parked]) == {Status.RUNNING.value, Status.PARKED.value}
        assert "draining" in await refusal(connection, key + "late")
        again = fleet.start("drain", "--cancel", "--reason", "out of time")
        assert await end(again) == 0
        for handle in (running, parked):
            task = await handle.get()
            assert (task.status, task.status_message) == ("cancelled", "out of time")
        assert "out of time" in await refusal(connection, key + "late")
    assert fleet.ledger.events(key) == ["begin", "stopped"]


@on_door
@covers("T4")
async def test_drained_as_a_python_call_ends_with_the_last_task(door: Running, tmp_path: Path) -> None:
    """T4: resolves by itself, without a deadline of its own."""
    key, release, fleet = new_key(), tmp_path / "release", door.fleet
    async with client(door.url) as connection, Operations(fleet.settings) as operations:
        handle = await working(connection, fleet, key, release)
        with anyio.move_on_after(0.5) as patience:
            await operations.drained()
        assert patience.cancelled_caught
        release.touch()
        await operations.drained()
        assert fleet.record(handle).status is Status.COMPLETED
        assert await operations.admission() is None, "waiting closes no door"
