"""This project's own client: `our_client.py PORT COUNT` prints how long each call of a task took, ms, as JSON."""

import asyncio
import json
import sys
import time

from mcp.client import Client

from mcptasks.client import TasksClient


async def main(port: int, count: int) -> None:
    """The durations stand on stdout."""
    took: list[float] = []
    async with Client(f"http://127.0.0.1:{port}/mcp", extensions=[TasksClient()]) as client:
        await client.call_tool("plain_add", {"a": 0, "b": 0})
        for number in range(count):
            started = time.perf_counter()
            result = await client.call_tool("add", {"a": number, "b": 0})
            took.append((time.perf_counter() - started) * 1000)
            if result.structured_content != {"result": number}:
                sys.exit(f"expected {number}, got {result}")
    print(json.dumps(took))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
