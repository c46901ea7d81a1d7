"""Tasks in rows: for people, with a bar where one moves, and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mcptasks.cli.operating import status_text
from mcptasks.model import Record, label
from mcptasks.progress import Progress
from mcptasks.shown import note_of, plain, said, span
from mcptasks.store.lists import Summary
from mcptasks.times import iso

_FIXED: Final = ("ID", "TOOL", "STATUS", "OWNER", "AGE", "RUN")
#: Those of them that may be shown in part.
_CUT: Final = frozenset({"TOOL", "OWNER"})


def as_json(task: Summary) -> dict[str, Any]:
    """The task as `ps --json` shows it: its questions are a number."""
    return {**common_json(task), "questions": task.questions}


def common_json(task: Summary | Record) -> dict[str, Any]:
    """What every `--json` shows of a task; times in ISO 8601."""
    return {
        "id": task.task_id,
        "tool": task.tool,
        "owner": task.owner,
        "status": task.status,
        "reason": task.reason,
        "message": task.status_message,
        "progress": _progress_json(task.progress),
        "created": iso(task.created_ms),
        "updated": iso(task.updated_ms),
        "ttl_ms": task.ttl_ms,
        "attempt": task.attempt,
        "cancel_requested": task.cancel_requested,
        "worker": task.worker,
        "queue": task.queue,
        "version": task.version,
    }


def _progress_json(progress: Progress | None) -> dict[str, Any] | None:
    """What a tool reported last, in numbers."""
    if progress is None:
        return None
    told = {"done": progress.done, "total": progress.total, "message": progress.message}
    return {**told, "rate_per_second": progress.rate, "left_s": progress.left_s}


def table(tasks: Sequence[Summary], now_ms: int, *, bars: bool = False) -> Table:
    """One row a task, in one line. `bars`: its progress as a bar, for a table that is painted again and again."""
    rows = [
        (
            Text(label(task.task_id)),
            cut(plain(task.tool, 40)),
            status_text(task.status, note_of(task)),
            cut(plain(task.owner, 20)),
            Text(span(now_ms - task.created_ms)),
            Text(str(task.attempt)),
            *([_bar(task)] if bars else []),
            cut(said(task)),
        )
        for task in tasks
    ]
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=bars)
    for name in _FIXED:
        # Where the terminal is narrow, what people wrote is cut; a part of an id or a number is no use.
        grid.add_column(name, no_wrap=name not in _CUT)
    if bars:
        grid.add_column("PROGRESS", ratio=1)
    grid.add_column("" if bars else "PROGRESS", ratio=2 if bars else None)
    for row in rows:
        grid.add_row(*row)
    return grid


def cut(text: str) -> Text:
    """The text in one line, of which a narrow column shows the beginning. Its column must not be `no_wrap` itself.

    Only columns that may wrap are made narrower; where none may, rich takes from all alike until some are gone.
    """
    return Text(text, no_wrap=True, overflow="ellipsis")


def _bar(task: Summary) -> RenderableType:
    fraction = None if task.progress is None else task.progress.fraction
    if fraction is None or task.status.terminal:
        return ""
    return ProgressBar(total=1.0, completed=fraction)
