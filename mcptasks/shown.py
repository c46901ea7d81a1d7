"""How tasks are told to people, in a terminal and in a browser: the same words for the same things."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Final

from mcptasks.links import RESULT_NAME, Artifact
from mcptasks.model import Record, Status
from mcptasks.observe.timeline import Entry
from mcptasks.store.lists import Summary

_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def plain(text: str, limit: int = 500) -> str:
    """The text in one line without anything that a terminal would obey: it was written by callers and tools."""
    part = text[: limit + 1]
    shown = "".join(char if char.isprintable() else " " for char in part)
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."


def plain_lines(text: str, limit: int = 50) -> list[str]:
    """The same of a text that has lines, as questions to people do; at most so many of them."""
    lines = [plain(line.expandtabs(4)) for line in text.strip().splitlines()]
    return lines if len(lines) <= limit else [*lines[: limit - 1], f"... and {len(lines) - limit + 1} lines more"]


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


def note_of(task: Summary | Record) -> str:
    """What stands beside a task's status: why it ended, how many questions are open, that it is being cancelled."""
    if task.status.terminal:
        return "" if task.reason in (None, str(task.status)) else str(task.reason).replace("_", " ")
    count = task.questions if isinstance(task, Summary) else 0
    return ", ".join([*([f"{count} open"] if count else []), *(["cancelling"] if task.cancel_requested else [])])


def said(task: Summary) -> str:
    """What the task says of itself, with the time that is left where that can be told."""
    progress = task.progress
    if progress is None or task.status.terminal or not progress.text:
        return plain(task.status_message or "")
    estimate = progress.estimate if task.status is Status.RUNNING else ""
    return plain(f"{progress.text}{f', {estimate}' if estimate else ''}")


def outcome(task: Record, artifacts: Sequence[Artifact]) -> str:
    """What kind of result the task has, and how large, without any of it; empty: it has none."""
    result = task.result
    if result is None:
        return ""
    kind = "a tool error" if result.get("isError") else "there"
    whole = next((one.size for one in artifacts if one.name == RESULT_NAME), None)
    # What stands in the record for a large one says nothing of its kinds.
    if whole is not None:
        return f"{kind}, {whole:,} bytes"
    kinds = Counter(str(block.get("type")).replace("_", " ") for block in result.get("content") or ())
    parts = [kind if count == 1 else f"{count} x {kind}" for kind, count in kinds.items()]
    parts += ["structured"] if "structuredContent" in result else []
    size = len(json.dumps(result))
    return plain(f"{kind}, {size:,} bytes: {', '.join(parts)}" if parts else f"{kind}, {size:,} bytes")


def about(entry: Entry) -> str:
    """What people want to know of an entry of a timeline; `--json` has all. Not made printable."""
    told = entry.about
    match entry.what:
        case "progress":
            reports = f" ({told['reports']} reports)" if told["reports"] > 1 else ""
            return f"{told.get('message') or told['last']}{reports}"
        case "ask":
            return ", ".join(str(one.get("label") or one["key"]) for one in told["questions"])
        case "answer":
            return f"{_by(entry)}: {', '.join(told['keys'])}"
        case "cancel":
            return ": ".join([_by(entry), *([told["why"]] if "why" in told else [])])
        case "retry":
            return f"number {told['number']}, in {span(told['delayMs'])}: {told['message']}"
        case "log" | "note":
            level = f"{told['level']}: " if "level" in told else ""
            data = f" {json.dumps(told['data'])}" if "data" in told else ""
            return f"{level}{told.get('text', '')}{data}"
        case _:
            return str(entry).partition(" ")[2].partition(": ")[2]


def _by(entry: Entry) -> str:
    name = f" {entry.about['operator']}" if "operator" in entry.about else ""
    return f"by {entry.about['by']}{name}"
