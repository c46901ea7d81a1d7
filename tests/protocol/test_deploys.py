"""A deploy comes between a task's call and its run (E08): what the new code cannot take up, and what clients see."""

from __future__ import annotations

from typing import Any, Final

import pytest
import redis
from mcp.server.mcpserver import Context, MCPServer

from mcptasks import Tasks
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import House, house
from tests.support.raw_client import RawClient
from tests.support.tools import Word

pytestmark = pytest.mark.anyio

ACCEPT: Final = {"action": "accept", "content": {"word": "yes"}}


class Tools:
    """`ask` in the version before the deploy, and `other`, which every version has."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        self.tasks = tasks

        @mcp.tool()
        @tasks.durable()
        async def ask(topic: str, ctx: Context) -> str:
            return await self.asked(ctx, "Which word?", topic=topic)

        @mcp.tool()
        @tasks.durable()
        async def other() -> str:
            return "other"

    async def asked(self, ctx: Context, text: str, **arguments: Any) -> str:
        """What every version of `ask` does."""
        self.calls.append(arguments)
        answer = await ctx.elicit(text, Word)
        assert answer.action == "accept"
        return f"{answer.data.word} about {arguments['topic']}"

    def with_text(self, mcp: MCPServer, text: str) -> None:
        """The deploy: `ask`, which was removed, asks this."""

        @mcp.tool()
        @self.tasks.durable()
        async def ask(topic: str, ctx: Context) -> str:
            return await self.asked(ctx, text, topic=topic)

    def with_more(self, mcp: MCPServer) -> None:
        """The deploy: `ask`, which was removed, wants one more argument."""

        @mcp.tool()
        @self.tasks.durable()
        async def ask(topic: str, depth: int, ctx: Context) -> str:
            return await self.asked(ctx, "Which word?", topic=topic, depth=depth)


async def parked(home: House, client: RawClient) -> str:
    """A task of the old version that waits for a person."""
    task_id = await client.start("ask", {"topic": "tea"})
    assert await home.fleet.deliver() == "parked"
    home.fleet.rechecks.clear()
    return task_id


async def answer(client: RawClient, task_id: str) -> None:
    """The person has answered."""
    [key] = (await client.state(task_id))["inputRequests"]
    await client.update(task_id, {key: ACCEPT})


async def offered_again(home: House, raw: redis.Redis, task_id: str) -> str:
    """Its time has come, and the sweeper has sent it; the word of the run."""
    prefix = home.settings.prefix
    raw.hset(f"{prefix}task:{{{task_id}}}", "due", "1")
    raw.zadd(f"{prefix}unsent", {task_id: 1})
    await home.fleet.sweep()
    return await home.fleet.deliver()


@covers("E08")
async def test_a_worker_without_the_tool_leaves_it_to_one_that_has_it(settings: Settings, raw: redis.Redis) -> None:
    """E08, mixed fleet: it waits with growing delays, other tasks go on, and it resumes where it is at home."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await parked(home, client)
        home.mcp.remove_tool("ask")
        await answer(client, task_id)
        assert await home.fleet.deliver() == "deferred"
        state = await client.state(task_id)
        assert (state["status"], state["statusMessage"]) == ("working", "Waits for a worker that has the tool 'ask'")
        assert home.fleet.messages == []
        task = await client.start("other")
        assert await home.fleet.deliver() == "completed"
        assert (await client.state(task))["status"] == "completed"
        assert await offered_again(home, raw, task_id) == "deferred"
        tools.with_text(home.mcp, "Which word?")
        assert await offered_again(home, raw, task_id) == "completed"
        assert (await client.state(task_id))["result"]["content"][0]["text"] == "yes about tea"


@covers("E08", "P31")
async def test_a_task_whose_tool_is_gone_fails_with_its_name(settings: Settings, raw: redis.Redis) -> None:
    """E08 (a): bounded attempts, never a hang."""
    settings = settings.model_copy(update={"deferrals_ms": (1_000, 1_000)})
    async with house(settings, Tools()) as (home, client):
        task_id = await parked(home, client)
        home.mcp.remove_tool("ask")
        await answer(client, task_id)
        assert await home.fleet.deliver() == "deferred"
        assert await offered_again(home, raw, task_id) == "deferred"
        assert await offered_again(home, raw, task_id) == "failed"
        state = await client.state(task_id)
        assert state["status"] == "failed"
        assert "no worker has its tool 'ask' any more" in state["error"]["message"]


@covers("E08")
async def test_arguments_that_do_not_fit_any_more_are_never_guessed(settings: Settings) -> None:
    """E08 (b): a new required argument: the task fails and says which, and the tool is not called."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await parked(home, client)
        home.mcp.remove_tool("ask")
        tools.with_more(home.mcp)
        await answer(client, task_id)
        assert await home.fleet.deliver() == "failed"
        error = (await client.state(task_id))["error"]
        assert "takes other arguments now" in error["message"]
        assert "depth: Field required" in error["message"]
        assert tools.calls == [{"topic": "tea"}]


@covers("E08", "E03")
async def test_an_answer_is_never_given_to_another_question(settings: Settings) -> None:
    """E08 (c): the question has changed; the task fails and names both."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await parked(home, client)
        home.mcp.remove_tool("ask")
        tools.with_text(home.mcp, "Which colour?")
        await answer(client, task_id)
        assert await home.fleet.deliver() == "failed"
        message = (await client.state(task_id))["error"]["message"]
        assert "Which word?" in message
        assert "Which colour?" in message
