"""`mcptasks serve TARGET`: the MCP server over streamable HTTP. Thin over uvicorn."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Annotated, Final

import typer
import uvicorn
from rich.logging import RichHandler
from starlette.types import ASGIApp
from uvicorn.config import LOGGING_CONFIG

from mcptasks.cli.store_check import tell_of_dev
from mcptasks.cli.target import load_server
from mcptasks.errors import ConfigurationError
from mcptasks.observe import metrics_port
from mcptasks.observe.export import exporting
from mcptasks.observe.logs import log_json
from mcptasks.settings import Settings

#: uvicorn's own, so that `--log-level` rules it too.
log: Final = logging.getLogger("uvicorn.error")

#: The service's name in traces, where nobody gave it another.
SERVICE: Final = "mcptasks-server"

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
    app: ASGIApp = load_server(target).streamable_http_app(
        host=host, json_response=json_response, stateless_http=stateless
    )
    settings = Settings.load()
    tell_of_dev(settings)
    if json := settings.log_format == "json":
        log_json()
    else:
        log_in_lines()
    exporting.begin(SERVICE)
    # None: its loggers have no handlers of their own, only the level.
    config = uvicorn.Config(app, log_level=log_level.lower(), log_config=None if json else LOGGING_CONFIG)
    with bound(host, port) as listener, metrics_port.serving(settings):
        _Server(config).run(sockets=[listener])


def log_in_lines() -> None:
    """A log that goes to a file has a line per event, for grep: the SDK's handler breaks them at 80 columns."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, RichHandler) and not handler.console.is_terminal:
            root.removeHandler(handler)
            plain = logging.StreamHandler()
            plain.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            root.addHandler(plain)


class TracedServer(uvicorn.Server):
    """Its last spans leave before it ends, which is by a signal that uvicorn gives itself, so that no `atexit` runs."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Nothing is served any more, and what is to be told of it is."""
        await super().shutdown(sockets)
        await asyncio.to_thread(exporting.close)


class _Server(TracedServer):
    """Says where it serves: uvicorn does not when it is given its socket, and the port may have been chosen here."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """It takes connections, and the log has the URL."""
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            log.info("mcptasks serve: serving http://%s:%d/mcp", f"[{host}]" if ":" in host else host, port)


def bound(host: str, port: int) -> socket.socket:
    """A socket that has the port for us; so a taken one is told before anything else starts.

    Raises:
        ConfigurationError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol by name, not 0: asyncio sets TCP_NODELAY only on what says it is TCP, and without it every answer of
    # two writes waits 40 ms for the client's delayed ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise ConfigurationError(
            f"Cannot listen on {host}:{port}: {exc.strerror}. Choose another with --port (0 takes a free one)."
        ) from exc
    return listener
