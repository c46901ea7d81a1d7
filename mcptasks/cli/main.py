"""`mcptasks`: the command line. One module per command; this one only gathers them and ends them well."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, Final, cast

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup
from typer.main import get_command

from mcptasks.cli.verdict import printable
from mcptasks.errors import ConfigurationError, MCPTasksError

#: The contract: 0 ok, 1 failed, 2 usage.
FAILED, USAGE = 1, 2

#: Where each command lives, in the order of the help. Imported when it is called: some bring Celery and the SDK along,
#: seconds that those who only want to see a list need not wait for.
_COMMANDS: Final = {
    "dev": "dev:dev",
    "demo": "demo.command:demo",
    "serve": "serve:serve",
    "worker": "worker:worker",
    "ps": "ps:ps",
    "show": "show:show",
    "logs": "logs:logs",
    "answer": "answer:answer",
    "cancel": "cancel:cancel",
    "retry": "retry:retry",
    "extend": "extend:extend",
    "purge": "purge:purge",
    "top": "top:top",
    "console": "console:console",
    "drain": "drain:drain",
    "admission": "admission:app",
    "track": "track:app",
    "doctor": "doctor:doctor",
}
#: What they do not know they hand on.
_OPEN: Final = frozenset({"worker"})


class Commands(TyperGroup):
    """The commands by name."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        # The names alone: what a mistyped one may have meant is looked for among them.
        self.commands = cast("Any", dict.fromkeys(_COMMANDS))

    def list_commands(self, ctx: Any) -> list[str]:
        """All names."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, loaded; None: there is none of that name."""
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        found = getattr(import_module(f"mcptasks.cli.{module}"), name)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False, rich_markup_mode="rich")
            found.command(cmd_name, context_settings={"allow_extra_args": cmd_name in _OPEN})(function)
        command = get_command(found)
        command.name = cmd_name
        return command


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")


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
    except OSError as exc:
        if exc.errno != errno.ENOSPC:
            raise
        # What is still to be written has nowhere to go, and Python would say so again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _complain(MCPTasksError(f"{exc.strerror}; what was to be written is not whole."), FAILED)


def _complain(exc: MCPTasksError, code: int) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]mcptasks:[/] {escape(printable(str(exc)))}")
    sys.exit(code)


if __name__ == "__main__":
    main()
