"""Every private or undocumented name of the `mcp` SDK, one function each; `tests/unit/test_seams.py` pins each one.

When a pin breaks after an SDK upgrade: read the docstring of the function, look at what moved, mend it here. Nothing
else in the project may touch these names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Final, TextIO, cast

import anyio
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import resolve_arguments, returns_input_required
from mcp.server.mcpserver.tools import Tool
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.shared.dispatcher import DispatchContext
from mcp_types import (
    LOG_LEVEL_META_KEY,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
)

#: True inside a durable run. The handler chain below includes our own interceptor, which must let the run through.
running: Final[ContextVar[bool]] = ContextVar("mcptasks_running", default=False)


def get_tool(mcp: MCPServer[Any], name: str) -> Tool | None:
    """The registered tool, or None.

    PRIVATE `MCPServer._tool_manager`: the public `list_tools()` returns wire tools without function and argument model.
    If it moves: keep an own `Tool.from_function(...)` per durable function.
    """
    return mcp._tool_manager.get_tool(name)  # pyright: ignore[reportPrivateUsage]


def tools(mcp: MCPServer[Any]) -> list[Tool]:
    """All registered tools, with their functions. PRIVATE, as `get_tool`."""
    return mcp._tool_manager.list_tools()  # pyright: ignore[reportPrivateUsage]


async def call_like_live(
    mcp: MCPServer[Any], rctx: ServerRequestContext[Any, Any], params: CallToolRequestParams
) -> CallToolResult | InputRequiredResult:
    """The tool's result as the SDK's own `tools/call` handler gives it, other extensions' interceptors included.

    PRIVATE `MCPServer._lowlevel_server`: the composed handler is the only spelling that runs interceptors and masks
    errors as the live call does, so nothing of it is restated here. If it moves: public `MCPServer.call_tool`, and
    restate the error mapping of `MCPServer._handle_call_tool`.

    Raises:
        MCPError: the tool ended with a protocol error.
    """
    entry = mcp._lowlevel_server.get_request_handler("tools/call")  # pyright: ignore[reportPrivateUsage]
    if entry is None:  # pragma: no cover - MCPServer always registers it
        raise RuntimeError("the MCP server has no tools/call handler")
    reset = running.set(True)
    try:
        result = await cast("Any", entry.handler)(rctx, params)
    finally:
        running.reset(reset)
    if isinstance(result, Mapping):  # an interceptor may answer in wire form
        result = CallToolResult.model_validate(result, by_name=False)
    return cast("CallToolResult | InputRequiredResult", result)


async def open_questions(
    mcp: MCPServer[Any], tool: Tool, rctx: ServerRequestContext[Any, Any], params: CallToolRequestParams
) -> InputRequiredResult | None:
    """What the tool's resolvers have to ask their client; None when they know all. The tool's own body does not run.

    UNDOCUMENTED `resolve_arguments`, `Tool.resolved_params` and `Tool.resolver_plans`, and PRIVATE
    `MCPServer._subscriptions`: the part of `Tool.run` that stands before the body. If they move: leave the questions to
    the task.

    Raises:
        MCPError: a resolver ended with it.
        Exception: whatever else a resolver or a validator raises.
    """
    subscriptions = mcp._subscriptions  # pyright: ignore[reportPrivateUsage]
    context: Context[Any, Any] = Context(
        request_context=rctx, mcp_server=mcp, input_params=params, subscriptions=subscriptions
    )
    arguments = tool.fn_metadata.validate_arguments(params.arguments or {})
    found = await resolve_arguments(tool.resolved_params, tool.resolver_plans, arguments, context)
    return found if isinstance(found, InputRequiredResult) else None


def is_guard(tool: Tool) -> bool:
    """The tool's own body may ask, by returning `InputRequiredResult`. UNDOCUMENTED `returns_input_required`."""
    return returns_input_required(tool.fn)


def share_request_state(mcp: MCPServer[Any], keys: Sequence[str]) -> None:
    """What a client carries from round to round is sealed with the first of these keys and opened with all of them.

    The rest of the server's policy (how long, for whom) stays. PRIVATE `RequestStateBoundary._security`: the server
    makes its boundary itself, before an extension hears of the server. If it moves: the user passes
    `MCPServer(request_state_security=RequestStateSecurity(keys=...))`.
    """
    for place, found in enumerate(mcp.middleware):
        if isinstance(found, RequestStateBoundary):
            old = found._security  # pyright: ignore[reportPrivateUsage]
            shared = RequestStateSecurity(
                keys=keys, ttl=old.ttl, bind_principal=old.bind_principal, audience=old.audience
            )
            mcp.middleware[place] = RequestStateBoundary(shared, default_audience=mcp.name)


def make_session(
    channel: DispatchContext[Any],
    *,
    version: str,
    client_info: dict[str, Any] | None,
    capabilities: dict[str, Any] | None,
    meta: dict[str, Any] | None,
) -> ServerSession:
    """The SDK's real session, talking through our channel instead of a connection.

    Its log messages come from `info` on, or as the call wanted them: a task's timeline is told of them, not its client,
    who would have to ask for them with the call.

    UNDOCUMENTED use of `ServerSession.__init__` and `Connection.from_envelope(outbound=)`, both exported. If they
    move: an own class with the public methods of `ServerSession` (the contract test lists them).
    """
    connection = Connection.from_envelope(version, client_info, capabilities, outbound=channel)
    wanted = {LOG_LEVEL_META_KEY: "info", **(meta or {})}
    return ServerSession(cast("Any", channel), connection, request_meta=cast("Any", wanted))


def client_info_of(session: ServerSession) -> Implementation | None:
    """Who the client says it is. It is optional on the modern wire, where `client_params` may be absent."""
    params = session.client_params
    return None if params is None else params.client_info


def lifespan(mcp: MCPServer[Any]) -> AbstractAsyncContextManager[Any]:
    """The server's lifespan, to be entered outside any transport; yields `{}` where the server has none."""
    enter = mcp.settings.lifespan
    return nullcontext({}) if enter is None else enter(mcp)


async def serve_on(mcp: MCPServer[Any], stdin: TextIO, stdout: TextIO) -> None:
    """The server has served the client at the other ends of these streams, until its input ended.

    PRIVATE `MCPServer._lowlevel_server`: all of `MCPServer.run_stdio_async` but the choice of the streams. That takes
    standard output for the wire when it begins to serve, and what was printed before then is on it already. If it
    moves: give the process its standard streams back, and call `run_stdio_async`.
    """
    server = mcp._lowlevel_server  # pyright: ignore[reportPrivateUsage]
    async with stdio_server(anyio.wrap_file(stdin), anyio.wrap_file(stdout)) as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
