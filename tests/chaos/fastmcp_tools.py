# pyright: basic, reportMissingImports=false
# It runs in `.venv-fastmcp`, which pyright does not look into, and shares no code with this project.
"""FastMCP's tasks with the tool of `tests.chaos.remote_tools`; `CHAOS_EFFECTS` names the file that it writes to.

Run as a script it serves streamable HTTP on the port in its first argument.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from fastmcp import Context, FastMCP
from fastmcp_tasks import TasksExtension

EFFECTS = Path(os.environ["CHAOS_EFFECTS"])

mcp = FastMCP("tracked")
mcp.add_extension(TasksExtension())


@mcp.tool(task=True)
async def work(label: str, seconds: float, ctx: Context) -> str:
    """Takes that long. One line says for which task; a killed worker's successor writes another for the same one."""
    with EFFECTS.open("ab", buffering=0) as file:  # noqa: ASYNC230 - a line into a local file
        file.write((json.dumps([label, ctx.task_id]) + "\n").encode())
    await asyncio.sleep(seconds)
    return f"{label}: done"


if __name__ == "__main__":
    mcp.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
