"""Both halves of push together, over every transport: a wait that is told by the real server asks no more."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
import uvicorn
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.mcpserver import MCPServer

from mcptasks import Tasks
from mcptasks.cli.serve import bound
from mcptasks.client import TasksClient
from mcptasks.client.polling import QUIET_MS, Bell
from mcptasks.settings import Settings
from mcptasks.wire import DetailedTask
from tests.requirements import covers
from tests.support.house import Gate, House, house
from tests.support.raw_client import RawClient
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

ROOT: Final = Path(__file__).parents[2]


class Rests:
    """Pauses as they are, but the long ones last until somebody rings, and say so."""

    def __init__(self) -> None:
        self.resting = False

    async def __call__(self, delay_ms: int, bell: Bell, heard: int) -> None:
        """The pause."""
        if delay_ms < QUIET_MS:
            await anyio.sleep(delay_ms / 1000)
            return
        self.resting = True
        await bell.wait(heard)
        self.resting = False

    async def rest(self) -> None:
        """The wait is told, and asks no more."""

        async def resting() -> bool:
            return self.resting

        await eventually(resting, description="the wait is told instead of asking")


@asynccontextmanager
async def in_memory(home: House, extension: TasksClient) -> AsyncGenerator[Client]:
    """No transport at all."""
    mcp, tasks = home.make_server()
    async with Client(mcp, extensions=[extension]) as client:
        yield client
    await tasks._store.aclose()  # pyright: ignore[reportPrivateUsage]


@asynccontextmanager
async def over_stdio(home: House, extension: TasksClient) -> AsyncGenerator[Client]:
    """A server process of its own."""
    env = {
        "MCPTASKS_REDIS_URL": home.settings.redis_url,
        "MCPTASKS_PREFIX": home.settings.prefix,
        "PYTHONPATH": str(ROOT),
    }
    argv = ["-m", "tests.protocol.stdio_server"]
    async with Client(
        stdio_client(StdioServerParameters(command=sys.executable, args=argv, env=env)), extensions=[extension]
    ) as client:
        yield client


def over_http(**how: Any) -> Callable[[House, TasksClient], AbstractAsyncContextManager[Client]]:
    """A real port."""

    @asynccontextmanager
    async def opened(home: House, extension: TasksClient) -> AsyncGenerator[Client]:
        mcp, tasks = home.make_server()
        listener = bound("127.0.0.1", 0)
        config = uvicorn.Config(mcp.streamable_http_app(**how), log_config=None, ws="none")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            async with Client(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", extensions=[extension]) as client:
                yield client
        finally:
            server.should_exit = True
            await serving
            await tasks._store.aclose()  # pyright: ignore[reportPrivateUsage]

    return opened


TRANSPORTS: Final[dict[str, Callable[[House, TasksClient], AbstractAsyncContextManager[Client]]]] = {
    "memory": in_memory,
    "stdio": over_stdio,
    "http": over_http(),
    "http, stateless": over_http(stateless_http=True),
    "http, json": over_http(json_response=True),
    "http, stateless and json": over_http(stateless_http=True, json_response=True),
}


async def on_its_way(home: House, caller: RawClient, gate: Gate) -> str:
    """The id of a task that runs and stands at the gate."""
    task_id = await caller.start("wait")
    home.fleet.begin()
    await gate.arrival()
    return task_id


@covers("P70", "P72", "B01")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_wait_is_told_of_the_end_and_asks_no_more(
    settings: Settings, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 4: listening on a server that did not make the task; with an hour between polls only a push helps."""
    gate, rests = Gate(), Rests()
    asked = 0

    def tools(mcp: MCPServer, tasks: Tasks) -> None:
        @mcp.tool()
        @tasks.durable()
        async def wait() -> str:
            await gate.wait()
            return "done"

    slow = settings.model_copy(update={"poll_ms": 3_600_000})
    async with (
        house(slow, tools) as (home, caller),
        TRANSPORTS[transport](home, TasksClient(pause=rests)) as client,
    ):
        handle = TasksClient.attach(client, await on_its_way(home, caller, gate))
        get = handle.get

        async def counted() -> DetailedTask:
            nonlocal asked
            asked += 1
            return await get()

        monkeypatch.setattr(handle, "get", counted)
        waiting: asyncio.Task[Any] = asyncio.create_task(handle.result())
        await rests.rest()
        before = asked
        gate.opened.set()
        async with asyncio.timeout(30):
            result = await waiting
        assert result.structured_content == {"result": "done"}
        assert asked == before
