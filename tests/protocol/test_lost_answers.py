"""The store has done what it was asked for, and its answer never arrives: nobody's work is lost for it."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from mcp.server.mcpserver import MCPServer

from mcptasks import Tasks
from mcptasks.errors import StoreUnavailable
from mcptasks.fleet.execute import perform
from mcptasks.fleet.portal import Portal
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import house
from tests.support.inline_fleet import InlineFleet
from tests.support.lossy import Loss, lossy
from tests.support.tasks import hint
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

LOSSES: Final[list[Loss]] = ["cut", "silence"]


class Tools:
    """One tool, which must not begin twice."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        @mcp.tool()
        @tasks.durable(on_worker_lost="fail")
        async def once() -> str:
            self.runs += 1
            return "done"


@covers("W10", "W3")
@pytest.mark.parametrize("loss", LOSSES)
async def test_a_claim_whose_answer_got_lost_is_run_at_once_by_who_claimed_it(settings: Settings, loss: Loss) -> None:
    """It once was taken for another worker's: the task waited for its lease, and its one attempt was burnt unrun."""
    tools = Tools()
    async with lossy(settings) as (way, by_it), house(by_it, tools) as (home, client):
        before = await client.start("once")
        assert await home.fleet.deliver() == "completed", "now the store knows the script"
        task_id = await client.start("once")
        way.lose("claim", loss)
        assert await home.fleet.deliver() == "completed"
        assert way.lost == 1
        assert (await client.state(task_id))["status"] == (await client.state(before))["status"] == "completed"
    assert tools.runs == 2


async def test_who_goes_down_does_not_wait_for_the_store(anyio_backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is claimed that it knows of: the sweeper sends the message again, to a worker that stays."""
    portal = Portal(Settings(redis_url="redis://127.0.0.1:1/0"), MCPServer("idle"), InlineFleet())

    async def waits() -> bool:
        return "waits for the store" in caplog.text

    performing = asyncio.create_task(perform(portal, hint("some-task"), "w1"))
    await eventually(waits, description="it waits for the store")
    portal.shutdown.begin(3_600_000)
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(performing, 30)
    await portal.store.aclose()
