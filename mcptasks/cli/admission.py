"""`mcptasks admission close | open | status`: the fleet's door."""

from __future__ import annotations

from typing import Annotated

import typer

from mcptasks.cli.operating import Json, on_fleet, print_json
from mcptasks.operations import Operations
from mcptasks.shown import plain

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Refuse new tasks, accept them again, or see which it is."
)


@app.command()
def close(reason: Annotated[str, typer.Option(help="What refused callers are told.")]) -> None:
    """Refuse new tasks, on every server of the fleet. Admitted ones go on."""
    on_fleet(lambda fleet: fleet.close_admission(reason))
    typer.echo("admission is closed; `mcptasks admission open` opens it")


@app.command(name="open")
def open_() -> None:
    """Accept new tasks again."""
    on_fleet(lambda fleet: fleet.open_admission())
    typer.echo("admission is open")


@app.command()
def status(as_json: Json = False) -> None:
    """Show whether new tasks are accepted, and how many are unfinished."""
    reason, active = on_fleet(_status)
    if as_json:
        print_json({"open": reason is None, "reason": reason, "active": active})
        return
    typer.echo(f"admission is {'open' if reason is None else f'closed: {plain(reason)}'}; {active} unfinished")


async def _status(fleet: Operations) -> tuple[str | None, int]:
    return await fleet.admission(), len(await fleet.active())
