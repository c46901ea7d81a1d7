"""The tools of `tests/fleet/tools.py` and those that recovery is tried with: they retry, die, and refuse to stop."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final

from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError

import mcptasks
from mcptasks import Retry
from tests.fleet.tools import ask, celery, gate, mcp, note, noted, tasks, there

__all__ = ["celery", "mcp"]

#: What `os._exit` ends a process with here; no interpreter does so by itself. `recovery_system` has it too.
EXIT_CODE: Final = 17

#: What `retry_soon` fails with in the end.
FAR_END_DOWN: Final = MCPError(-32050, "the far end is down", {"tried": "three times"})


# ------------------------------------------------------------------------------------------------ shutdown


@mcp.tool()
@tasks.durable()
async def nap(key: str, seconds: float) -> str:
    """Waits, and says whether it was let."""
    note(key, "begin")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note(key, "stopped")
        raise
    note(key, "end")
    return f"rested {key}"


@mcp.tool()
@tasks.durable()
async def stoppable_gate(key: str, path: str) -> str:
    """As `gate`, and says when it was stopped."""
    try:
        return await gate(key, path)
    except asyncio.CancelledError:
        note(key, "stopped")
        raise


@mcp.tool()
@tasks.durable()
def sync_gate(key: str, path: str) -> str:
    """A sync tool that looks at `cancelled()` between two pieces of work."""
    note(key, "begin")
    while not there(path):
        if mcptasks.cancelled():
            note(key, "stopped")
        mcptasks.raise_if_cancelled()
        time.sleep(0.02)
    note(key, "end")
    return f"passed {key}"


@mcp.tool()
@tasks.durable()
def deaf_gate(key: str, path: str) -> str:
    """A sync tool that looks at nothing but its file."""
    note(key, "begin")
    while not there(path):
        time.sleep(0.02)
    note(key, "end")
    return f"passed {key}"


@mcp.tool()
@tasks.durable()
async def gate_then_ask(key: str, path: str, ctx: Context) -> str:
    """Works until the file is there, then asks."""
    note(key, "begin")
    while not there(path):  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.02)
    note(key, "asks")
    return await ask(ctx, f"{key}?")


# ------------------------------------------------------------------------------------------------ durable code


@mcp.tool()
@tasks.durable(max_attempts=5)
async def odyssey(key: str, nap: str, stand: str, go: str, ctx: Context) -> str:
    """Three questions in line, two steps, two questions side by side, and a sleep beside them; notes every effect.

    At the place it is told it stands still, once, until the file is there.
    """
    note(key, "run")

    def come(place: str) -> None:
        if place == stand and not noted(key, "stands"):
            note(key, "stands")
            while not there(go):
                # With its event loop, so that nothing goes on beside it either.
                time.sleep(0.002)

    def effect(name: str) -> str:
        come(f"in {name}")
        token = mcptasks.idempotency_key(name)
        note(key, name, token=token)
        come(f"{name} done")
        return f"{name} {token}"

    async def ask_here(question: str, place: str) -> str:
        come(place)
        return await ask(ctx, question)

    words = [await ask_here("first?", "before first?"), await mcptasks.step("reserve", effect, "reserve")]
    words.append(await ask_here("second?", "before second?"))
    come("before the gather")
    left, right, _ = await mcptasks.gather(ask(ctx, "left?"), ask_here("right?", "in the gather"), mcptasks.sleep(nap))
    come("after the gather")
    words += [left, right, await mcptasks.step("charge", effect, "charge"), await ask_here("third?", "before third?")]
    note(key, "end")
    come("at the end")
    return ", ".join(words)


# ------------------------------------------------------------------------------------------------ retries


@mcp.tool()
@tasks.durable(retry=["300ms", "600ms", "900ms"])
async def retry_soon(key: str, failures: int) -> str:
    """Fails that often, each time asking for the next of three short delays, then works."""
    note(key, "run")
    if noted(key, "run") <= failures:
        note(key, "asked")
        raise Retry("the far end does not answer", error=FAR_END_DOWN)
    return f"ran {key}"


@mcp.tool()
@tasks.durable(retry=["3s"])
async def retry_later(key: str) -> str:
    """Fails once and works after three seconds."""
    note(key, "run")
    if noted(key, "run") == 1:
        note(key, "asked")
        raise Retry("come back later")
    return f"ran {key}"


@mcp.tool()
@tasks.durable(retry=["100ms"])
def retry_without_an_error(key: str) -> str:
    """A sync tool that fails for ever and gives no error to fail with."""
    note(key, "run")
    raise Retry("it never works")


@mcp.tool()
@tasks.durable(retry=["200ms", "200ms"])
async def retry_then_die_then_retry(key: str) -> str:
    """Asks for a retry, dies, asks again, works."""
    note(key, "run")
    match noted(key, "run"):
        case 1 | 3:
            raise Retry("again")
        case 2:
            os._exit(EXIT_CODE)
        case _:
            return f"ran {key}"


# ------------------------------------------------------------------------------------------------ death


@mcp.tool()
@tasks.durable()
async def exits(key: str) -> str:
    """Ends its process every time, so that nothing in it can clean up."""
    note(key, "run")
    os._exit(EXIT_CODE)


@mcp.tool()
@tasks.durable(on_worker_lost="fail")
async def exits_and_must_not_begin_twice(key: str) -> str:
    """As `exits`, for work that may not be repeated."""
    note(key, "run")
    os._exit(EXIT_CODE)


@mcp.tool()
@tasks.durable(max_attempts=2)
async def exits_first(key: str, path: str) -> str:
    """Ends its process at the first run; the second is the last one allowed, and a gate."""
    note(key, "run")
    if noted(key, "run") == 1:
        os._exit(EXIT_CODE)
    return await stoppable_gate(key, path)


@mcp.tool()
@tasks.durable(max_attempts=2)
def exits_first_then_deaf(key: str, path: str) -> str:
    """As `exits_first`, but the second run is sync and looks at nothing but its file."""
    note(key, "run")
    if noted(key, "run") == 1:
        os._exit(EXIT_CODE)
    return deaf_gate(key, path)
