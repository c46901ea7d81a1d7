"""This project with the benchmark's tools, for `mcptasks serve` and `mcptasks worker`: `benchmarks.ours:mcp`."""

from __future__ import annotations

import asyncio

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

from benchmarks.long_job import note_start, released
from mcptasks import Tasks

tasks = Tasks()
mcp = MCPServer("bench", extensions=[tasks])


class Answer(BaseModel):
    """What `ask` wants to know."""

    value: str


@mcp.tool()
@tasks.durable()
async def add(a: int, b: int) -> int:
    """The tiny tool: what is measured is everything around it."""
    return a + b


@mcp.tool()
async def plain_add(a: int, b: int) -> int:
    """The same tool, not durable: the floor."""
    return a + b


@mcp.tool()
@tasks.durable()
async def ask(ctx: Context) -> str:
    """Asks its caller one question."""
    answer = await ctx.elicit("Which?", Answer)
    return answer.data.value if answer.action == "accept" else "nothing"


@mcp.tool()
@tasks.durable(hold="1m")
async def ask_held(ctx: Context) -> str:
    """The same, and keeps its worker for the answer."""
    return await ask(ctx)


@mcp.tool()
@tasks.durable()
async def nap(seconds: float) -> float:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return seconds


@mcp.tool()
@tasks.durable()
async def long_job(folder: str) -> str:
    """Notes its start and works until it is released; its worker is killed meanwhile."""
    note_start(folder)
    while not released(folder):  # noqa: ASYNC110 - another process releases it
        await asyncio.sleep(0.05)
    return "done"


celery = tasks.bind(mcp)
