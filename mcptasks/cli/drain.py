"""`mcptasks drain`: no new tasks, and back when the last admitted one has ended."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import typer
from rich.console import Console

from mcptasks.cli.operating import on_fleet
from mcptasks.errors import MCPTasksError
from mcptasks.model import label
from mcptasks.operations import Operations
from mcptasks.times import duration_ms

#: How many of the unfinished a time-out names.
_NAMED: Final = 10


class NotDrained(MCPTasksError):
    """The time ran out before the last task ended."""


def drain(
    timeout: Annotated[str, typer.Option(help='Give up after this long ("90s", "10m"); empty: never.')] = "",
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel what is unfinished instead of waiting for it.")
    ] = False,
    reason: Annotated[str, typer.Option(help="What refused callers, and cancelled ones, are told.")] = "draining",
) -> None:
    """Close admission and wait until every admitted task has ended. Admission stays closed.

    A task that waits for a person is unfinished: it is waited for, or with --cancel cancelled.
    """
    timeout_ms = duration_ms(timeout) if timeout else None
    on_fleet(lambda fleet: _drain(fleet, timeout_ms, cancel, reason))
    typer.echo("drained; admission is closed, `mcptasks admission open` opens it")


async def _drain(fleet: Operations, timeout_ms: int | None, cancel: bool, reason: str) -> None:
    console = Console(stderr=True)
    await fleet.close_admission(reason)
    if cancel:
        console.print(f"{await fleet.cancel_all(reason)} tasks told to stop")
    with console.status("") as line:
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await fleet.drained(lambda left: line.update(f"{left:,} unfinished"))
        except TimeoutError:
            raise NotDrained(_left(await fleet.active())) from None


def _left(active: list[str]) -> str:
    names = ", ".join(label(task_id) for task_id in active[:_NAMED])
    more = f" and {len(active) - _NAMED} more" if len(active) > _NAMED else ""
    return (
        f"{len(active)} tasks have not ended: {names}{more}. Admission is closed; `mcptasks admission open` opens it."
    )
