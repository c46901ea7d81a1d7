# pyright: basic, reportMissingImports=false
# It runs in `.venv-fastmcp`, which pyright does not look into, and shares no code with this project.
"""As `remote_tools.py`, of FastMCP: `fastmcp_tools.py PORT` serves it, its worker is `fastmcp_tasks.worker_cli`."""

import asyncio
import json
import os
import sys

from fastmcp import Context, FastMCP
from fastmcp_tasks import TasksExtension

mcp = FastMCP("tracked")
mcp.add_extension(TasksExtension())


@mcp.tool(task=True)
async def work(label: str, seconds: float, ctx: Context) -> str:
    line = json.dumps([label, ctx.task_id]) + "\n"
    with open(os.environ["CHAOS_EFFECTS"], "ab", buffering=0) as file:  # noqa: ASYNC230
        file.write(line.encode())
    await asyncio.sleep(seconds)
    return f"{label}: done"


if __name__ == "__main__":
    mcp.run(
        transport="http",
        host="127.0.0.1",
        port=int(sys.argv[1]),
        show_banner=False,
        uvicorn_config={"access_log": False},
    )
