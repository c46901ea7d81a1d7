"""MCPTASKS_LOG_FORMAT=json: an object per line, with the task and the trace that it belongs to."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Generator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext

from mcptasks.observe.logs import JsonFormatter, about, write_json

TASK = "HaNMe1YsX2_0123456789abcdefghijk"


@pytest.fixture
def lines() -> Generator[io.StringIO]:
    """What the logger of this file writes."""
    out = io.StringIO()
    handler, logger = logging.StreamHandler(out), logging.getLogger(__name__)
    write_json([handler])
    logger.addHandler(handler)
    logger.propagate = False
    yield out
    logger.removeHandler(handler)
    logger.propagate = True


def parsed(lines: io.StringIO) -> dict[str, Any]:
    """The only line."""
    [line] = lines.getvalue().splitlines()
    return json.loads(line)


def test_a_line_is_an_object_whatever_its_message_holds() -> None:
    """A message with line breaks and quotes must not look like another line, nor half an emoji break the stream."""
    said = 'two\nlines, a "quote" and \u00e4\ud800'
    text = JsonFormatter().format(logging.LogRecord("some", logging.WARNING, "", 1, "%s", (said,), None))
    assert text.isascii() and "\n" not in text
    line = json.loads(text)
    assert line.keys() == {"time", "level", "logger", "message"}
    assert line["message"] == said, "as it was"
    assert (line["level"], line["logger"]) == ("WARNING", "some") and line["time"].endswith("+00:00")


def test_a_line_names_its_task_by_the_label_and_its_trace(lines: io.StringIO) -> None:
    """The rest of an id is its owner's secret, in JSON as in text."""
    with about(TASK, "report"), trace.use_span(NonRecordingSpan(SpanContext(0xA, 0xB, is_remote=False))):
        logging.getLogger(__name__).warning("x")
    line = parsed(lines)
    assert (line["task_id"], line["tool"]) == (TASK[:10], "report")
    assert (line["trace_id"], line["span_id"]) == (f"{0xA:032x}", f"{0xB:016x}")


def test_after_a_task_its_name_is_gone(lines: io.StringIO) -> None:
    with about(TASK):
        pass
    logging.getLogger(__name__).warning("x")
    assert "task_id" not in parsed(lines)


def test_an_exception_stands_in_its_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger(__name__).exception("failed")
    assert "ValueError: no" in parsed(lines)["exception"]
