"""What stands around a tool: other extensions of the server, and middleware."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from mcp.server.apps import Apps, client_supports_apps
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Context, Extension, require_client_extension
from mcp_types import CallToolRequestParams, CallToolResult

from mcptasks import Tasks
from tests.support.kinds.shelf import Differs, Shelf

SHELF: Final = Shelf("Around the tool")

Ctx = ServerRequestContext[Any, Any]


class Stamps(Extension):
    """Wraps the calls of one tool, and lets nobody call another."""

    identifier = "com.example/stamps"

    async def intercept_tool_call(self, params: CallToolRequestParams, ctx: Ctx, call_next: CallNext) -> HandlerResult:
        """The result has a stamp with what the client sent as metadata."""
        if params.name == "for_members":
            require_client_extension(ctx, "com.example/membership")
        result = await call_next(ctx)
        if params.name != "stamped" or not isinstance(result, CallToolResult):
            return result
        stamp = {"com.example/stamp": sorted(params.meta or {})}
        return result.model_copy(update={"meta": {**(result.meta or {}), **stamp}})


@SHELF.tool("another extension changes the result")
async def stamped() -> str:
    return "stamped"


@SHELF.tool("another extension refuses the call")
async def for_members() -> str:
    return "for members"


@SHELF.tool("middleware changes the arguments", {"word": "in"})
async def told_by_middleware(word: str) -> str:
    return word


@SHELF.tool(
    "middleware changes the result",
    differs=Differs(
        live='"text":"BEHIND"',
        task='"text":"behind"',
        waiting_is_live=True,
        why="Middleware wraps requests: the call that makes the task, and each `tasks/get`. What is to wrap the run "
        "itself is an extension's `intercept_tool_call`.",
    ),
)
async def behind() -> str:
    return "behind"


async def middleware(ctx: Ctx, call_next: Callable[[Ctx], Awaitable[HandlerResult]]) -> HandlerResult:
    """Meddles with the two tools above."""
    params = dict(ctx.params or {})
    tool = params.get("name") if ctx.method == "tools/call" else None
    if tool == "told_by_middleware":
        return await call_next(replace(ctx, params={**params, "arguments": {"word": "out"}}))
    result = await call_next(ctx)
    if tool != "behind" or not isinstance(result, dict) or "content" not in result:
        return result
    return {**result, "content": [{"type": "text", "text": "BEHIND"}]}


SHELF.call("with_a_page", "a page of MCP Apps", {})


def extensions(tasks: Tasks) -> list[Extension]:
    """The server's other extensions. They are given to it when it is made, with the tools they bring."""
    apps = Apps()

    @apps.tool(resource_uri="ui://clock/app.html")
    @tasks.durable()
    async def with_a_page(ctx: Context[Any]) -> str:
        return "on the page" if client_supports_apps(ctx) else "in words"

    apps.add_html_resource("ui://clock/app.html", "<!doctype html>")
    return [Stamps(), apps]
