"""A tool's log messages, for its task's timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcptasks.errors import BadPayload
from mcptasks.store.base import cut
from mcptasks.strict_json import dumps


def log_line(params: Mapping[str, Any]) -> str:
    """A `notifications/message` as JSON for the timeline."""
    data, logger = params.get("data"), params.get("logger")
    said = {"level": str(params.get("level")), "text": cut(data if isinstance(data, str) else _as_text(data))}
    return dumps(said | ({"logger": cut(logger)} if isinstance(logger, str) else {}), "A log message")


def _as_text(data: Any) -> str:
    try:
        return dumps(data, "A log message")
    except BadPayload as exc:
        return str(exc)
