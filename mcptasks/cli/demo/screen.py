"""What the tour looks like: repainted lines on a terminal, plain ones elsewhere."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from mcptasks.client import TaskHandle
from mcptasks.wire import DetailedTask

#: Who speaks: the left column.
_SPEAKER: Final = 8
_BAR: Final = 32
#: Without a terminal to measure: what a CI log shows unwrapped.
_PLAIN_WIDTH: Final = 100
#: Without a terminal a line per step is enough, not one per percent.
_PLAIN_STEP: Final = 25.0


class Outcome(NamedTuple):
    """What came of a scene: one row of the last table. `task` is a label, never a whole id."""

    task: str
    ending: str
    seconds: float
    proof: str


class Told(NamedTuple):
    """What a running task said last of itself."""

    percent: float
    message: str


def progress(state: DetailedTask) -> Told | None:
    """How far the task is; None while it has not said so."""
    report = state.progress
    if report is None or report.fraction is None:
        return None
    return Told(100 * report.fraction, report.message or "")


class Screen:
    """Everything the tour prints."""

    def __init__(self) -> None:
        plain = not sys.stdout.isatty()
        self._console = Console(highlight=False, width=_PLAIN_WIDTH if plain else None)
        self._live = not plain and not self._console.is_dumb_terminal
        #: What is shown now.
        self.scene = "Getting ready"
        # A terminal that knows no Unicode gets question marks instead of a crash.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")

    def title(self) -> None:
        """The tour begins."""
        self._console.print(Text("mcptasks demo: durable tasks for MCP servers, in five scenes", "bold"))

    def heading(self, number: int, name: str, why: str) -> None:
        """A scene begins."""
        self.scene = name
        self._console.print()
        self._console.rule(Text(f"{number}  {name}", "bold"), align="left", style="cyan")
        self._console.print(Text(why, "italic"))

    def line(self, speaker: str, text: str, style: str = "") -> None:
        """Somebody says something, which may have several lines."""
        row = Table.grid(padding=(0, 2))
        row.add_column(width=_SPEAKER, no_wrap=True)
        row.add_column()
        row.add_row(Text(speaker, style or "cyan"), Text(text, style))
        self._console.print(row)

    def proof(self, text: str) -> None:
        """What was checked, and held."""
        self.line("checked", text, "green")

    @contextmanager
    def waiting(self, what: str) -> Generator[None]:
        """Something is awaited inside the block."""
        if not self._live:
            self.line("", what)
            yield
            return
        with self._console.status(Text(what)):
            yield

    async def follow(self, task: TaskHandle, until: float = 100.0) -> int:
        """The task has ended, or has come that many percent far; returns how many different reports were seen."""
        seen = set[Told]()
        with self._bar() as show:
            async for state in task.changes():
                told = progress(state)
                if told is not None:
                    seen.add(told)
                    show(*told)
                if state.status == "completed":
                    show(100.0, "done")
                if state.terminal or (told is not None and told.percent >= until):
                    break
        return len(seen)

    def table(self, rows: Sequence[tuple[str, Outcome]]) -> None:
        """The end: every scene and what came of it."""
        table = Table(title="What happened", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        table.add_column("Scene", no_wrap=True)
        table.add_column("Task", no_wrap=True, style="cyan")
        table.add_column("Outcome", style="green")
        table.add_column("Time", justify="right", no_wrap=True)
        table.add_column("Proof")
        for name, outcome in rows:
            cells = (name, outcome.task, outcome.ending, f"{outcome.seconds:.1f} s", outcome.proof)
            table.add_row(*map(Text, cells))
        self._console.print()
        self._console.print(table)

    @contextmanager
    def _bar(self) -> Generator[Callable[[float, str], None]]:
        if not self._live:
            yield from self._steps()
            return
        columns = (
            TextColumn(" " * (_SPEAKER + 1)),
            BarColumn(bar_width=_BAR),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )
        with Progress(*columns, console=self._console) as progress:
            bar = progress.add_task("", total=100)
            yield lambda percent, message: progress.update(bar, completed=percent, description=message)

    def _steps(self) -> Generator[Callable[[float, str], None]]:
        printed, last = -_PLAIN_STEP, ""

        def show(percent: float, message: str) -> None:
            nonlocal printed, last
            last = f"{percent:3.0f} %  {message}"
            if percent >= printed + _PLAIN_STEP or printed < percent == 100:
                printed = percent
                self.line("", last)
                last = ""

        yield show
        if last:
            self.line("", last)
