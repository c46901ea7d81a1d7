"""`mcptasks console`: the operators' web page. Thin over uvicorn."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer
import uvicorn

from mcptasks.cli.serve import bound
from mcptasks.errors import ConfigurationError

#: What the extra brings, by the names that Python knows them by.
_NEEDED = ("jinja2", "authlib", "itsdangerous", "httpx", "multipart")
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

    app = console_app()
    with bound(host, port) as listener:
        listener.listen()  # who comes before uvicorn waits
        address, taken = listener.getsockname()[:2]
        typer.echo(
            f"mcptasks console: serving http://{f'[{address}]' if ':' in address else address}:{taken}", err=True
        )
        # Whose the connection is decides whether a proxy's word is believed; so nobody else's word on that counts.
        config = uvicorn.Config(
            app, log_level=log_level.lower(), proxy_headers=False, timeout_graceful_shutdown=_GRACE_S, access_log=False
        )
        uvicorn.Server(config).run(sockets=[listener])
