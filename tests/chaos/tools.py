"""The MCP server that chaos is done to. `CHAOS_LEDGER` names the ledger its tools write to.

Every tool returns its key and the number of the run that returned: what is committed says who committed it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from mcp.server.mcpserver import AcceptedElicitation, Context, MCPServer
from pydantic import BaseModel

import mcptasks
from mcptasks import Retry, Tasks
from mcptasks.runtime.current import current_run
from tests.chaos.ledger import note, noted
from tests.chaos.plan import EXHAUSTED_AFTER, FEW, MANY, RETRIES

LEDGER: Final = Path(os.environ["CHAOS_LEDGER"])

tasks = Tasks()
mcp = MCPServer("chaos", extensions=[tasks])


class Answer(BaseModel):
    """What is asked for."""

    value: str


@contextmanager
def effect(key: str) -> Generator[int]:
    """The ledger says when the run began and how it ended; yields the run's number."""
    current = current_run.get()
    assert current is not None, "chaos tools run as tasks"
    run = current.claim.token
    note(LEDGER, key, run, "begin")
    try:
        yield run
    except BaseException as exc:
        note(LEDGER, key, run, "stopped", by=type(exc).__name__)
        raise
    note(LEDGER, key, run, "end")


@mcp.tool()
@tasks.durable(max_attempts=MANY)
async def quick(key: str) -> dict[str, Any]:
    """Done at once."""
    with effect(key) as run:
        await asyncio.sleep(0.02)
        return {"key": key, "run": run}


@mcp.tool()
@tasks.durable(max_attempts=MANY)
def quick_sync(key: str) -> dict[str, Any]:
    """Done at once, in a thread."""
    with effect(key) as run:
        time.sleep(0.02)
        return {"key": key, "run": run}


@mcp.tool()
@tasks.durable(max_attempts=MANY, time_limit="90s")
async def long(key: str, seconds: float, ctx: Context) -> dict[str, Any]:
    """Works for some seconds and tells its progress."""
    with effect(key) as run:
        slices = max(1, round(seconds / 0.2))
        for done in range(slices):
            await asyncio.sleep(0.2)
            await ctx.report_progress(done + 1, slices)
        return {"key": key, "run": run}


@mcp.tool()
@tasks.durable(max_attempts=MANY)
def long_sync(key: str, seconds: float) -> dict[str, Any]:
    """Works for some seconds in a thread, and looks whether it is to stop."""
    with effect(key) as run:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            mcptasks.raise_if_cancelled()
            time.sleep(0.05)
        return {"key": key, "run": run}


async def _ask(key: str, questions: int, ctx: Context) -> dict[str, Any]:
    async def charge() -> int:
        note(LEDGER, key, run, "charged")
        return run

    with effect(key) as run:
        charged_by = await mcptasks.step("charge", charge)
        answers: list[str] = []
        for number in range(questions):
            answer = await ctx.elicit(f"{key} {number}?", Answer)
            answers.append(answer.data.value if isinstance(answer, AcceptedElicitation) else answer.action)
        await asyncio.sleep(0.1)
        return {"key": key, "run": run, "answers": answers, "charged_by": charged_by}


@mcp.tool()
@tasks.durable(max_attempts=MANY)
async def asks(key: str, questions: int, ctx: Context) -> dict[str, Any]:
    """Charges once, asks, and gives its worker back while it waits."""
    return await _ask(key, questions, ctx)


@mcp.tool()
@tasks.durable(max_attempts=MANY, hold="1500ms")
async def asks_held(key: str, questions: int, ctx: Context) -> dict[str, Any]:
    """Charges once, asks, and keeps its worker for a while."""
    return await _ask(key, questions, ctx)


@mcp.tool()
@tasks.durable(max_attempts=MANY, retry=RETRIES)
async def retries(key: str, times: int) -> dict[str, Any]:
    """Asks to be run again that many times, by the ledger's count."""
    with effect(key) as run:
        await asyncio.sleep(0.05)
        if noted(LEDGER, key, "retry") < times:
            note(LEDGER, key, run, "retry")
            raise Retry("not yet")
        return {"key": key, "run": run}


@mcp.tool()
@tasks.durable(max_attempts=MANY, retry=EXHAUSTED_AFTER)
async def gives_up(key: str) -> dict[str, Any]:
    """Never succeeds."""
    with effect(key) as run:
        note(LEDGER, key, run, "retry")
        raise Retry("never")


@mcp.tool()
@tasks.durable(max_attempts=FEW)
async def fragile(key: str, seconds: float) -> dict[str, Any]:
    """May lose its worker once."""
    with effect(key) as run:
        await asyncio.sleep(seconds)
        return {"key": key, "run": run}


celery = tasks.bind(mcp)
