"""`mcptasks retry ID`: what a failed task was to do is done again."""

from __future__ import annotations

import typer

from mcptasks.cli.operating import Json, TaskId, on_fleet, print_json
from mcptasks.model import label


def retry(task: TaskId, as_json: Json = False) -> None:
    """Do again, as a new task, what a failed task was to do. The failed one stays as it is.

    The new one has the same caller, tool and arguments, and begins from the top: steps are done again, questions asked
    again. Their timelines name each other.
    """
    fresh = on_fleet(lambda fleet: fleet.retry(task))
    if as_json:
        print_json({"id": fresh})
    else:
        typer.echo(f"task {label(fresh)} does it again")
