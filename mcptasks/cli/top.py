"""`mcptasks top`: the fleet at a glance, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mcptasks.cli.operating import STYLES, Json, console, on_fleet, print_json
from mcptasks.cli.task_table import cut
from mcptasks.errors import StoreUnavailable
from mcptasks.model import Status
from mcptasks.operations import ENDS, Operations
from mcptasks.shown import plain, span
from mcptasks.store.lists import Counts
from mcptasks.store.registry import WorkerPulse
from mcptasks.times import iso


@dataclass(frozen=True)
class Look:
    """The fleet at one moment."""

    now_ms: int
    counts: Counts
    workers: Mapping[str, WorkerPulse]
    #: The unfinished task that was created first.
    oldest: tuple[str, int] | None
    closed: str | None

    def ended(self) -> int:
        """How many ended tasks there are."""
        return sum(self.counts.by_status[status] for status in ENDS)


@dataclass(frozen=True)
class Rates:
    """Per second, between two looks. What was removed meanwhile (expired, purged) makes `ended` too small."""

    created: float
    ended: float

    @classmethod
    def between(cls, before: Look, after: Look) -> Rates:
        seconds = max((after.now_ms - before.now_ms) / 1000, 0.001)
        ended = after.ended() - before.ended()
        created = ended + after.counts.unfinished - before.counts.unfinished
        return cls(max(created, 0) / seconds, max(ended, 0) / seconds)


def top(
    once: Annotated[
        bool, typer.Option("--once", help="Show it once, after one interval, instead of until Ctrl-C.")
    ] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
    as_json: Json = False,
) -> None:
    """Show the fleet: workers, what waits, runs and is parked, the oldest task, and how many come and go."""
    screen = console()
    if not (once or as_json) and screen.is_terminal:
        with suppress(KeyboardInterrupt):
            on_fleet(lambda fleet: _watch(fleet, interval, screen))
        return
    before, now = on_fleet(lambda fleet: _two(fleet, interval))
    rates = Rates.between(before, now)
    if as_json:
        print_json(_as_json(now, rates))
        return
    screen.print(_painted(now, rates))


async def _two(fleet: Operations, interval: float) -> tuple[Look, Look]:
    before = await _look(fleet)
    await asyncio.sleep(interval)
    return before, await _look(fleet)


async def _look(fleet: Operations) -> Look:
    return Look(
        await fleet.now_ms(), await fleet.count(), await fleet.workers(), await fleet.oldest(), await fleet.admission()
    )


async def _watch(fleet: Operations, interval: float, screen: Console) -> None:
    before = now = await _look(fleet)
    trouble = ""
    with Live(console=screen, screen=True, auto_refresh=False) as live:
        while True:
            parts = [Text(trouble, "bold red")] if trouble else []
            foot = Text(f"{iso(now.now_ms)}, every {interval:g} s; Ctrl-C ends it", "dim")
            live.update(Group(*parts, _painted(now, Rates.between(before, now)), foot), refresh=True)
            await asyncio.sleep(interval)
            try:
                before, now, trouble = now, await _look(fleet), ""
            except StoreUnavailable as exc:
                trouble = f"{exc} What was last seen:"


def _as_json(look: Look, rates: Rates) -> dict[str, Any]:
    oldest = None if look.oldest is None else {"id": look.oldest[0], "created": iso(look.oldest[1])}
    return {
        "at": iso(look.now_ms),
        "admission": {"open": look.closed is None, "reason": look.closed},
        "tasks": {**look.counts.by_status, "overdue": look.counts.overdue, "newer": look.counts.newer},
        "unfinished": look.counts.unfinished,
        "oldest": oldest,
        "per_second": {"created": round(rates.created, 3), "ended": round(rates.ended, 3)},
        "workers": {
            name: {
                "host": pulse.host,
                "pid": pulse.pid,
                "slots": pulse.slots,
                "active": pulse.active,
                "received": pulse.received,
                "waiting": pulse.waiting,
                "deaf_ms": pulse.deaf_ms,
                "stuck": pulse.stuck,
            }
            for name, pulse in sorted(look.workers.items())
        },
    }


def _painted(look: Look, rates: Rates) -> Group:
    going, over = Text(), Text()
    for status in Status:
        counts = over if status.terminal else going
        counts.append(f"{status} {look.counts.by_status[status]:,}   ", STYLES[status])
    if look.counts.overdue:
        over.append(f"overdue {look.counts.overdue:,}   ", "red")
    if look.counts.newer:
        over.append(f"of a newer mcptasks {look.counts.newer:,}", "yellow")
    line = Text(f"{rates.created:.1f} created and {rates.ended:.1f} ended a second")
    if look.oldest is not None:
        line.append(f"; the oldest unfinished is {look.oldest[0][:10]}, {span(look.now_ms - look.oldest[1])} old")
    parts = [going, over, line]
    if look.closed is not None:
        parts.append(Text(f"admission is closed: {plain(look.closed)}", "bold yellow"))
    return Group(*parts, Text(), _workers(look))


def _workers(look: Look) -> Table | Text:
    if not look.workers:
        return Text("no worker is heard of", "bold red" if look.counts.unfinished else "dim")
    slots, active = sum(p.slots for p in look.workers.values()), sum(p.active for p in look.workers.values())
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    # Where the terminal is narrow names are cut, and troubles, which are looked for, take more lines; numbers stay.
    for name, narrows in (
        (f"WORKER ({len(look.workers)})", True),
        ("HOST", True),
        ("PID", False),
        (f"BUSY ({active} of {slots})", False),
        ("RECEIVED", False),
        ("", True),
    ):
        grid.add_column(name, no_wrap=not narrows)
    for name, pulse in sorted(look.workers.items()):
        troubles = [f"deaf for {span(pulse.deaf_ms)}"] if pulse.deaf else []
        troubles += [f"{count} stuck in {plain(tool, 40)}" for tool, count in pulse.stuck.items()]
        troubles += [f"held by {plain(pulse.held_by, 40)}"] if pulse.held_by else []
        busy = f"{pulse.active} of {pulse.slots}"
        where = (cut(plain(name, 60)), cut(plain(pulse.host, 40)), str(pulse.pid))
        grid.add_row(*where, busy, f"{pulse.received:,}", Text(", ".join(troubles), "red"))
    return grid
