"""`mcptasks serve TARGET`: the MCP server over streamable HTTP. Thin over uvicorn."""

from __future__ import annotations

import socket
from typing import Annotated, Any

import typer
import uvicorn
from starlette.types import ASGIApp

from mcptasks.cli.target import load_target
from mcptasks.errors import ConfigurationError

Target = Annotated[str, typer.Argument(help="The MCP server, as module:attribute (for instance workers.server:mcp).")]


def serve(
    target: Target,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    json_response: Annotated[bool, typer.Option(help="Answer with plain JSON instead of event streams.")] = False,
    stateless: Annotated[bool, typer.Option(help="Keep no session per client.")] = False,
    log_level: Annotated[str, typer.Option(help="uvicorn's log level.")] = "info",
) -> None:
    """Serve TARGET's MCP server on /mcp until it is stopped."""
    app = _http_app(load_target(target), target, host, json_response=json_response, stateless=stateless)
    with bound(host, port) as listener:
        uvicorn.Server(uvicorn.Config(app, log_level=log_level.lower())).run(sockets=[listener])


def _http_app(mcp: Any, target: str, host: str, *, json_response: bool, stateless: bool) -> ASGIApp:
    if not callable(getattr(mcp, "streamable_http_app", None)):
        raise ConfigurationError(f"{target} is a {type(mcp).__name__}, not an MCPServer")
    return mcp.streamable_http_app(host=host, json_response=json_response, stateless_http=stateless)


def bound(host: str, port: int) -> socket.socket:
    """A socket that has the port for us; so a taken one is told before anything else starts.

    Raises:
        ConfigurationError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise ConfigurationError(
            f"Cannot listen on {host}:{port}: {exc.strerror}. Choose another with --port (0 takes a free one)."
        ) from exc
    return listener
