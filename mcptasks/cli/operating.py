"""What the operators' commands share: a task's name, the fleet, and how moments and strangers' texts are shown."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, Final, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from mcptasks.cli.shared_store import running_on
from mcptasks.errors import ArtifactsUnavailable, MCPTasksError, StoreUnavailable
from mcptasks.model import Status
from mcptasks.operations import Operations
from mcptasks.settings import Settings
from mcptasks.shown import plain

T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _ids(incomplete: str) -> list[tuple[str, str]]:
    """For the shell's Tab: the newest tasks of that beginning, unfinished ones if there are, and what they are."""

    async def begins(fleet: Operations) -> list[tuple[str, str]]:
        for statuses in (UNFINISHED, tuple(Status)):
            page = await fleet.page(statuses=statuses, limit=_COMPLETED)
            if found := [task for task in page.tasks if task.task_id.startswith(incomplete)]:
                return [(task.task_id, f"{plain(task.tool, 40)}, {task.status}") for task in found]
        return []

    try:
        return on_fleet(begins)
    except MCPTasksError:  # a Tab is no place for it; the command itself tells
        return []


TaskId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The task's id, or its beginning (at least 4 characters).", autocompletion=_ids),
]

UNFINISHED: Final = tuple(status for status in Status if not status.terminal)

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

#: The newest so many are offered at a Tab.
_COMPLETED: Final = 100

_BEYOND_ASCII: Final = re.compile(r"[^\n -~]")

#: Of what is read by `grep` and the like.
_PIPE_WIDTH: Final = 200


def fleets_settings() -> Settings:
    """The environment's, with the embedded store of a `mcptasks dev` in this folder where they name none."""
    settings = Settings.load()
    if "redis_url" not in settings.model_fields_set and (url := running_on()):
        return settings.model_copy(update={"redis_url": url})
    return settings


def on_fleet(call: Callable[[Operations], Awaitable[T]]) -> T:
    """What the call came to, with a connection of its own to the store that the environment names.

    Where it names none, that is the embedded one of a `mcptasks dev` in this folder, if one runs.
    """
    settings = fleets_settings()

    async def connected() -> T:
        async with Operations(settings, operator=who()) as fleet:
            return await call(fleet)

    return finished(connected(), settings)


def finished(work: Coroutine[Any, Any, T], settings: Settings) -> T:
    """What the work on that store came to; where it does not answer and nothing names it, the error says what to do."""
    try:
        return asyncio.run(work)
    except ArtifactsUnavailable:
        raise
    except StoreUnavailable as exc:
        if "redis_url" in settings.model_fields_set:
            raise
        raise StoreUnavailable(
            f"{exc} Nothing names a store, and no `mcptasks dev` runs in {os.getcwd()}: run this in the folder of "
            "yours, or set MCPTASKS_REDIS_URL to the store that `mcptasks doctor` finds there."
        ) from exc


def console() -> Console:
    """Standard output, for people; as wide as its terminal, and wide where it is none."""
    screen = Console(highlight=False)
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = _PIPE_WIDTH
    return screen


def print_json(value: Any) -> None:
    """The value stands on standard output, for programs, and for the terminals that people let them write to.

    Letters of all languages as they are; what a terminal would obey, and half characters, as JSON's escapes.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False)
    typer.echo(_BEYOND_ASCII.sub(lambda char: char[0] if char[0].isprintable() else json.dumps(char[0])[1:-1], text))


def status_text(status: Status, note: str = "") -> Text:
    """The status as people see it."""
    return Text(f"{status}{f' ({note})' if note else ''}", STYLES[status])


def who() -> str:
    """Who acts: what operators leave behind where the store has a place for it."""
    if name := os.environ.get("MCPTASKS_OPERATOR"):
        return plain(name, 80)
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"
