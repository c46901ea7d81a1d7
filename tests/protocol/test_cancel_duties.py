"""What a cancel promises and what it leaves to the tool (SEP-2663: cancellation is cooperative)."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import suppress
from typing import Any, Final

import pytest
import redis
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError

import mcptasks
from mcptasks import Tasks
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import Gate, House, house
from tests.support.tools import Word, ask_first
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

ACCEPT: Final = {"action": "accept", "content": {"word": "x"}}


class Tools:
    """Tools that take a cancel in every way there is."""

    def __init__(self) -> None:
        self.gate = Gate()
        #: For sync tools, which no loop may block: they stand here.
        self.thread_at_gate, self.thread_gate = threading.Event(), threading.Event()
        self.log: list[str] = []

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        @mcp.tool()
        @tasks.durable()
        async def works() -> str:
            try:
                await self.gate.wait()
                return "done"
            except asyncio.CancelledError:
                await asyncio.sleep(0)  # a cancel interrupts once; cleaning up may await
                self.log.append("cleaned up")
                raise

        @mcp.tool()
        @tasks.durable()
        async def reacts(how: str) -> str:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                if how == "completes":
                    return "finished anyway"
                if how == "protocol error":
                    raise MCPError(-32050, "own reason", {"n": 1}) from None
                if how == "tool error":
                    raise ToolError("own reason") from None
                raise LookupError("secret of the crash") from None
            return "never"

        @mcp.tool()
        @tasks.durable(cancel_grace="50ms")
        async def ignores_with_grace() -> str:
            for _ in range(3):  # not for ever: a failing test must end too
                with suppress(asyncio.CancelledError):
                    await self.gate.wait()
                    break
                self.log.append("ignored")
            self.log.append("returned")
            return "too late"

        @mcp.tool()
        @tasks.durable()
        def sync(how: str) -> str:
            self.thread_at_gate.set()
            self.thread_gate.wait(30)
            self.log.append(str(mcptasks.cancelled()))
            if how == "raises":
                mcptasks.raise_if_cancelled()
            return "returned"

        @mcp.tool()
        @tasks.durable(hold="30s")
        async def held(ctx: Context) -> str:
            try:
                return (await ctx.elicit("Held?", Word)).action
            finally:
                self.log.append("left")

        mcp.tool()(tasks.durable()(ask_first))


async def stand(tools: Tools) -> None:
    """A sync tool stands at its gate."""

    async def standing() -> bool:
        return tools.thread_at_gate.is_set()

    await eventually(standing, description="the thread is at the gate")


@covers("P52", "P50", "W5", "A08")
async def test_a_queued_task_is_cancelled_at_once_and_its_tool_never_starts(settings: Settings) -> None:
    """Ours: nobody works on it, so there is nobody to ask. Its message, when it comes, finds that it is over."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("works")
        await client.cancel(task_id)
        cancelled = await client.get(task_id)
        assert cancelled.result["status"] == "cancelled"

        assert await home.fleet.deliver() == "terminal"
        assert tools.gate.arrivals == 0
        assert cancelled == await client.get(task_id)


@covers("P52", "R6")
async def test_a_parked_task_is_cancelled_at_once_and_its_questions_are_closed(settings: Settings) -> None:
    """Ours: a cancel wakes nobody but ends the wait: no input is asked for any more and answers come too late."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("ask_first")
        await home.fleet.settle()
        [key] = (await client.state(task_id))["inputRequests"]
        await client.cancel(task_id)

        cancelled = await client.get(task_id)
        assert cancelled.result["status"] == "cancelled" and "inputRequests" not in cancelled.result
        await client.update(task_id, {key: ACCEPT})
        assert cancelled == await client.get(task_id) and home.fleet.messages == []
        assert [await home.fleet.deliver(recheck) for recheck in home.fleet.rechecks] == ["terminal"]


@covers("P52", "R6", "R5")
async def test_a_held_run_is_woken_by_a_cancel(settings: Settings) -> None:
    """Ours: the tool that waits for its answer on its worker is interrupted there, cleans up, and is cancelled."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("held")
        run = home.fleet.begin()
        await client.until(task_id, lambda state: state["status"] == "input_required")
        await client.cancel(task_id)

        assert await run == "cancelled" and tools.log == ["left"]
        state = await client.state(task_id)
        assert state["status"] == "cancelled" and "inputRequests" not in state


@covers("P50", "P52", "R5", "B04", "W5")
async def test_a_running_async_tool_is_interrupted_where_it_waits_and_may_clean_up(settings: Settings) -> None:
    """SEP-2663: the acknowledgement is not the end; the tool stops at its next await and the task is cancelled then."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("works")
        run = home.fleet.begin()
        await tools.gate.arrival()
        for _ in range(3):
            assert (await client.cancel(task_id)).result == {"resultType": "complete"}

        assert await run == "cancelled" and tools.log == ["cleaned up"]
        assert (await client.state(task_id))["status"] == "cancelled"


@covers("P51", "R5", "C03")
@pytest.mark.parametrize(
    ("how", "status", "payload"),
    [
        ("completes", "completed", "finished anyway"),
        ("protocol error", "failed", '"code": -32050, "message": "own reason", "data": {"n": 1}'),
        ("tool error", "completed", "Error executing tool reacts: own reason"),
        ("crashes", "completed", '"Error executing tool reacts"'),
    ],
)
async def test_each_way_out_after_a_cancel_is_recorded_as_what_it_was(
    settings: Settings, how: str, status: str, payload: str
) -> None:
    """SEP-2663: a cancelled tool may still complete, or fail for a reason of its own, which is not masked."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("reacts", {"how": how})
        run = home.fleet.begin()
        await tools.gate.arrival()
        await client.cancel(task_id)

        assert await run == status
        state = await client.state(task_id)
        assert state["status"] == status and payload in json.dumps(state)
        assert "secret" not in json.dumps(state)


@covers("P52", "P50", "P35", "R4", "A08")
@pytest.mark.parametrize(("how", "status"), [("raises", "cancelled"), ("returns", "completed")])
async def test_a_sync_tool_sees_the_cancel_at_its_next_check_and_decides(
    settings: Settings, raw: redis.Redis, how: str, status: str
) -> None:
    """Ours: a thread cannot be interrupted. The wish is stored with the acknowledgement and changes nothing yet."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("sync", {"how": how})
        run = home.fleet.begin()
        await stand(tools)
        before = await client.get(task_id)
        await client.cancel(task_id)
        assert raw.hget(f"{settings.prefix}task:{{{task_id}}}", "cancel") == "1"
        assert before == await client.get(task_id)

        await heard(home, task_id, tools)
        assert await run == status and tools.log == ["True"]
        assert (await client.state(task_id))["status"] == status


async def heard(home: House, task_id: str, tools: Tools) -> None:
    """The run has been told of the cancel, and only then the thread goes on."""

    async def told() -> bool:
        return home.fleet.told_to_stop(task_id)

    await eventually(told, description="the run knows of the cancel")
    tools.thread_gate.set()


@covers("P52", "A08")
async def test_a_cancel_whose_wake_was_lost_is_seen_by_the_next_renewal(settings: Settings, raw: redis.Redis) -> None:
    """Ours: the wake is only the quick way; the flag in the record outlives it, and the lease keeper reads it."""
    quick = settings.model_copy(update={"renew_ms": 50})
    tools = Tools()
    async with house(quick, tools) as (home, client):
        task_id = await client.start("works")
        run = home.fleet.begin()
        await tools.gate.arrival()
        raw.hset(f"{settings.prefix}task:{{{task_id}}}", "cancel", "1")

        assert await run == "cancelled"
        assert (await client.state(task_id))["status"] == "cancelled"


@covers("P52", "B04", "R5")
async def test_without_a_grace_the_tool_takes_its_time(settings: Settings) -> None:
    """SEP-2663: a cancel never forces the state by itself; a tool that does not look finishes, and is completed."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("sync", {"how": "returns"})
        run = home.fleet.begin()
        await stand(tools)
        await client.cancel(task_id)
        await heard(home, task_id, tools)

        assert await run == "completed"
        assert (await client.state(task_id))["status"] == "completed"


@covers("P52", "B04")
async def test_after_its_grace_a_task_is_cancelled_without_its_tool(settings: Settings, raw: redis.Redis) -> None:
    """Ours: `cancel_grace` settles the record while the tool still runs; what it returns later changes nothing."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("ignores_with_grace")
        run = home.fleet.begin()
        await tools.gate.arrival()
        await client.cancel(task_id)

        assert await run == "stuck: cancelled" and "ignored" in tools.log
        settled = await client.get(task_id)
        assert settled.result["status"] == "cancelled"
        assert raw.hget(f"{settings.prefix}task:{{{task_id}}}", "reason") == "cancel_timeout"
        tools.gate.opened.set()

        async def returned() -> bool:
            return "returned" in tools.log

        await eventually(returned, description="the tool is through")
        assert settled == await client.get(task_id)


@covers("P53")
@pytest.mark.parametrize("phase", ["queued", "running"])
async def test_the_cancelled_notification_does_not_cancel_a_task(settings: Settings, phase: str) -> None:
    """SEP-2663: `notifications/cancelled` is about requests; a task has its own method."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("works")
        run = home.fleet.begin() if phase == "running" else None
        if run is not None:
            await tools.gate.arrival()
        for params in ({"requestId": 1}, {"requestId": task_id}, {"taskId": task_id}):
            body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            assert (await client.post(json.dumps(body).encode(), "notifications/cancelled", {})).status == 202

        tools.gate.opened.set()
        assert await (run or home.fleet.begin()) == "completed"
        assert (await client.state(task_id))["status"] == "completed"


@covers("N5", "C06", "P51")
async def test_a_cancel_that_races_the_end_leaves_one_outcome_that_stays(settings: Settings) -> None:
    """Ours: whichever transition the store takes first is the task's end; the other one is told so."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        ends: list[Any] = []
        for _ in range(20):
            tools.gate.reached.clear()
            tools.gate.opened.clear()
            task_id = await client.start("works")
            run = home.fleet.begin()
            await tools.gate.arrival()
            tools.gate.opened.set()
            _, word = await asyncio.gather(client.cancel(task_id), run)
            state = await client.get(task_id)
            assert state.result["status"] == word
            assert (word == "completed") == ("result" in state.result)
            await client.cancel(task_id)
            assert state == await client.get(task_id)
            ends.append(word)
        assert set(ends) <= {"completed", "cancelled"}
