"""A tool that needs more time than its task has: `mcptasks.extend`, seen by its client."""

from __future__ import annotations

from typing import Final

import pytest
from mcp.server.mcpserver import MCPServer

import mcptasks
from mcptasks import Tasks
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import house

pytestmark = pytest.mark.anyio

DAY_MS: Final = 86_400_000


def tools(mcp: MCPServer, tasks: Tasks) -> None:
    """One tool that asks for three days, and then for less."""

    @mcp.tool()
    @tasks.durable(ttl="1h")
    async def long_one() -> str:
        await mcptasks.extend("3d")
        await mcptasks.extend("5m")
        return "done"


@covers("R7", "P33")
async def test_a_tool_gets_more_time_and_its_client_reads_it(settings: Settings) -> None:
    """P33: ttlMs is honest, from creation."""
    async with house(settings, tools) as (home, client):
        task_id = await client.start("long_one")
        await home.fleet.settle()
        state = await client.state(task_id)
        assert state["status"] == "completed"
        assert 3 * DAY_MS <= state["ttlMs"] < 3 * DAY_MS + 60_000


async def test_outside_a_task_there_is_nothing_to_extend() -> None:
    """The same tool runs live."""
    await mcptasks.extend("3d")
    with pytest.raises(mcptasks.MCPTasksError):
        await mcptasks.extend("soon")
