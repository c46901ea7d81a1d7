"""Log lines as JSON objects, one per line, each with the task and the trace that it belongs to."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from opentelemetry import trace
from opentelemetry.trace import format_span_id, format_trace_id

from mcptasks.model import label


class _Subject(NamedTuple):
    task_id: str
    tool: str


_subject: Final[ContextVar[_Subject | None]] = ContextVar("mcptasks_log_subject", default=None)


@contextmanager
def about(task_id: str, tool: str = "") -> Generator[None]:
    """What is logged inside the block is about this task; its tool's own lines, too."""
    token = _subject.set(_Subject(label(task_id), tool))
    try:
        yield
    finally:
        _subject.reset(token)


class JsonFormatter(logging.Formatter):
    """A line is one object: time (UTC, ISO 8601), level, logger, message.

    And task_id (the id's label, as everywhere in logs), tool, trace_id, span_id, exception, stack: where there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (subject := _subject.get()) is not None:
            fields["task_id"] = subject.task_id
            if subject.tool:
                fields["tool"] = subject.tool
        if (span := trace.get_current_span().get_span_context()).is_valid:
            fields |= {"trace_id": format_trace_id(span.trace_id), "span_id": format_span_id(span.span_id)}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        return json.dumps(fields)


def write_json(handlers: Iterable[logging.Handler]) -> None:
    """What these handlers write from now on is such lines."""
    for handler in handlers:
        handler.setFormatter(JsonFormatter())


def log_json() -> None:
    """Everything this process logs goes to standard error as such lines, at the levels that were set."""
    handler = logging.StreamHandler()
    write_json([handler])
    root = logging.getLogger()
    for other in list(root.handlers):
        root.removeHandler(other)
    root.addHandler(handler)
