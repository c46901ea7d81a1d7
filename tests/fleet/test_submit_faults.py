"""Submitting while things are broken, or a hundred times at once (case A10, duties P23 and P62)."""

from __future__ import annotations

import time
from collections.abc import Generator

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from mcptasks.client import Connection, TasksClient
from mcptasks.model import Status
from tests.fleet.conftest import Running, on_running
from tests.fleet.system import Fleet, client, new_key, outcome, start, text
from tests.requirements import covers
from tests.support.waiting import eventually, wait_until

pytestmark = pytest.mark.anyio

#: What a caller may have to wait for a refusal.
REFUSED_WITHIN_S = 5.0


@pytest.fixture
def up(fleet: Fleet) -> Generator[tuple[Fleet, str]]:
    """A server and a worker on a store that the test may break."""
    worker, server = fleet.start_worker(), fleet.start_server()
    yield fleet, fleet.ready(worker, server)
    assert worker.exit_code is None and server.exit_code is None, "they outlive their store"


async def refused(connection: Connection, key: str) -> None:
    """A durable call now gets -32603 in time."""
    began = time.monotonic()
    with pytest.raises(MCPError, match="task store is not available") as error:
        await TasksClient.start(connection.client, "ledger", {"key": key}, idempotency_key=key)
    assert error.value.error.code == INTERNAL_ERROR
    assert time.monotonic() - began < REFUSED_WITHIN_S


async def plain_works(connection: Connection, key: str) -> None:
    """A tool that is not durable does not care."""
    assert text(await connection.client.call_tool("plain", {"key": key})) == "plain"


async def nothing_is_stranded(fleet: Fleet, connection: Connection, key: str) -> None:
    """Called again with its idempotency key, the call that was refused is one task with one run, the only one there is.

    A frozen store runs, when it is back, what it had received; then the call finds the task it was refused.
    """

    async def again() -> str:
        try:
            handle = await TasksClient.start(connection.client, "ledger", {"key": key}, idempotency_key=key)
        except MCPError:  # the server's own connections have to find out that the store is back
            return ""
        return await outcome(handle)

    assert await eventually(again, description="the store is back for the server") == f"ran {key}"
    assert fleet.ledger.count(key) == 1
    task_ids = fleet.task_ids()
    wait_until(
        lambda: {fleet.record(task_id).status for task_id in task_ids} == {Status.COMPLETED},
        description="no task is left half way",
    )
    assert len(task_ids) == 1


@covers("A10", "P62", "W10")
async def test_a_frozen_store_costs_a_durable_call_seconds_and_other_calls_nothing(up: tuple[Fleet, str]) -> None:
    """A10: apply_async blocked the web request for ever; some time-outs applied to the first attempt only."""
    fleet, url = up
    key = new_key()
    async with client(url) as connection:
        fleet.store.freeze()
        async with anyio.create_task_group() as group:
            group.start_soon(refused, connection, key)
            group.start_soon(plain_works, connection, key + "plain")
        fleet.store.thaw()
        await nothing_is_stranded(fleet, connection, key)


@covers("A10", "P62")
async def test_a_store_that_is_gone_refuses_at_once_and_comes_back_clean(up: tuple[Fleet, str]) -> None:
    """A10: neither a record without a message nor a message without a record may come of a call that was refused."""
    fleet, url = up
    key = new_key()
    async with client(url) as connection:
        fleet.store.kill()
        await refused(connection, key)
        await plain_works(connection, key + "plain")
        fleet.store.restart()
        assert fleet.task_keys() == []
        await nothing_is_stranded(fleet, connection, key)


@pytest.mark.slow
@covers("A10", "W2")
async def test_a_store_that_stalls_in_mid_call_keeps_the_call_findable_by_its_key(up: tuple[Fleet, str]) -> None:
    """A10: CLIENT PAUSE with the store up: it takes the command, answers too late, and does it all the same."""
    fleet, url = up
    key = new_key()
    async with client(url) as connection:
        fleet.raw.execute_command("CLIENT", "PAUSE", "3000", "WRITE")
        await refused(connection, key)
        await nothing_is_stranded(fleet, connection, key)


@covers("P23", "W2")
async def test_a_hundred_calls_with_one_key_through_two_servers_are_one_task_and_one_run(fleet: Fleet) -> None:
    """P23: the response was lost, the client called again, and two jobs ran; here a hundred clients do it at once."""
    key = new_key()
    first, second, worker = fleet.start_server(), fleet.start_server(), fleet.start_worker()
    urls = [fleet.ready(first, worker), fleet.ready(second)]
    ids: list[str] = []

    async def call(connection: Connection) -> None:
        handle = await TasksClient.start(connection.client, "ledger", {"key": key}, idempotency_key=key)
        ids.append(handle.task_id)

    async with client(urls[0]) as one, client(urls[1]) as two:
        async with anyio.create_task_group() as group:
            for n in range(100):
                group.start_soon(call, (one, two)[n % 2])
        assert len(ids) == 100 and len(set(ids)) == 1
        assert await outcome(TasksClient.attach(two.client, ids[0])) == f"ran {key}"
        await call(one)
        assert len(set(ids)) == 1, "also when it has ended"
        with pytest.raises(MCPError, match="used before with other arguments") as conflict:
            await TasksClient.start(two.client, "ledger", {"key": "other"}, idempotency_key=key)
        assert conflict.value.error.code == INVALID_PARAMS
    assert fleet.ledger.count(key) == 1
    assert len(fleet.task_ids()) == 1


@on_running
async def test_calls_without_a_key_are_as_many_tasks(running: Running) -> None:
    """P23: only the caller's own key tells a retry from a second order."""
    key = new_key()
    async with client(running.url) as connection:
        handles = [await start(connection, "ledger", key=key) for _ in range(2)]
        for handle in handles:
            assert await outcome(handle) == f"ran {key}"
    assert running.fleet.ledger.count(key) == 2
