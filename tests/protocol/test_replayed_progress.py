"""What a tool says while it goes over what an earlier run did is not said again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from mcp.server.mcpserver import Context

from mcptasks import sleep, step
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.durable import Till, answer_all, let_time_pass, one, text, through
from tests.support.house import Gate, house
from tests.support.tools import Word

pytestmark = [
    pytest.mark.anyio,
    # SEP-2577 retires logging; tools that log exist all the same.
    pytest.mark.filterwarnings("ignore:The logging capability is deprecated"),
]


@covers("R4", "P35")
async def test_progress_never_goes_back_while_a_tool_replays(settings: Settings, raw: redis.Redis) -> None:
    """Past questions, steps and sleeps: the client's last word stands until there is a newer one."""
    gates = [Gate(), Gate(), Gate()]
    runs = list[int]()

    async def tool(ctx: Context) -> str:
        runs.append(1)
        await ctx.report_progress(1, 9, "reading")
        await ctx.report_progress(1, 9, "parsing")
        await step("count", lambda: 7)
        await ctx.report_progress(2, 9, "counted")
        await gates[len(runs) - 1].wait()
        await ctx.elicit("Sure?", Word)
        await ctx.report_progress(2, 9, "sure")
        await sleep("1h")
        await ctx.report_progress(2, 9, "rested")
        return "done"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        said = list[Any]()
        updated, word = list[str](), ""
        for number, gate in enumerate(gates):
            run = home.fleet.begin()
            await gate.arrival()
            if number == 0:
                await client.until(task_id, lambda state: state.get("statusMessage") == "counted: 2 of 9 (22 %)")
            for _ in range(3):  # the replayed part is over; what it could have said would be here
                state = await client.state(task_id)
                said.append(state["statusMessage"])
                updated.append(state["lastUpdatedAt"])
                await asyncio.sleep(0.05)
            gate.opened.set()
            word = await run
            if word == "parked":
                await answer_all(client, task_id)
            elif word == "sleeping":
                assert (await client.state(task_id))["statusMessage"] == "sure: 2 of 9 (22 %)"
                let_time_pass(raw, settings, task_id)
                await home.fleet.sweep()
        assert said == ["counted: 2 of 9 (22 %)"] * 6 + ["sure: 2 of 9 (22 %)"] * 3
        assert [len(set(updated[n : n + 3])) for n in (0, 3, 6)] == [1, 1, 1]
        assert word == "completed"
    assert len(runs) == 3


async def test_progress_of_a_lost_run_is_not_told_again_by_the_next_one(settings: Settings, raw: redis.Redis) -> None:
    """It has no record that would tell how far the other came: only what is new, in numbers or words, is told."""
    gates = [Gate(), Gate()]
    runs = list[int]()

    async def tool(ctx: Context) -> str:
        runs.append(1)
        for word in ("reading", "parsing", "writing"):
            await ctx.report_progress(1, None, word)
        await gates[len(runs) - 1].wait()
        await ctx.report_progress(1, None, "closing")
        return "done"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        lost = home.fleet.begin()
        await gates[0].arrival()
        await client.until(task_id, lambda state: state.get("statusMessage") == "writing: 1")
        before = (await client.state(task_id))["lastUpdatedAt"]
        raw.zadd(f"{settings.prefix}leases", {task_id: 1})
        await home.fleet.sweep()
        await asyncio.wait({lost})
        run = home.fleet.begin()
        await gates[1].arrival()
        for _ in range(3):
            state = await client.state(task_id)
            assert (state["statusMessage"], state["lastUpdatedAt"]) == ("writing: 1", before)
            await asyncio.sleep(0.05)
        gates[1].opened.set()
        assert await run == "completed"
    assert len(runs) == 2


async def test_what_a_tool_logs_to_its_client_is_not_sent_twice(settings: Settings) -> None:
    """A task sends no log notifications at all (SEP-2663), in no run; logging in a replay disturbs nothing."""
    till = Till()

    async def tool(ctx: Context) -> str:
        await ctx.info("before")  # pyright: ignore[reportDeprecated]
        await step("charge", till.charge)
        await ctx.elicit("Sure?", Word)
        await ctx.warning("after")  # pyright: ignore[reportDeprecated]
        return "done"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        assert text(await through(home, client, task_id)) == "done"
        reply = await client.get(task_id)
        assert b"before" not in reply.raw and b"after" not in reply.raw
    assert till.done == ["charge"]
