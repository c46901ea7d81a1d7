"""Several calls are open at once: what ends one of them does nothing to the others (case D11)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer

from mcptasks import Tasks
from mcptasks.client import TaskHandle, TasksClient
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import Gate, House, house

pytestmark = pytest.mark.anyio

#: As they end.
ORDER: Final = (3, 1, 6, 2, 5, 4)


class Six:
    """A tool that ends when it is told to, and the count of its calls."""

    def __init__(self) -> None:
        self.gates = {number: Gate() for number in ORDER}
        self.calls: list[int] = []

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        @mcp.tool()
        @tasks.durable()
        async def job(number: int) -> str:
            await self.gates[number].wait()
            return f"result {number}"

        async def count(ctx: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
            if ctx.method == "tools/call":
                self.calls.append(ctx.params["arguments"]["number"])
            return await call_next(ctx)

        mcp.middleware.append(count)

    async def end(self, number: int) -> None:
        """That one may end."""
        await self.gates[number].arrival()
        self.gates[number].opened.set()


def client_of(home: House) -> Client:
    """A client that knows tasks."""
    return Client(home.mcp, extensions=[TasksClient()])


def text(result: Any) -> str:
    """What the tool returned."""
    return str(result.content[0].text)


@covers("D11")
async def test_calls_that_wait_side_by_side_end_each_with_its_own_result(settings: Settings) -> None:
    """D11: whoever ends first; nothing is called a second time."""
    six = Six()
    async with house(settings, six) as (home, _), home.fleet.delivering(), client_of(home) as client:
        calls = {number: asyncio.create_task(client.call_tool("job", {"number": number})) for number in sorted(ORDER)}
        for number in ORDER:
            await six.end(number)
            assert text(await calls[number]) == f"result {number}"
        assert sorted(six.calls) == sorted(ORDER)


@covers("D11")
async def test_a_new_client_goes_on_with_the_open_ones_and_starts_none_again(settings: Settings) -> None:
    """D11: after the second result the client is another process, which has the ids and nothing else."""
    six = Six()
    async with house(settings, six) as (home, _), home.fleet.delivering():
        ids: dict[int, str] = {}
        async with client_of(home) as first:
            handles: dict[int, TaskHandle] = {}
            for number in sorted(ORDER):
                handles[number] = await TasksClient.start(first, "job", {"number": number})
                ids[number] = handles[number].task_id
            for number in ORDER[:2]:
                await six.end(number)
                assert text(await handles[number].result(30)) == f"result {number}"
        async with client_of(home) as second:
            waits = {
                number: asyncio.create_task(TasksClient.attach(second, ids[number]).result(30)) for number in ORDER
            }
            for number in ORDER[2:]:
                await six.end(number)
            for number, wait in waits.items():
                assert text(await wait) == f"result {number}", "also those that ended before"
        assert sorted(six.calls) == sorted(ORDER)
