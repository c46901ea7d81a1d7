"""The idle limit of a run: what keeps it from coming, what does not, and what becomes of its task (behaviour W4)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
import redis
from mcp.server.mcpserver import Context

from mcptasks import cancelled, step
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.durable import answer_all, one, text
from tests.support.house import Gate, house
from tests.support.tools import Word

pytestmark = [
    pytest.mark.anyio,
    # SEP-2577 retires logging; tools that log exist all the same.
    pytest.mark.filterwarnings("ignore:The logging capability is deprecated"),
]

LIMIT: Final = "400ms"
MESSAGE: Final = "The tool tool made no progress for 0.4 s, its idle limit"


def reason(raw: redis.Redis, settings: Settings, task_id: str) -> Any:
    """Why the task ended."""
    return raw.hget(f"{settings.prefix}task:{{{task_id}}}", "reason")


async def _says_words(ctx: Context) -> None:
    for n in range(50):
        await asyncio.sleep(0.05)
        await ctx.report_progress(1, 9, f"still at it {n}")


async def _logs(ctx: Context) -> None:
    for n in range(50):
        await asyncio.sleep(0.05)
        await ctx.info(f"still at it {n}")  # pyright: ignore[reportDeprecated]


async def _goes_back(ctx: Context) -> None:
    for n in range(50):
        await asyncio.sleep(0.05)
        await ctx.report_progress(50 - n)


async def _waits(ctx: Context) -> None:
    await asyncio.sleep(30)


@covers("W4")
@pytest.mark.parametrize("work", [_says_words, _logs, _goes_back, _waits])
async def test_words_and_logs_are_no_progress(
    settings: Settings, raw: redis.Redis, work: Callable[[Context], Awaitable[None]]
) -> None:
    """W4: a task that only says that it lives has an end; renewals of its lease go on all the while."""
    cleaned = list[str]()

    async def tool(ctx: Context) -> str:
        try:
            await work(ctx)
        finally:
            await asyncio.sleep(0.01)  # clean-up may wait
            cleaned.append("up")
        return "done"

    quick = settings.model_copy(update={"renew_ms": 50})
    async with house(quick, one(tool, idle_limit=LIMIT)) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "failed"
        state = await client.state(task_id)
        assert (state["status"], state["error"]) == ("failed", {"code": -32603, "message": MESSAGE})
        assert reason(raw, settings, task_id) == "idle_timeout"
    assert cleaned == ["up"]


async def _counts(ctx: Context) -> None:
    for n in range(13):
        await asyncio.sleep(0.1)
        await ctx.report_progress(n + 1)


async def _takes_steps(ctx: Context) -> None:
    for _ in range(13):
        await step("rest", asyncio.sleep, 0.1)


@covers("W4")
@pytest.mark.parametrize("work", [_counts, _takes_steps])
async def test_numbers_that_rise_and_steps_that_end_are_progress(
    settings: Settings, work: Callable[[Context], Awaitable[None]]
) -> None:
    """Longer than the limit in all, and never so long in between."""

    async def tool(ctx: Context) -> str:
        await work(ctx)
        return "done"

    async with house(settings, one(tool, idle_limit="1s")) as (home, client):
        task_id = await client.start("tool")
        await home.fleet.deliver()
        assert text(await client.state(task_id)) == "done"


@covers("W4", "E07")
@pytest.mark.parametrize("hold", ["1ms", "20s"], ids=["parked", "held"])
async def test_waiting_for_a_person_is_not_idle(settings: Settings, hold: str) -> None:
    """W4: thinking suspends the idle clock, on a worker and without one; the time limit's too."""

    async def tool(ctx: Context) -> str:
        answer = await ctx.elicit("Sure?", Word)
        await asyncio.sleep(0.1)
        return answer.action

    limits = {"idle_limit": "800ms", "time_limit": "1s"}
    async with house(settings, one(tool, hold=hold, **limits)) as (home, client), home.fleet.delivering():
        task_id = await client.start("tool")
        await client.until(task_id, lambda state: state["status"] == "input_required")
        await asyncio.sleep(1.3)  # the thing under test: time passes
        await answer_all(client, task_id)
        assert (
            text(await client.until(task_id, lambda state: state["status"] != "input_required" and "result" in state))
            == "accept"
        )


@covers("W4", "R5")
async def test_a_tool_that_stops_in_order_does_not_hide_its_limit(settings: Settings, raw: redis.Redis) -> None:
    """W4: a cooperative stop after a time-out keeps the time-out as the reason, whatever the tool returns."""

    def tool() -> str:
        while not cancelled():
            time.sleep(0.01)
        return "stopped in order"

    async with house(settings, one(tool, idle_limit=LIMIT)) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "failed"
        assert (await client.state(task_id))["error"]["message"] == MESSAGE
        assert reason(raw, settings, task_id) == "idle_timeout"


@covers("W4")
async def test_a_result_beats_the_idle_limit_that_nobody_had_acted_on(settings: Settings) -> None:
    """W4: progress already accepted beats the deadline, and an end is the most of it."""

    async def tool() -> str:
        time.sleep(0.6)  # noqa: ASYNC251 - so that nobody can look
        return "done"

    async with house(settings, one(tool, idle_limit=LIMIT)) as (home, client):
        task_id = await client.start("tool")
        await home.fleet.deliver()
        assert text(await client.state(task_id)) == "done"


@covers("W4")
async def test_a_tool_that_ignores_it_loses_its_slot(settings: Settings, raw: redis.Redis) -> None:
    """After the grace the task ends without it, and its worker goes on."""
    gate, ignored = Gate(), list[int]()

    async def tool() -> str:
        while not gate.opened.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                ignored.append(1)
        return "late"

    async with house(settings, one(tool, idle_limit=LIMIT, cancel_grace="200ms")) as (home, client):
        task_id = await client.start("tool")
        assert await home.fleet.deliver() == "stuck: failed"
        state = await client.state(task_id)
        assert reason(raw, settings, task_id) == "idle_timeout"
        gate.opened.set()
        await asyncio.sleep(0.05)
        assert await client.state(task_id) == state, "its late return changes nothing"
    assert ignored == [1]


@covers("W4", "W3")
async def test_the_run_after_a_lost_one_begins_a_clock_of_its_own(settings: Settings, raw: redis.Redis) -> None:
    """It goes over ground that was told before: that is work, though no client hears of it again."""
    gate, runs = Gate(), list[int]()

    async def tool(ctx: Context) -> str:
        runs.append(1)
        for n in range(8):
            await ctx.report_progress(n + 1)
            await asyncio.sleep(0.15)
        if len(runs) == 1:
            await ctx.report_progress(9)
            gate.reached.set()
            await asyncio.sleep(30)
        return "done"

    async with house(settings, one(tool, idle_limit="1s")) as (home, client):
        task_id = await client.start("tool")
        lost = home.fleet.begin()
        await gate.arrival()
        raw.zadd(f"{settings.prefix}leases", {task_id: 1})
        await home.fleet.sweep()
        assert await home.fleet.deliver() == "completed"
        await asyncio.wait({lost})
        assert text(await client.state(task_id)) == "done"
    assert len(runs) == 2
