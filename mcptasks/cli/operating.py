"""What the operators' commands share: a task's name, the fleet, and how moments and strangers' texts are shown."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from mcptasks.cli.shared_store import running_on
from mcptasks.model import Status
from mcptasks.operations import Operations
from mcptasks.settings import Settings

T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id, or its beginning (at least 4 characters).")]

STYLES: Final = {
    Status.QUEUED: "",
    Status.RUNNING: "green",
    Status.PARKED: "bold yellow",
    Status.RETRYING: "yellow",
    Status.SLEEPING: "cyan",
    Status.COMPLETED: "dim",
    Status.FAILED: "red",
    Status.CANCELLED: "dim",
}

#: Of what is read by `grep` and the like.
_PIPE_WIDTH: Final = 200

_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def on_fleet(call: Callable[[Operations], Awaitable[T]]) -> T:
    """What the call came to, with a connection of its own to the store that the environment names.

    Where it names none, that is the embedded one of a `mcptasks dev` in this folder, if one runs.
    """
    settings = Settings.load()
    if "redis_url" not in settings.model_fields_set and (url := running_on()):
        settings = settings.model_copy(update={"redis_url": url})

    async def connected() -> T:
        async with Operations(settings) as fleet:
            return await call(fleet)

    return asyncio.run(connected())


def console() -> Console:
    """Standard output, for people; as wide as its terminal, and wide where it is none."""
    screen = Console(highlight=False)
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = _PIPE_WIDTH
    return screen


def print_json(value: Any) -> None:
    """The value stands on standard output, for programs."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def plain(text: str, limit: int = 500) -> str:
    """The text in one line without anything that a terminal would obey: it was written by callers and tools."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."


def plain_lines(text: str, limit: int = 50) -> list[str]:
    """The same of a text that has lines, as questions to people do; at most so many of them."""
    lines = [plain(line.expandtabs(4)) for line in text.strip().splitlines()]
    return lines if len(lines) <= limit else [*lines[: limit - 1], f"... and {len(lines) - limit + 1} lines more"]


def status_text(status: Status, note: str = "") -> Text:
    """The status as people see it."""
    return Text(f"{status}{f' ({note})' if note else ''}", STYLES[status])


def span(ms: int) -> str:
    """How long, in its two largest units: "3d 4h", "12s"."""
    left, parts = max(ms, 0), list[str]()
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def who() -> str:
    """Who acts: what operators leave behind where the store has a place for it."""
    if name := os.environ.get("MCPTASKS_OPERATOR"):
        return plain(name, 80)
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"
