"""`mcptasks console`: the operators' web page. Thin over uvicorn."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import Annotated

import typer
import uvicorn
from uvicorn.config import LOGGING_CONFIG

from mcptasks.cli.operating import fleets_settings
from mcptasks.cli.serve import TracedServer, bound
from mcptasks.errors import ConfigurationError
from mcptasks.observe import metrics_port
from mcptasks.observe.export import exporting
from mcptasks.observe.logs import log_json

#: What the extra brings, by the names that Python knows them by.
_NEEDED = ("jinja2", "authlib", "itsdangerous", "multipart")
#: The service's name in traces, where nobody gave it another.
SERVICE = "mcptasks-console"
#: Open pages end by themselves only after minutes.
_GRACE_S = 2


def console(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8080,
    log_level: Annotated[str, typer.Option(help="uvicorn's log level.")] = "info",
) -> None:
    """Serve the operators' web page until it is stopped: all tasks, the inbox of open questions, the fleet's door.

    Operators log in with MCPTASKS_CONSOLE_TOKEN, or as docs/console.md says.
    """
    if not all(map(find_spec, _NEEDED)):
        raise ConfigurationError("The console is not installed: pip install 'mcptasks[console]'")
    from mcptasks.console import console_app  # noqa: PLC0415 - only where the extra is there

    settings = fleets_settings()
    app = console_app(settings)
    if json := settings.log_format == "json":
        log_json()
    else:
        # What operators do is told at this level.
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    exporting.begin(SERVICE)
    config = uvicorn.Config(
        app,
        log_level=log_level.lower(),
        log_config=None if json else LOGGING_CONFIG,
        access_log=False,
        # Whose the connection is decides whether a proxy's word is believed; so nobody else's word on that counts.
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    with bound(host, port) as listener, metrics_port.serving(settings):
        listener.listen()  # who comes before uvicorn waits
        address, taken = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        typer.echo(f"mcptasks console: serving http://{shown}:{taken}", err=True)
        TracedServer(config).run(sockets=[listener])
