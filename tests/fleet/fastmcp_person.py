# pyright: basic, reportMissingImports=false
# It runs in `.venv-fastmcp`, which pyright does not look into, and shares no code with this project.
"""FastMCP's own client: `fastmcp_person.py URL KIND CALLS` prints what each call came to, as JSON.

CALLS: a list of [tool, arguments]. KIND: "tasks" knows the tasks extension (once its package is imported, every client
does), "plain" does not, "legacy" speaks 2025-11-25. A call "cancel" starts its tool as a task and cancels that.
"""

import asyncio
import json
import sys

from fastmcp import Client


async def answer(message, response_type, params, context):
    """Each question is answered with itself."""
    return response_type(value=message)


async def laugh(messages, params, context):
    """A model."""
    return "ha"


async def cancelled(client, tool, arguments):
    """The status of a task that was started and cancelled."""
    from fastmcp_tasks.client import call_tool_task  # noqa: PLC0415 - its import alone changes every client

    task = await call_tool_task(client, tool, arguments)
    while (await task.status()).status == "working":
        await task.cancel()
    return (await task.status()).status


async def main(url, kind, calls):
    options = {"elicitation_handler": answer, "sampling_handler": laugh, "roots": ["file:///home"]}
    async with Client(url, mode="legacy" if kind == "legacy" else "auto", **options) as client:
        offered = {tool.name for tool in await client.list_tools()}
        came_to = []
        for tool, arguments in calls:
            if tool == "cancel":
                came_to.append(await cancelled(client, *arguments))
            elif tool in offered:
                came_to.append((await client.call_tool(tool, arguments)).structured_content["result"])
    print(json.dumps(came_to))


if __name__ == "__main__":
    if sys.argv[2] == "tasks":
        import fastmcp_tasks.client  # noqa: F401
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
