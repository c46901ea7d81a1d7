# pyright: basic, reportMissingImports=false
# It runs in `.venv-fastmcp`, which pyright does not look into.
"""FastMCP's own client: `fastmcp_client.py PORT COUNT` prints how long each task took to its result, ms, as JSON."""

import asyncio
import json
import sys
import time

from fastmcp import Client
from fastmcp_tasks.client import call_tool_task


async def main(port: int, count: int) -> None:
    took = []
    async with Client(f"http://127.0.0.1:{port}/mcp") as client:
        await client.call_tool("plain_add", {"a": 0, "b": 0})
        for number in range(count):
            started = time.perf_counter()
            result = await (await call_tool_task(client, "add", {"a": number, "b": 0}))
            took.append((time.perf_counter() - started) * 1000)
            if result.data != number:
                sys.exit(f"expected {number}, got {result}")
    print(json.dumps(took))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
