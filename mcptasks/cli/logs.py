"""`mcptasks logs ID`: what happened to a task, and what its tool said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from mcptasks.cli.operating import Json, TaskId, console, on_fleet, print_json
from mcptasks.errors import StoreUnavailable
from mcptasks.observe.timeline import Entry
from mcptasks.operations import Operations
from mcptasks.shown import about, plain
from mcptasks.times import iso

_STYLES: Final = {"end": "bold", "lost": "red", "defer": "red", "retry": "yellow", "ask": "yellow", "cancel": "yellow"}


def logs(
    task: TaskId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the task has ended.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks of --follow.")] = 0.5,
    as_json: Json = False,
) -> None:
    """Show a task's timeline: runs, questions, steps, progress, what its tool told, and its end.

    With --follow, --json prints one object a line.
    """
    if not follow:
        timeline = on_fleet(lambda fleet: fleet.timeline(task))
        if as_json:
            print_json(timeline.told())
        else:
            show_entries(timeline, console())
        return
    with suppress(KeyboardInterrupt):
        on_fleet(lambda fleet: _follow(fleet, task, interval, as_json))


def show_entries(entries: Iterable[Entry], screen: Console) -> None:
    """Each entry in a line, or as many as the terminal needs for it."""
    for entry in entries:
        told = plain(about(entry), 2_000)
        line = Text(iso(entry.at_ms), "dim")
        line.append(f" {plain(entry.what, 40)}{': ' if told else ''}", _STYLES.get(entry.what, "cyan not dim"))
        screen.print(line.append(told, "default not dim"), soft_wrap=True)


async def _follow(fleet: Operations, task: str, interval: float, as_json: bool) -> None:
    screen, told, away = console(), set[str](), False
    task = await fleet.find(task)  # a second one that begins so may come
    while True:
        try:
            entries = list(await fleet.timeline(task))
            away = False
        except StoreUnavailable as exc:
            if not away:
                typer.echo(f"{exc} Waiting for it.", err=True)
            entries, away = [], True
        fresh, told = _fresh(entries, told)
        if as_json:
            for entry in fresh:
                typer.echo(json.dumps(_as_json(entry)))
        else:
            show_entries(fresh, screen)
        if any(entry.what == "end" for entry in entries):
            return
        await asyncio.sleep(interval)


def _fresh(entries: Sequence[Entry], told: set[str]) -> tuple[list[Entry], set[str]]:
    """What was not told yet, and what is told by then: of what is there, because what has left never comes back."""
    marked = [(_mark(entry), entry) for entry in entries if entry.what != "omitted"]
    # A store that is away shows nothing, and takes nothing back.
    return [entry for mark, entry in marked if mark not in told], {mark for mark, _ in marked} or told


def _as_json(entry: Entry) -> dict[str, Any]:
    return {"at": iso(entry.at_ms), "what": entry.what, **entry.about}


def _mark(entry: Entry) -> str:
    """Tells it from every other; reports of progress that are put together are another entry with each of them."""
    return json.dumps(_as_json(entry), sort_keys=True)
