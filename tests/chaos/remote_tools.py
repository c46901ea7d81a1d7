"""A task server that is tracked while chaos is done to it. `CHAOS_EFFECTS` names the file that its tool writes to."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Final

from mcp.server.mcpserver import MCPServer

import mcptasks
from mcptasks import Tasks
from tests.chaos.plan import MANY

EFFECTS: Final = Path(os.environ["CHAOS_EFFECTS"])

tasks = Tasks()
mcp = MCPServer("tracked", extensions=[tasks])


@mcp.tool()
@tasks.durable(max_attempts=MANY)
async def work(label: str, seconds: float) -> str:
    """Takes that long. One line says for which task; a killed worker's successor writes another for the same one."""
    line = json.dumps([label, mcptasks.idempotency_key("work")]) + "\n"
    with EFFECTS.open("ab", buffering=0) as file:  # noqa: ASYNC230 - a line into a local file
        file.write(line.encode())
    await asyncio.sleep(seconds)
    return f"{label}: done"


celery = tasks.bind(mcp)
