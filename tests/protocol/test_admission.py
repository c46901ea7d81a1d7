"""Refused calls, and what operators do to the fleet as a whole (T1 to T5), as clients see it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from mcptasks import Operations, Tasks
from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.errors import StoreUnavailable
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.house import Gate, House, house
from tests.support.raw_client import RawClient
from tests.support.tools import Word
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

REASON: Final = "Upgrade until noon"
ACCEPT: Final = {"action": "accept", "content": {"word": "yes"}}


class Tools:
    """A quick tool, one that stands at a gate, one that asks, one that every client must have as a task."""

    def __init__(self) -> None:
        self.gate = Gate()

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        @mcp.tool()
        async def plain() -> str:
            return "plain"

        @mcp.tool()
        @tasks.durable()
        async def quick(n: int = 0) -> str:
            return f"done {n}"

        @mcp.tool()
        @tasks.durable(undeclared="inline")
        async def inline() -> str:
            return "inline"

        @mcp.tool()
        @tasks.durable(mode="required")
        async def required() -> str:
            return "done"

        @mcp.tool()
        @tasks.durable()
        async def asks(ctx: Context) -> str:
            answer = await ctx.elicit("Which word?", Word)
            return answer.action

        @mcp.tool()
        @tasks.durable()
        async def stands() -> str:
            await self.gate.wait()
            return "done"

        @mcp.tool()
        @tasks.durable()
        async def minds() -> str:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                raise ToolError("I was in the middle of it") from None
            return "done"


def stored(raw: redis.Redis, settings: Settings) -> set[str]:
    """Every key of the fleet."""
    return set(raw.scan_iter(f"{settings.prefix}*"))


async def refusal(client: RawClient, tool: str = "quick", **more: Any) -> dict[str, Any]:
    """The error that the call is answered with."""
    reply = await client.call(tool, **more)
    return reply.error


async def status(client: RawClient, task_id: str) -> tuple[str, str | None]:
    """What a client sees of the task."""
    state = await client.state(task_id)
    return state["status"], state.get("statusMessage")


# ------------------------------------------------------------------------------------------------ the door


@covers("T1", "T5")
@pytest.mark.parametrize("tool", ["quick", "required"])
async def test_behind_a_closed_door_a_call_is_refused_with_the_reason(
    settings: Settings, raw: redis.Redis, tool: str
) -> None:
    """T1: a clear error, on every server, before any record exists; opened again, the same call is a task."""
    async with house(settings, Tools()) as (home, client), Operations(settings) as fleet:
        other = await home.open()
        await fleet.close_admission(REASON)
        assert await fleet.admission() == REASON
        before = stored(raw, settings)
        for each in (client, other):
            error = await refusal(each, tool, meta={"mcptasks/idempotencyKey": "k"})
            assert error == {
                "code": -32603,
                "message": f"New tasks are not accepted now: {REASON}",
                "data": {"mcptasks/refused": "closed"},
            }
        assert (stored(raw, settings), home.fleet.messages) == (before, [])

        await fleet.open_admission()
        assert await fleet.admission() is None
        assert await client.start(tool, meta={"mcptasks/idempotencyKey": "k"})


@covers("T1")
async def test_what_is_no_new_task_goes_through_a_closed_door(settings: Settings) -> None:
    """T1: admitted tasks go on, live calls were never tasks, a bad call is a bad call, and a repeated one is known."""
    async with house(settings, Tools()) as (home, client), Operations(settings) as fleet:
        bad = await client.call("quick", {"n": "x"})
        waits = await client.start("asks")
        await home.fleet.settle()
        queued = await client.start("quick", {"n": 1}, meta={"mcptasks/idempotencyKey": "k"})
        await fleet.close_admission(REASON)

        assert (await client.call("plain")).result["content"][0]["text"] == "plain"
        assert (await client.undeclared().call("inline")).result["content"][0]["text"] == "inline"
        assert (await client.undeclared().call("quick")).error["code"] == -32603
        assert (await client.call("quick", {"n": "x"})).raw == bad.raw
        assert await client.start("quick", {"n": 1}, meta={"mcptasks/idempotencyKey": "k"}) == queued
        conflict = await refusal(client, arguments={"n": 2}, meta={"mcptasks/idempotencyKey": "k"})
        assert conflict["code"] == -32602
        await client.update(waits, dict.fromkeys((await client.state(waits))["inputRequests"], ACCEPT))
        await home.fleet.settle()
        assert [(await status(client, each))[0] for each in (waits, queued)] == ["completed"] * 2
        await fleet.open_admission()


# ------------------------------------------------------------------------------------------------ limits


@covers("T5")
async def test_one_callers_limit_is_nobody_elses(settings: Settings, raw: redis.Redis) -> None:
    """One caller must not take the fleet from all others; each end makes room, whichever it is."""
    limited = settings.model_copy(update={"owner_max": 2})
    async with house(limited, Tools(), auth=True, token="alice") as (home, alice):
        tasks = [await alice.start("asks"), await alice.start("quick")]
        before = stored(raw, settings)
        assert await refusal(alice) == {
            "code": -32603,
            "message": "You have 2 unfinished tasks, which is the limit; call again when one has ended",
            "data": {"mcptasks/refused": "owner"},
        }
        assert stored(raw, settings) == before
        assert await alice.with_(token="bob").start("quick")
        assert (await alice.call("plain")).result["content"][0]["text"] == "plain"

        await alice.cancel(tasks[0])
        await alice.start("quick")
        assert (await refusal(alice))["data"] == {"mcptasks/refused": "owner"}
        await home.fleet.settle()
        assert await alice.start("quick") and await alice.start("quick")


@covers("T5")
async def test_one_tools_limit_is_no_other_tools(settings: Settings) -> None:
    """A tool that does not come to an end must not take the workers from all others."""
    async with house(settings.model_copy(update={"tool_max": 1}), Tools()) as (home, client):
        waits = await client.start("asks")
        await home.fleet.settle()
        assert await refusal(client, "asks") == {
            "code": -32603,
            "message": "This tool has 1 unfinished tasks, which is the limit; call again later",
            "data": {"mcptasks/refused": "tool"},
        }
        await client.start("quick")
        await client.cancel(waits)
        assert await client.start("asks")


@covers("T5")
async def test_a_full_queue_is_refused_until_a_worker_takes_something_from_it(settings: Settings) -> None:
    """Better a clear refusal than a wait nobody can foresee. A repeated call is known, however full it is."""
    async with house(settings.model_copy(update={"queue_max": 1}), Tools()) as (home, client):
        first = await client.start("quick", meta={"mcptasks/idempotencyKey": "k"})
        assert await refusal(client) == {
            "code": -32603,
            "message": "1 tasks wait for a worker, which is the limit; call again later",
            "data": {"mcptasks/refused": "queue"},
        }
        assert await client.start("quick", meta={"mcptasks/idempotencyKey": "k"}) == first
        await home.fleet.settle()
        assert await client.start("quick")


# ------------------------------------------------------------------------------------------------ the operator


async def started(home: House, client: RawClient, tool: str, gate: Gate) -> tuple[str, asyncio.Task[str]]:
    """A task of that tool that stands at the gate, and its run."""
    task_id = await client.start(tool)
    [message] = home.fleet.messages
    home.fleet.messages.clear()
    run = home.fleet.begin(message)
    await gate.arrival()
    return task_id, run


@covers("T2", "T3")
async def test_cancelling_all_signals_every_unfinished_task_of_every_caller(settings: Settings) -> None:
    """T3: the count is of those that were signalled; the reason is what clients read; the door stays as it is."""
    tools = Tools()
    async with house(settings, tools, auth=True, token="alice") as (home, alice), Operations(settings) as fleet:
        bob = alice.with_(token="bob")
        done = await alice.start("quick")
        waits = await bob.start("asks")
        await home.fleet.settle()
        runs, run = await started(home, alice, "stands", tools.gate)
        queued = await bob.start("quick")
        assert await fleet.active() == sorted([waits, runs, queued])

        assert await fleet.cancel_all(REASON) == 3
        assert await run == "cancelled"
        assert await fleet.active() == []
        assert [await status(*each) for each in ((bob, waits), (alice, runs), (bob, queued))] == [
            ("cancelled", REASON)
        ] * 3
        assert (await status(alice, done))[0] == "completed"
        assert (await fleet.cancel_all(REASON), await fleet.admission()) == (0, None)
        assert await alice.start("quick")


@covers("T3")
async def test_what_waits_is_cancelled_before_what_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """T3: else the slot of a cancelled run begins a task that is to be cancelled next."""
    tools, order = Tools(), list[str]()
    cancel = TaskStore.cancel

    async def noted(store: TaskStore, task_id: str, *args: Any, **how: Any) -> str:
        order.append(task_id)
        return await cancel(store, task_id, *args, **how)

    monkeypatch.setattr(TaskStore, "cancel", noted)
    async with house(settings, tools) as (home, client), Operations(settings) as fleet:
        runs, run = await started(home, client, "stands", tools.gate)
        queued = [await client.start("quick") for _ in range(20)]
        assert await fleet.cancel_all(REASON) == 21
        assert order == [*sorted(queued), runs]
        assert await run == "cancelled"


@covers("T3", "P51")
async def test_a_tool_that_ends_in_its_own_way_says_it_better(settings: Settings) -> None:
    """T3: the reason is for the task that has nothing better to say; its own error is its result."""
    tools = Tools()
    async with house(settings, tools) as (home, client), Operations(settings) as fleet:
        task_id, run = await started(home, client, "minds", tools.gate)
        assert await fleet.cancel_all(REASON) == 1
        assert await run == "completed"
        state = await client.state(task_id)
        assert state["result"]["content"][0]["text"] == "Error executing tool minds: I was in the middle of it"
        assert state.get("statusMessage") is None


@covers("T3", "P50")
async def test_the_first_reason_stands(settings: Settings) -> None:
    """A task that its client cancelled is not cancelled by the operator."""
    tools = Tools()
    async with house(settings, tools) as (home, client), Operations(settings) as fleet:
        task_id, run = await started(home, client, "stands", tools.gate)
        await client.cancel(task_id)
        await fleet.cancel_all(REASON)
        await run
        assert await status(client, task_id) == ("cancelled", "Cancelled by the client")


@covers("T4", "T2")
async def test_drained_means_that_the_last_end_is_written(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: queued, running and waiting tasks are waited for, each until its end can be read."""
    tools, looks, active = Tools(), 0, TaskStore.active

    async def counted(store: TaskStore) -> list[str]:
        nonlocal looks
        found = await active(store)
        looks += 1
        return found

    async def looked() -> None:
        """The drain has asked the store twice from now on: it knows what there is to know."""
        wanted = looks + 2

        async def asked() -> bool:
            return looks >= wanted or drain.done()

        await eventually(asked, description="the drain has looked")
        assert not drain.done()

    async with house(settings, tools) as (home, client), Operations(settings) as fleet:
        await fleet.drained()
        waits = await client.start("asks")
        await home.fleet.settle()
        runs, run = await started(home, client, "stands", tools.gate)
        queued = await client.start("quick")

        async def drained() -> list[str]:
            await fleet.drained()
            return [(await status(client, each))[0] for each in (waits, runs, queued)]

        monkeypatch.setattr(TaskStore, "active", counted)
        drain = asyncio.create_task(drained())
        await looked()
        await home.fleet.settle()
        await looked()
        tools.gate.opened.set()
        await run
        await looked()
        await client.update(waits, dict.fromkeys((await client.state(waits))["inputRequests"], ACCEPT))
        await looked()
        await home.fleet.settle()
        assert await drain == ["completed"] * 3


@covers("T4")
async def test_an_operator_who_gives_up_waiting_changes_nothing(settings: Settings) -> None:
    """T4: there is no deadline of its own; the time-out is the caller's."""
    async with house(settings, Tools()) as (home, client), Operations(settings) as fleet:
        task_id = await client.start("quick")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fleet.drained(), 0.01)
        assert await fleet.active() == [task_id]
        await home.fleet.settle()
        await fleet.drained()


@covers("T1", "T4")
async def test_a_store_that_is_away_is_said_and_not_taken_for_an_empty_fleet(tmp_path: Path) -> None:
    """W10: a drain that cannot look has seen nothing."""
    with EmbeddedValkey(tmp_path) as valkey:
        gone = Settings(redis_url=valkey.url, store_timeout_ms=1_000)
    async with Operations(gone) as fleet:
        for ask in (fleet.drained, fleet.active, fleet.admission, fleet.open_admission):
            with pytest.raises(StoreUnavailable, match="does not answer"):
                await ask()
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await fleet.cancel_all(REASON)
