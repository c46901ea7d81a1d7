"""`mcptasks cancel ID`: a task is told to stop."""

from __future__ import annotations

from typing import Annotated

import typer

from mcptasks.cli.operating import TaskId, on_fleet, who
from mcptasks.errors import MCPTasksError
from mcptasks.shown import plain


class TooLate(MCPTasksError):
    """The task had ended before."""


def cancel(
    task: TaskId,
    reason: Annotated[str, typer.Option(help="Its status message, which its caller reads, too.")] = "Cancelled",
) -> None:
    """Cancel a task. One that waits ends at once; one that runs is told to stop, and ends when it does.

    The reason names you: MCPTASKS_OPERATOR, or your login.
    """
    outcome = on_fleet(lambda fleet: fleet.cancel(task, f"{reason} (by operator {who()})"))
    if outcome == "FINISHED":
        raise TooLate(f"Task {plain(task, 40)!r} had ended before; nothing was changed.")
    typer.echo("cancelled" if outcome == "CANCELLED" else "it runs, and was told to stop")
