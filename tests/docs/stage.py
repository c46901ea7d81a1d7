"""What the hidden blocks of pages set up: a fleet for the page's server, on a real store, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer

from mcptasks import Operations, Tasks
from mcptasks.cli.serve import bound
from mcptasks.errors import MCPTasksError
from mcptasks.model import Status
from mcptasks.store.store import TaskStore
from mcptasks.tracker import Tracker
from tests.support.inline_fleet import InlineFleet


@asynccontextmanager
async def fleet(mcp: MCPServer, tasks: Tasks) -> AsyncGenerator[None]:
    """Inside the block the server's tasks run, as on an idle fleet. Its client is `Client(mcp)`, among others."""
    here = InlineFleet()
    async with aclosing(TaskStore(tasks.config)) as store, here.working(tasks.config, mcp), here.delivering():
        with tasks.moved(mcp, store, here):
            async with _while(_sweeping(here)):
                yield


async def _sweeping(here: InlineFleet) -> None:
    while True:
        await here.sweep()
        await asyncio.sleep(0.05)


@asynccontextmanager
async def _while(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    running = asyncio.ensure_future(work)
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def person(**content: Any) -> AsyncGenerator[None]:
    """Inside the block somebody answers every question, and accepts with this content."""

    async def answering() -> None:
        async with Operations() as desk:
            while True:
                for parked in (await desk.page(statuses=[Status.PARKED])).tasks:
                    record = await desk.read(parked.task_id)
                    answers = {key: {"action": "accept", "content": content} for key in record.questions}
                    # Answered or ended meanwhile: by whoever was quicker.
                    with suppress(MCPTasksError):
                        await desk.answer(record.task_id, answers)
                await asyncio.sleep(0.01)

    async with _while(answering()):
        yield


@asynccontextmanager
async def serving(mcp: MCPServer) -> AsyncGenerator[str]:
    """Yields the URL of the server on a real port."""
    listener = bound("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(mcp.streamable_http_app(), log_config=None, ws="none"))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        await running


@asynccontextmanager
async def tracking(tracker: Tracker) -> AsyncGenerator[None]:
    """Inside the block the tracker polls and delivers, as a worker does; then it is closed."""
    async with aclosing(tracker), _while(tracker.run()):
        yield
