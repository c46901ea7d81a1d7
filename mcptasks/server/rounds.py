"""What a client carries for us from one round of a `tools/call` to the next, in its `requestState`.

The SDK seals it on the way out and refuses what it did not seal for this very call and caller (SEP-2322); here it is
plain text. It is ours only with the prefix: a tool that asks by returning has a state of its own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

_PREFIX: Final = "mcptasks:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """The tool asks on the request itself; there is no task yet."""

    #: Names the call over all its rounds, so that its last one, sent twice, makes one task.
    call_id: str
    #: How often the client was told to come back.
    rounds: int
    #: The tool's own state, in plain text.
    state: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The call waits for its task."""

    task_id: str
    #: As in `Settling`, those before the task included.
    rounds: int
    #: The last progress that the client was told.
    told: float | None = None


def write(state: Settling | Waiting) -> str:
    """The state as text."""
    return _PREFIX + json.dumps(asdict(state), separators=(",", ":"))


def read(text: str | None) -> Settling | Waiting | None:
    """The state that `write` made this text of; None for any other text.

    Raises:
        MCPError: -32602, it is ours, but of another version of mcptasks.
    """
    if text is None or not text.startswith(_PREFIX):
        return None
    try:
        fields = cast("dict[str, Any]", json.loads(text[len(_PREFIX) :]))
        return Waiting(**fields) if "task_id" in fields else Settling(**fields)
    except (ValueError, TypeError):
        # The SDK's own words for a state that it cannot use.
        raise MCPError(INVALID_PARAMS, "Invalid or expired requestState", {"reason": "invalid_request_state"}) from None
