"""`mcptasks`: the command line. One module per command; this one only gathers them and ends them well."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from mcptasks.cli import admission, dev, doctor, drain, serve, worker
from mcptasks.cli.demo.command import demo
from mcptasks.errors import ConfigurationError, MCPTasksError

#: The contract: 0 ok, 1 failed, 2 usage.
FAILED, USAGE = 1, 2

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")
app.command()(dev.dev)
app.command()(demo)
app.command()(serve.serve)
app.command()(doctor.doctor)
app.add_typer(admission.app, name="admission")
app.command()(drain.drain)
app.command(context_settings={"allow_extra_args": True})(worker.worker)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mcptasks {version('mcptasks')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Durable background tasks for MCP servers, on the Celery fleet you already run."""


def main() -> None:
    """The command has run; its errors are one line for people, its exit code 0, 1 or 2."""
    try:
        app()
    except ConfigurationError as exc:
        _complain(exc, USAGE)
    except MCPTasksError as exc:
        _complain(exc, FAILED)


def _complain(exc: MCPTasksError, code: int) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]mcptasks:[/] {escape(str(exc))}")
    sys.exit(code)


if __name__ == "__main__":
    main()
