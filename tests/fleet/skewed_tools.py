"""A server whose processes live by the clock that `FLEET_CLOCK` says: ISO 8601, or seconds ahead of everybody's.

Only the process's own idea of the time is moved, as on a machine whose clock is wrong; waiting takes as long as ever.
"""

from __future__ import annotations

import asyncio
import os
import time
from datetime import datetime
from typing import Annotated, Any

import time_machine
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from pydantic import BaseModel

import mcptasks
from mcptasks import Tasks

if told := os.environ.get("FLEET_CLOCK"):
    # As a number: a datetime would bring its time zone along.
    began = datetime.fromisoformat(told).timestamp() if "T" in told else time.time() + float(told)
    time_machine.travel(began, tick=True).start()

tasks = Tasks()
mcp = MCPServer("skewed", extensions=[tasks])


class Value(BaseModel):
    """What the question asks for."""

    value: str


def ask() -> Elicit[Value]:
    """Parks the task."""
    return Elicit("Go on?", Value)


@mcp.tool()
@tasks.durable(ttl="60s")
async def busy(answer: Annotated[Value, Resolve(ask)], ctx: Context[Any]) -> str:
    """Reports, sleeps, and says what time it is here."""
    await ctx.report_progress(1, 3, "One")
    await mcptasks.sleep("1.5s")
    await ctx.report_progress(2, 3, f"Two, {answer.value}")
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


@mcp.tool()
@tasks.durable(ttl="3s")
async def outlive() -> str:
    """Runs for longer than its task is kept."""
    await asyncio.sleep(600)
    return "never"


celery = tasks.bind(mcp)
