"""`mcptasks ps`: what tasks there are, newest first."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mcptasks.cli.operating import UNFINISHED, Json, console, on_fleet, print_json
from mcptasks.cli.task_table import as_json, table
from mcptasks.errors import ConfigurationError, StoreUnavailable
from mcptasks.model import Status
from mcptasks.operations import Operations
from mcptasks.scope import PAGE_MAX
from mcptasks.store.lists import Summary
from mcptasks.times import iso


@dataclass(frozen=True)
class Choice:
    """Which tasks are wanted."""

    statuses: Collection[Status]
    tool: str | None
    owner: str | None
    limit: int


@dataclass(frozen=True)
class Found:
    """The first of them."""

    tasks: list[Summary]
    #: There are others behind them.
    more: bool
    #: Some in between that a newer mcptasks wrote.
    newer: int
    now_ms: int


def ps(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Those that have ended, too.")] = False,
    status: Annotated[
        list[Status] | None, typer.Option("--status", "-s", help="Only these; may be given several times.")
    ] = None,
    tool: Annotated[str | None, typer.Option(help="Only this tool's.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only this caller's, named as --json names it.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 50,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show them until Ctrl-C, with bars.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks of --watch.")] = 1.0,
    as_json_: Json = False,
) -> None:
    """List tasks, newest first: the unfinished ones, unless --all or --status says otherwise."""
    choice = Choice(status or (tuple(Status) if everything else UNFINISHED), tool, owner, limit)
    screen = console()
    if watch:
        if as_json_ or not screen.is_terminal:
            raise ConfigurationError("--watch is for a terminal; programs call `mcptasks ps --json` again and again")
        with suppress(KeyboardInterrupt):
            on_fleet(lambda fleet: _watch(fleet, choice, interval, screen))
        return
    found = on_fleet(lambda fleet: _look(fleet, choice))
    if as_json_:
        print_json({"tasks": [as_json(task) for task in found.tasks], "more": found.more, "newer": found.newer})
        return
    if found.tasks:
        screen.print(table(found.tasks, found.now_ms))
    for note in _notes(found):
        screen.print(note, style="dim")


def _notes(found: Found) -> list[str]:
    notes = [] if found.tasks else ["no such task"]
    notes += ["there are more; --limit shows them"] if found.more else []
    notes += [f"{found.newer} were written by a newer mcptasks and cannot be read"] if found.newer else []
    return notes


async def _look(fleet: Operations, choice: Choice) -> Found:
    tasks, newer, cursor = list[Summary](), 0, None
    while True:
        page = await fleet.page(
            statuses=choice.statuses,
            tool=choice.tool,
            owner=choice.owner,
            limit=min(choice.limit - len(tasks), PAGE_MAX),
            cursor=cursor,
        )
        tasks, newer, cursor = tasks + page.tasks, newer + page.newer, page.cursor
        if cursor is None or len(tasks) == choice.limit:
            return Found(tasks, cursor is not None, newer, await fleet.now_ms())


async def _watch(fleet: Operations, choice: Choice, interval: float, screen: Console) -> None:
    found, trouble = Found([], more=False, newer=0, now_ms=0), ""
    with Live(console=screen, screen=True, auto_refresh=False) as live:
        while True:
            # The head of the table, and what stands below it.
            room = max(screen.height - 4, 1)
            try:
                found, trouble = await _look(fleet, replace(choice, limit=min(choice.limit, room))), ""
            except StoreUnavailable as exc:
                trouble = f"{exc} What was last seen:"
            live.update(_painted(found, trouble, interval), refresh=True)
            await asyncio.sleep(interval)


def _painted(found: Found, trouble: str, interval: float) -> Group:
    notes = "; ".join(["Ctrl-C ends it", *_notes(found)])
    foot = Text(f"{iso(found.now_ms)}, every {interval:g} s; {notes}", "dim")
    parts = [Text(trouble, "bold red")] if trouble else []
    return Group(*parts, table(found.tasks, found.now_ms, bars=True), foot)
