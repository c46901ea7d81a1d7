"""`mcptasks purge`: what ended long ago is removed before its time."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from mcptasks.cli.operating import on_fleet
from mcptasks.errors import ConfigurationError
from mcptasks.model import Status
from mcptasks.operations import ENDS, Operations
from mcptasks.times import duration_ms, iso, moment


def purge(
    before: Annotated[
        str, typer.Option(metavar="WHEN", help='What ended longer ago than this ("7d"), or before it ("2026-11-30").')
    ],
    status: Annotated[list[Status] | None, typer.Option("--status", "-s", help="Only these ends.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only this tool's.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only this caller's.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove tasks that have ended, results and files included, although their time is not over.

    Their callers are told that there is no such task. What has not ended stays, whatever is said here.
    """
    statuses = tuple(status or ENDS)
    if unfinished := sorted(set(statuses) - set(ENDS)):
        raise typer.BadParameter(f"only what has ended can be purged, not {', '.join(unfinished)}")
    screen = Console(stderr=True, highlight=False)

    async def found(fleet: Operations) -> tuple[int, list[str]]:
        before_ms = await _moment(fleet, before)
        with screen.status("looking"):
            lists = fleet.ended_before(before_ms, tool=tool, owner=owner, statuses=statuses)
            return before_ms, [task async for tasks in lists for task in tasks]

    before_ms, tasks = on_fleet(found)
    said = f"{len(tasks)} tasks that ended before {iso(before_ms)}"
    if not tasks:
        typer.echo(f"there are no {said.removeprefix('0 ')}")
        return
    if not yes:
        typer.confirm(f"{said} will be removed with their results and files. Go on?", abort=True, err=True)
    with screen.status("removing"):
        count = on_fleet(lambda fleet: fleet.purge(tasks, before_ms))
    typer.echo(f"removed {count} tasks")


async def _moment(fleet: Operations, before: str) -> int:
    if (found := moment(before)) is not None:
        return round(found.timestamp() * 1000)
    try:
        return await fleet.now_ms() - duration_ms(before)
    except ConfigurationError:
        raise ConfigurationError(
            f"--before {before!r} is neither a duration ('7d', '12h') nor a moment in ISO 8601 ('2026-11-30T12:00Z')"
        ) from None
