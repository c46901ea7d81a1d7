"""`mcptasks extend ID`: a task is kept longer."""

from __future__ import annotations

from typing import Annotated

import typer

from mcptasks.cli.operating import TaskId, on_fleet
from mcptasks.times import iso


def extend(
    task: TaskId,
    by: Annotated[str, typer.Option(metavar="DURATION", help='So much longer than now ("12h", "7d").')] = "",
    ttl: Annotated[str, typer.Option(metavar="DURATION", help="At least so long from now on.")] = "",
) -> None:
    """Keep a task longer. An unfinished one does not expire before that; nothing ever gets shorter."""
    if bool(by) == bool(ttl):
        raise typer.BadParameter("give --by or --ttl, one of them")
    until_ms = on_fleet(lambda fleet: fleet.extend_by(task, by) if by else fleet.extend(task, ttl))
    typer.echo("it is kept for ever" if until_ms is None else f"it is kept until {iso(until_ms)}")
