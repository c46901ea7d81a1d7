"""`mcptasks admission close | open | status`: the fleet's door."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from mcptasks.operations import Operations

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Refuse new tasks, accept them again, or see which it is."
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def close(reason: Annotated[str, typer.Option(help="What refused callers are told.")]) -> None:
    """Refuse new tasks, on every server of the fleet. Admitted ones go on."""
    asyncio.run(_close(reason))
    typer.echo("admission is closed; `mcptasks admission open` opens it")


@app.command(name="open")
def open_() -> None:
    """Accept new tasks again."""
    asyncio.run(_open())
    typer.echo("admission is open")


@app.command()
def status(as_json: Json = False) -> None:
    """Show whether new tasks are accepted, and how many are unfinished."""
    reason, active = asyncio.run(_status())
    if as_json:
        typer.echo(json.dumps({"open": reason is None, "reason": reason, "active": active}))
        return
    typer.echo(f"admission is {'open' if reason is None else f'closed: {reason}'}; {active} unfinished")


async def _close(reason: str) -> None:
    async with Operations() as fleet:
        await fleet.close_admission(reason)


async def _open() -> None:
    async with Operations() as fleet:
        await fleet.open_admission()


async def _status() -> tuple[str | None, int]:
    async with Operations() as fleet:
        return await fleet.admission(), len(await fleet.active())
