"""The verdict for people, and as JSON for a history."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Group
from rich.table import Table

from tests.chaos.run import Verdict

_SHOWN: Final = 5


def tables(verdict: Verdict) -> Group:
    """The tables to print."""
    return Group(_done(verdict), _promises(verdict))


def _done(verdict: Verdict) -> Table:
    table = Table(title=f"Chaos: {verdict.minutes:g} min, seed {verdict.seed}", title_justify="left")
    table.add_column("faults")
    table.add_column("", justify="right")
    table.add_column("tasks")
    table.add_column("", justify="right")
    left = [*verdict.counted.items(), ("", ""), *sorted(verdict.faults.items())]
    right = list(verdict.figures.items())
    for number in range(max(len(left), len(right))):
        fault, count = left[number] if number < len(left) else ("", "")
        figure, value = right[number] if number < len(right) else ("", "")
        table.add_row(fault, str(count), figure, str(value))
    return table


def _promises(verdict: Verdict) -> Table:
    table = Table(title_justify="left", show_lines=False)
    table.add_column("promise")
    table.add_column("looked at", justify="right")
    table.add_column("broken", justify="right")
    for check in verdict.checks:
        style = "red" if check.broken else "green"
        table.add_row(check.promise, str(check.looked_at), f"[{style}]{len(check.broken)}[/]")
        for text in check.broken[:_SHOWN]:
            table.add_row(f"  [red]{_plain(text)}[/]", "", "")
    return table


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


def document(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg()},
        "minutes": verdict.minutes,
        "seed": verdict.seed,
        "sound": verdict.sound,
        "counted": verdict.counted,
        "faults": verdict.faults,
        "figures": verdict.figures,
        "checks": [
            {"promise": check.promise, "looked_at": check.looked_at, "broken": check.broken} for check in verdict.checks
        ],
        "notes": verdict.notes,
    }
