"""What a tool can see of its call and of its server, and what it can tell."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ClientCapabilities, ElicitationCapability, RootsCapability

from tests.support.kinds.shelf import Differs, Shelf

SHELF: Final = Shelf("The call and its context")

log: Final = logging.getLogger(__name__)


@dataclass
class Library:
    """What the lifespan makes."""

    name: str


@asynccontextmanager
async def lifespan(_server: MCPServer[Library]) -> AsyncGenerator[Library]:
    """The server's lifespan, entered where the tools run."""
    yield Library("city library")


@SHELF.tool("the lifespan's state")
async def where(ctx: Context[Library]) -> str:
    return ctx.request_context.lifespan_context.name


@SHELF.tool("the lifespan's state in a sync tool")
def sync_where(ctx: Context[Library]) -> str:
    return ctx.request_context.lifespan_context.name


@SHELF.tool("a context in the middle of the arguments", {"a": 1, "b": 2})
async def context_between(a: int, it: Context[Any], b: int) -> int:
    return a + b + len(it.mcp_server.name)


@SHELF.tool("a context that may be missing")
async def context_or_none(ctx: Context[Any] | None = None) -> bool:
    return ctx is not None


@SHELF.tool("who calls, and what the client can do")
async def who(ctx: Context[Any]) -> dict[str, Any]:
    token = get_access_token()
    info = ctx.session.client_params.client_info if ctx.session.client_params else None
    return {
        "subject": token.subject if token else None,
        "claims": token.claims if token else None,
        "client": info.name if info else None,
        "tenant": (ctx.headers or {}).get("x-tenant"),
        "version": ctx.protocol_version,
        "request": ctx.request_id,
        "can_elicit": ctx.client_capabilities is not None and ctx.client_capabilities.elicitation is not None,
        "checked": ctx.session.check_client_capability(ClientCapabilities(elicitation=ElicitationCapability())),
        "roots": ctx.session.check_client_capability(ClientCapabilities(roots=RootsCapability())),
    }


@SHELF.tool("the metadata of the call")
async def metadata(ctx: Context[Any]) -> dict[str, Any]:
    return dict(ctx.request_context.meta or {})


@SHELF.tool("the method and params of the call", {"a": 1})
async def raw_call(a: int, ctx: Context[Any]) -> dict[str, Any]:
    return {"method": ctx.request_context.method, "params": dict(ctx.request_context.params or {})}


@SHELF.tool(
    "whether the client can be asked in line",
    differs=Differs(
        live='"result":false',
        task='"result":true',
        why="Live no client of 2026-07-28 can be asked in line. Through its task it can, whatever its transport.",
    ),
)
async def can_be_asked(ctx: Context[Any]) -> bool:
    return ctx.session.can_send_request


@SHELF.tool(
    "all headers of the HTTP request",
    differs=Differs(
        live='"authorization"',
        task='["x-tenant"]',
        why="The run has no request. `ctx.headers` and the request object have the headers that `MCPTASKS_HEADERS` "
        "names, and nothing else: no URL, no address.",
    ),
)
async def http_request(ctx: Context[Any]) -> list[str]:
    return sorted(ctx.headers or {})


@SHELF.tool(
    "the text of the caller's access token",
    differs=Differs(
        live='"ann"',
        task='""',
        why="A bearer token is a secret, and would be stale by the time of a late run: it is never stored. Whose it is "
        "(client, subject, scopes, claims) is there as live.",
    ),
)
async def bearer() -> str:
    token = get_access_token()
    return token.token if token else "none"


@SHELF.tool("a resource of the server")
async def reads(ctx: Context[Any]) -> str:
    return "".join(str(part.content) for part in await ctx.read_resource("res://a"))


@SHELF.tool("a resource with a parameter, and its own context")
async def reads_template(ctx: Context[Any]) -> str:
    return "".join(str(part.content) for part in await ctx.read_resource("res://shelf/3"))


@SHELF.tool("another tool of the server", needs=("add",))
async def nested(ctx: Context[Any]) -> Any:
    return await ctx.mcp_server.call_tool("add", {"a": 1}, ctx)


@SHELF.tool("the server's lists")
async def lists(ctx: Context[Any]) -> dict[str, Any]:
    tools = await ctx.mcp_server.list_tools()
    prompts = await ctx.mcp_server.list_prompts()
    return {"tools": len(tools), "prompts": [prompt.name for prompt in prompts]}


@SHELF.tool("a prompt of the server")
async def prompt(ctx: Context[Any]) -> str:
    return str(await ctx.mcp_server.get_prompt("greeting", {"name": "Ada"}, ctx))


@SHELF.tool("progress and log messages")
async def talkative(ctx: Context[Any]) -> str:
    await ctx.info("starting")  # pyright: ignore[reportDeprecated]
    for done in range(3):
        await ctx.report_progress(done, 3, "working")
    await ctx.report_progress(0.5)
    await ctx.session.send_log_message("error", {"a": 1}, logger="tool", related_request_id=ctx.request_id)  # pyright: ignore[reportDeprecated]
    return "done"


@SHELF.tool("notices that something changed")
async def notices(ctx: Context[Any]) -> str:
    await ctx.notify_resource_updated("res://a")
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()
    await ctx.session.send_resource_updated("res://a")
    return "told"


@SHELF.tool("Python's own logging")
def logs() -> str:
    log.warning("from a tool")
    return "logged"


@SHELF.tool("closing the stream of the answer")
async def closes_stream(ctx: Context[Any]) -> str:
    await ctx.close_sse_stream()
    return "closed"


def furnish(mcp: MCPServer[Any]) -> None:
    """The resources and the prompt that the tools use are on the server."""

    @mcp.resource("res://a")
    def resource_a() -> str:
        return "the resource"

    @mcp.resource("res://shelf/{number}")
    def shelf(number: int, ctx: Context[Any]) -> str:
        return f"shelf {number} of {ctx.mcp_server.name}"

    @mcp.prompt()
    def greeting(name: str) -> str:
        return f"Hello {name}"
