"""Branches of a durable tool: side by side, and each bound to its own record."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from mcptasks import gather, step
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.durable import Till, answer_all, one, text, through
from tests.support.house import Gate, house
from tests.support.tools import Word

pytestmark = pytest.mark.anyio


@covers("E03", "R3")
async def test_branches_that_do_the_same_get_their_own_answers_and_records_whoever_is_faster(
    settings: Settings,
) -> None:
    """E03: gathered steps recorded in another order than they come in must not be swapped, nor loop."""
    till, runs = Till(), list[int]()

    async def tool(ctx: Context) -> str:
        runs.append(1)

        async def branch(name: str) -> str:
            # Another branch is the faster one in each run.
            for _ in range(5 * ((ord(name) + len(runs)) % 3)):
                await asyncio.sleep(0)
            charged = await step("charge", till.charge, name)
            answer = await ctx.elicit("Which word?", Word)
            assert answer.action == "accept"
            booked = await step("book", till.charge, f"{name}{answer.data.word}")
            return f"{charged}-{booked}"

        return " ".join(await gather(*(branch(name) for name in "abc")))

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        await home.fleet.settle()
        asked = list((await client.state(task_id))["inputRequests"])
        assert len(asked) == 3
        by_branch = {key.split("-")[2]: key for key in asked}
        for branch in ("g1.2", "g1.0", "g1.1"):
            word = {"action": "accept", "content": {"word": branch[-1]}}
            await client.update(task_id, {by_branch[branch]: word})
        assert text(await through(home, client, task_id)) == "a-a0 b-b1 c-c2"
    assert sorted(till.done) == ["a", "a0", "b", "b1", "c", "c2"]
    assert len(runs) == 2


@pytest.mark.parametrize("slow", ["a", "b"])
async def test_the_first_error_by_the_order_of_the_branches_is_raised_when_all_have_ended(
    settings: Settings, slow: str
) -> None:
    """Which it is does not depend on who was faster, and no step is cut off because its sibling failed."""
    till = Till()

    async def tool() -> str:
        async def fail(name: str) -> None:
            for _ in range(50 * (name == slow)):
                await asyncio.sleep(0)
            raise ToolError(f"{name} failed")

        async def late() -> str:
            await asyncio.sleep(0.01)
            return await step("late", till.charge)

        await gather(late(), fail("a"), fail("b"))
        return "done"

    async with house(settings, one(tool)) as (home, client):
        state = await through(home, client, await client.start("tool"))
    assert state["result"]["isError"]
    assert text(state).endswith("a failed")
    assert till.done == ["charge"]


async def test_gathers_stand_in_gathers_and_may_be_empty(settings: Settings) -> None:
    """Every branch has a name of its own."""
    till = Till()

    async def tool(ctx: Context) -> str:
        async def leaf(name: str) -> str:
            return await step("charge", till.charge, name)

        async def twig(name: str) -> str:
            return "".join(await gather(leaf(f"{name}1"), leaf(f"{name}2")))

        assert await gather() == ()
        words = await gather(twig("a"), twig("b"), leaf("c"))
        words += await gather(leaf("d"))
        answer = await ctx.elicit("Sure?", Word)
        return " ".join([*words, answer.action])

    async with house(settings, one(tool)) as (home, client):
        assert text(await through(home, client, await client.start("tool"))) == "a1a2 b1b2 c d accept"
    assert sorted(till.done) == ["a1", "a2", "b1", "b2", "c", "d"]


@covers("B04", "P51")
async def test_a_cancel_reaches_every_branch_and_waits_for_their_clean_up(settings: Settings) -> None:
    """P51: none of them goes on beside the end of its task."""
    gate, cleaned = Gate(), list[str]()

    async def tool() -> str:
        async def branch(name: str) -> None:
            try:
                await gate.wait()
            finally:
                await asyncio.sleep(0.01)
                cleaned.append(name)

        await gather(branch("a"), branch("b"))
        return "done"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        run = home.fleet.begin()
        await gate.arrival()
        await client.cancel(task_id)
        assert await run == "cancelled"
        assert sorted(cleaned) == ["a", "b"]


@covers("E03")
async def test_a_branch_that_does_something_else_fails_its_task_while_the_others_work(settings: Settings) -> None:
    """E03: at once, and the error says what it was and what it is."""
    till, gate, runs = Till(), Gate(), list[int]()

    async def tool(ctx: Context) -> str:
        runs.append(1)

        async def fickle() -> None:
            await step(f"charge {len(runs)}", till.charge)
            await ctx.elicit("Sure?", Word)

        async def busy() -> None:
            if len(runs) == 2:
                await gate.wait()

        await gather(busy(), fickle())
        return "done"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        await home.fleet.settle()
        await answer_all(client, task_id)
        state = await through(home, client, task_id)
    assert state["status"] == "failed"
    assert "came to step 'charge 2' where an earlier run of it had step 'charge 1'" in state["error"]["message"]
    assert till.done == ["charge"]


@pytest.mark.parametrize("exits", [SystemExit, KeyboardInterrupt])
async def test_a_branch_that_exits_ends_its_tool_and_not_the_worker(settings: Settings, exits: Any) -> None:
    """On an event loop it would end every other run, too."""

    async def tool() -> str:
        async def leave() -> None:
            raise exits

        await gather(leave(), asyncio.sleep(0))
        return "done"

    async with house(settings, one(tool)) as (home, client):
        state = await through(home, client, await client.start("tool"))
    assert state["status"] == "failed"
    assert exits.__name__ in state["error"]["message"]


async def test_outside_a_task_branches_just_run() -> None:
    """The same tool, called live or from a unit test."""

    async def say(word: str) -> str:
        await asyncio.sleep(0)
        return word

    assert await gather(say("a"), say("b")) == ("a", "b")
    started = asyncio.Event()

    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    group = asyncio.ensure_future(gather(wait(), wait()))
    await started.wait()
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    never = asyncio.ensure_future(gather(wait()))
    await asyncio.sleep(0)
    never.cancel()
    with pytest.raises(asyncio.CancelledError):
        await never
