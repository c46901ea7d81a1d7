"""What a durable tool can ask about its task: which attempt this is, and a key for effects outside."""

from __future__ import annotations

import asyncio
import threading
import uuid

import anyio
import pytest
import redis
from mcp.server.mcpserver import Context

import mcptasks
from mcptasks import Retry, attempt, idempotency_key
from mcptasks.model import Hint
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.durable import one, text, through
from tests.support.house import Gate, house
from tests.support.tools import Word
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@covers("N2", "N7")
async def test_the_idempotency_key_is_one_in_every_run_and_another_in_every_task(settings: Settings) -> None:
    """N2: on the same attempt and the next, in threads, in steps; with a name it is that thing's own."""
    keys: dict[str, list[tuple[str, ...]]] = {}

    async def tool(which: str, ctx: Context) -> str:
        inside = await mcptasks.step("look", idempotency_key)
        keys.setdefault(which, []).append(
            (idempotency_key(), idempotency_key("charge"), idempotency_key("mail \ud83d"), inside)
        )
        await ctx.elicit("Sure?", Word)
        if len(keys[which]) == 2:
            raise Retry("Busy")
        return "done"

    async with house(settings, one(tool, retry=["1ms"])) as (home, client):
        for which in ("a", "b"):
            task_id = await client.start("tool", {"which": which})
            await through(home, client, task_id)
            [message] = home.fleet.rechecks[-1:]

            async def over(message: Hint = message) -> bool:
                return await home.fleet.deliver(message) == "completed"

            await eventually(over, description="the retry is due")
            assert all(task_id not in key for key in keys[which][0]), "without authentication the id is the secret"
    assert [len(set(runs)) for runs in keys.values()] == [1, 1]
    every = [key for runs in keys.values() for key in runs[0][:3]]
    assert len(set(every)) == 6
    assert [str(uuid.UUID(key)) for key in every] == every
    assert all(runs[0][3] == runs[0][0] for runs in keys.values())


@covers("N4", "W3")
async def test_attempts_count_lost_workers_and_nothing_else(settings: Settings, raw: redis.Redis) -> None:
    """Not questions, retries or shutdowns; sync tools may ask, too."""
    seen: list[int] = []
    gate = Gate()

    async def tool(ctx: Context) -> str:
        seen.append(attempt())
        await ctx.elicit("Sure?", Word)
        if len(seen) == 2:
            raise Retry("Busy")
        if len(seen) in (3, 4):
            await gate.wait()
        return f"attempt {attempt()}"

    async with house(settings, one(tool, retry=["1ms"])) as (home, client):
        task_id = await client.start("tool")
        await through(home, client, task_id)

        async def third() -> asyncio.Task[str] | None:
            # One at a time: a second one beside it would be the one that is returned, and it holds nothing.
            run = home.fleet.begin(home.fleet.rechecks[-1])
            arrival = asyncio.ensure_future(gate.reached.wait())
            await asyncio.wait({run, arrival}, return_when=asyncio.FIRST_COMPLETED)
            arrival.cancel()
            return run if gate.reached.is_set() else None

        run = await eventually(third, description="the retry runs")
        # Its worker goes down: no attempt. Then the next one's lease runs out: one.
        run.cancel()
        await asyncio.wait({run})
        gate.reached.clear()
        lost = home.fleet.begin()
        await gate.arrival()
        raw.zadd(f"{settings.prefix}leases", {task_id: 1})
        await home.fleet.sweep()
        await asyncio.wait({lost})
        assert text(await through(home, client, task_id)) == "attempt 2"
    assert seen == [1, 1, 1, 1, 2]


def test_outside_a_task_it_is_the_first_attempt_and_every_key_is_fresh() -> None:
    """Nothing runs again by itself there; a key that stood still would hide a second, honest call."""
    assert attempt() == 1
    assert len({idempotency_key(), idempotency_key(), idempotency_key("charge"), idempotency_key("charge")}) == 4


@covers("R4", "P52")
async def test_sync_code_sees_the_cancel_wherever_it_runs(settings: Settings) -> None:
    """P52: in a sync tool, and in a thread that an async one started."""
    entered, seen = threading.Event(), list[str]()

    def work() -> None:
        entered.set()
        while not mcptasks.cancelled():
            pass
        seen.append("cancelled")
        mcptasks.raise_if_cancelled()

    def sync_tool() -> str:
        work()
        return "done"

    async def async_tool() -> str:
        await anyio.to_thread.run_sync(work)
        return "done"

    async def with_a_step() -> str:
        await mcptasks.step("work", work)
        return "done"

    for tool in (sync_tool, async_tool, with_a_step):
        entered.clear()
        async with house(settings, one(tool)) as (home, client):
            task_id = await client.start("tool")
            run = home.fleet.begin()
            await asyncio.to_thread(entered.wait, 30)
            await client.cancel(task_id)
            assert await run == "cancelled"

            async def noticed() -> bool:
                return bool(seen)

            await eventually(noticed, description="the thread saw it")
            assert seen.pop() == "cancelled"
    assert mcptasks.cancelled() is False
    mcptasks.raise_if_cancelled()
