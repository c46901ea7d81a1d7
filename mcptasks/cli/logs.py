"""`mcptasks logs ID`: what happened to a task, and what its tool said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from mcptasks.cli.operating import Json, TaskId, console, on_fleet, plain, print_json
from mcptasks.errors import StoreUnavailable
from mcptasks.observe.timeline import Entry
from mcptasks.operations import Operations
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
        about = plain(_about(entry), 2_000)
        line = Text(iso(entry.at_ms), "dim")
        line.append(f" {plain(entry.what, 40)}{': ' if about else ''}", _STYLES.get(entry.what, "cyan not dim"))
        screen.print(line.append(about, "default not dim"), soft_wrap=True)


def _about(entry: Entry) -> str:
    """What people want to know of it; `--json` has all."""
    about = entry.about
    match entry.what:
        case "progress":
            reports = f" ({about['reports']} reports)" if about["reports"] > 1 else ""
            return f"{about.get('message') or about['last']}{reports}"
        case "ask":
            return ", ".join(str(one.get("label") or one["key"]) for one in about["questions"])
        case "answer":
            return f"by {about['by']}: {', '.join(about['keys'])}"
        case "log" | "note":
            level = f"{about['level']}: " if "level" in about else ""
            data = f" {json.dumps(about['data'])}" if "data" in about else ""
            return f"{level}{about.get('text', '')}{data}"
        case _:
            return str(entry).partition(" ")[2].partition(": ")[2]


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
        fresh = [entry for entry in entries if entry.what != "omitted" and _mark(entry) not in told]
        told |= {_mark(entry) for entry in fresh}
        if as_json:
            for entry in fresh:
                typer.echo(json.dumps(_as_json(entry)))
        else:
            show_entries(fresh, screen)
        if any(entry.what == "end" for entry in entries):
            return
        await asyncio.sleep(interval)


def _as_json(entry: Entry) -> dict[str, Any]:
    return {"at": iso(entry.at_ms), "what": entry.what, **entry.about}


def _mark(entry: Entry) -> str:
    """Tells it from every other; reports of progress that are put together are another entry with each of them."""
    return json.dumps(_as_json(entry), sort_keys=True)
