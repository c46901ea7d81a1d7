"""Push between real processes: two servers, a worker, and a client that is told what it did not ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from mcptasks.client import TaskHandle, TasksClient, connect
from mcptasks.wire import DetailedTask
from tests.fleet.conftest import ENDED, Served, on_served
from tests.fleet.system import TARGET, Fleet, Proc, client, free_port, new_key, start, text
from tests.requirements import covers
from tests.support.patient import Patient
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


def told(handle: TaskHandle, *, yes: bool = True) -> Callable[[], Awaitable[bool]]:
    """Whether the handle's wait is told of changes by now, or is not any more."""

    async def as_asked() -> bool:
        return handle._ear.live is yes  # pyright: ignore[reportPrivateUsage]

    return as_asked


@asynccontextmanager
async def waiting(handle: TaskHandle) -> AsyncGenerator[asyncio.Task[Any]]:
    """Somebody waits for the task, and is told of changes."""
    wait = asyncio.create_task(handle.result(60))
    try:
        await eventually(told(handle), description="the wait is told of changes")
        yield wait
    finally:
        wait.cancel()


@on_served
@covers("P70", "P72", "B01")
async def test_a_listener_hears_of_a_task_that_another_server_made(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 4: seen through push, and nothing was asked for after the stream was open."""
    key, path, polls, patient = new_key(), tmp_path / "open", list[DetailedTask](), Patient()
    served.fleet.worker()
    _, other = served.fleet.server()
    async with client(served.url) as maker, Client(other, extensions=[TasksClient(pause=patient)]) as listener:
        made = await start(maker, "gate", key=key, path=str(path))
        handle = TasksClient.attach(listener, made.task_id)
        get = handle.get

        async def counted() -> DetailedTask:
            polls.append(await get())
            return polls[-1]

        monkeypatch.setattr(handle, "get", counted)
        async with waiting(handle) as wait:
            served.fleet.ledger.await_event(key, "begin")
            async with asyncio.timeout(30):
                await patient.relies.wait()
            asked = len(polls)
            path.touch()
            assert text(await wait) == f"passed {key}"
            assert len(polls) == asked


@covers("P70", "R9")
@pytest.mark.parametrize("how", ["terminate", "kill"])
async def test_a_wait_outlives_the_server_that_told_it_and_is_told_by_the_next(
    fleet: Fleet, tmp_path: Path, how: str
) -> None:
    """A server that goes down ends its streams, or it would wait for them for ever; its clients poll, then listen."""
    key, path, port = new_key(), tmp_path / "open", free_port()

    def serve() -> Proc:
        return fleet.start("serve", TARGET, "--port", str(port))

    fleet.worker()
    server = serve()
    async with connect(fleet.ready(server)) as connection:
        handle = await start(connection, "gate", key=key, path=str(path))
        async with waiting(handle) as wait:
            if how == "terminate":
                server.terminate()
                assert server.await_end() in ENDED
                assert "Cancel" not in server.output, "its streams were cut"
            else:
                server.kill()
            await eventually(told(handle, yes=False), description="the wait knows that it is not told any more")
            assert not wait.done()
            fleet.ready(serve())
            await eventually(told(handle), description="the next server tells")
            path.touch()
            assert text(await wait) == f"passed {key}"


@covers("P70", "W10")
async def test_a_wait_is_told_of_an_end_after_the_store_was_killed(fleet: Fleet, tmp_path: Path) -> None:
    """The server's subscription is gone with the store; what follows it is told of all the same."""
    key, path = new_key(), tmp_path / "open"
    fleet.worker()
    _, url = fleet.server()
    async with Client(url, extensions=[TasksClient(pause=Patient())]) as listener:
        handle = await TasksClient.start(listener, "gate", {"key": key, "path": str(path)})
        async with waiting(handle) as wait:
            fleet.ledger.await_event(key, "begin")
            fleet.store.kill()
            fleet.store.restart()
            path.touch()
            assert text(await wait) == f"passed {key}"
