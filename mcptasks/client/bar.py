"""A progress bar for a task, on the terminal of whoever waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Final

from mcp.shared.exceptions import MCPError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from mcptasks.client.handle import TaskHandle
from mcptasks.model import label
from mcptasks.wire import DetailedTask

_WIDTH: Final = 30


@asynccontextmanager
async def progress_bar(
    handle: TaskHandle, description: str = "", *, console: Console | None = None
) -> AsyncGenerator[None]:
    """Inside the block a bar shows how far the task is and how long it will take; then it stands at the task's end.

    It only watches: wait for the task inside the block, with `handle.result()` for instance. While the task asks
    something the bar stands still, so that a callback may use the terminal. A bar that cannot follow its task (the
    server is away) stops and raises nothing. Where the output is no terminal, only the end is printed.

    Args:
        description: shown until the tool says something itself.
        console: of rich; by default one on standard output.
    """
    bar = _Bar(handle, description, console)
    painting = asyncio.get_running_loop().create_task(bar.follow())
    try:
        yield
    finally:
        painting.cancel()
        await asyncio.wait({painting})
        bar.close()


class _Bar:
    """One row of rich's."""

    def __init__(self, handle: TaskHandle, description: str, console: Console | None) -> None:
        self._handle = handle
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(_WIDTH),
            TextColumn("{task.fields[numbers]}", markup=False),
            TextColumn("{task.fields[estimate]}", style="dim", markup=False),
        )
        self._progress = Progress(*columns, console=console)
        text = description or f"Task {label(handle.task_id)}".strip()
        self._row = self._progress.add_task(text, total=None, numbers="", estimate="")
        self._progress.start()

    async def follow(self) -> None:
        """The bar has shown every change of the task up to its end, as far as it could be followed."""
        try:
            async with aclosing(self._handle.changes()) as changes:
                async for task in changes:
                    self._show(task)
        except MCPError:
            return  # whoever waits for the task is told

    def close(self) -> None:
        """The last that is known of the task stands there."""
        if self._handle.latest is not None:
            self._show(self._handle.latest)
        self._progress.stop()

    def _show(self, task: DetailedTask) -> None:
        told = task.progress
        if told is not None:
            self._progress.update(
                self._row,
                description=told.message,
                total=None if told.fraction is None else told.total,
                completed=max(0.0, told.done),
                numbers=told.numbers,
                estimate=told.estimate,
            )
        elif task.status_message and not task.terminal:
            self._progress.update(self._row, description=task.status_message)
        if task.terminal:
            whole = (self._progress.tasks[0].total or 1.0) if task.status == "completed" else None
            self._progress.update(self._row, total=whole, completed=whole, numbers=task.status, estimate="")
        # Its terminal is needed for the answer; what it has printed so far stays.
        if task.status == "input_required":
            self._progress.stop()
        else:
            self._progress.start()
