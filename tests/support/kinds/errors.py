"""How a tool can fail."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.shared.exceptions import MCPError, UrlElicitationRequiredError
from mcp_types import CallToolResult, ElicitRequestURLParams, TextContent

from tests.support.kinds.arguments import Point
from tests.support.kinds.shelf import Shelf

SHELF: Final = Shelf("Errors")


@SHELF.tool("an error result")
async def error_result() -> CallToolResult:
    content = TextContent(type="text", text="no such city")
    return CallToolResult(content=[content], structured_content={"code": "E17"}, is_error=True)


@SHELF.tool("a ToolError")
async def tool_error() -> str:
    raise ToolError("no such file")


@SHELF.tool("a ToolError of a sync tool")
def sync_tool_error() -> str:
    raise ToolError("no such file either")


@SHELF.tool("a crash, whose text the SDK hides")
async def crash() -> str:
    raise RuntimeError("postgres://user:secret@host is down")


@SHELF.tool("a crash of a sync tool")
def sync_crash() -> str:
    return str({}["missing"])


@SHELF.tool("a group of errors")
async def error_group() -> str:
    async with asyncio.TaskGroup() as group:
        group.create_task(crash())
        group.create_task(tool_error())
    return "never"


@SHELF.tool("a time-out of the tool's own")
async def timed_out() -> str:
    async with asyncio.timeout(0):
        await asyncio.Event().wait()
    return "never"


@SHELF.tool("too deep a recursion")
def recursion() -> str:
    return recursion()


@SHELF.tool("a failed assertion")
async def assertion() -> str:
    assert not "empty", "a reason"
    return "never"


@SHELF.tool("StopIteration out of a sync tool")
def stop_iteration() -> str:
    raise StopIteration("over")


@SHELF.tool("a protocol error with data")
async def protocol_error() -> str:
    raise MCPError(-32050, "out of paper", {"tray": 2})


@SHELF.tool("a protocol error of a sync tool")
def sync_protocol_error() -> str:
    raise MCPError(-32602, "no such book")


@SHELF.tool("a URL that the person must visit first (-32042)")
async def url_required() -> str:
    page = ElicitRequestURLParams(message="Log in", url="https://id.example/login", elicitation_id="e-1")
    raise UrlElicitationRequiredError([page])


@SHELF.tool("a result that breaks its promise")
async def broken_output() -> Point:
    return {"nope": 1}  # type: ignore[return-value]


@SHELF.tool("a resource that does not exist")
async def no_such_resource(ctx: Context[Any]) -> str:
    return str(await ctx.read_resource("res://missing"))


@SHELF.tool("an error of a resource")
async def resource_error() -> str:
    raise ResourceError("the shelf is empty")


@SHELF.tool("an error caught and told")
async def told_error() -> str:
    try:
        await crash()
    except RuntimeError as exc:
        return f"caught {type(exc).__name__}"
    return "never"


@SHELF.tool("a call of a tool that crashes", needs=("crash",))
async def nested_crash(ctx: Context[Any]) -> str:
    await ctx.mcp_server.call_tool("crash", {}, ctx)
    return "never"


SHELF.refuse("no_such_tool", "a tool that does not exist", {})
