"""The tool's result in the exact form the live call would have sent, as JSON text fit for the store."""

from __future__ import annotations

import logging
from typing import Any, Final

from mcp_types import INTERNAL_ERROR, CallToolResult, TextContent
from mcp_types.methods import serialize_server_result
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from mcptasks.errors import BadPayload
from mcptasks.model import Submission, label
from mcptasks.runtime.outcome import Completed, Failed, error
from mcptasks.settings import Settings
from mcptasks.wire import clean, dumps

log: Final = logging.getLogger("mcptasks.runtime")


def completed(result: CallToolResult, submission: Submission, settings: Settings, task_id: str) -> Completed | Failed:
    """The outcome of a tool that returned this.

    What JSON cannot carry ends as the tool's own error, which names it: NaN, infinities, a nesting too deep, a result
    over `settings.result_max`. A lone surrogate costs one character (U+FFFD), not the task.
    """
    try:
        wire = to_wire(result, submission.protocol_version)
        payload = dumps(wire, "The result")
    except (ValidationError, PydanticSerializationError):
        # As the SDK's own serializer: the detail stays here, it may echo the result.
        log.exception("Task %s: the tool %r returned an invalid result", label(task_id), submission.tool)
        return Failed(error(INTERNAL_ERROR, "Handler returned an invalid result"))
    except (BadPayload, RecursionError) as exc:
        why = str(exc) if isinstance(exc, BadPayload) else "The result nests too deep"
        return _tool_error(submission, why)
    if len(payload) > settings.result_max:
        return _tool_error(
            submission,
            f"The result has {len(payload):,} bytes; the limit is {settings.result_max:,} bytes (MCPTASKS_RESULT_MAX)",
        )
    return Completed(payload)


def to_wire(result: CallToolResult, version: str) -> dict[str, Any]:
    """What the SDK's runner makes of a handler's result, minus the `serverInfo` stamp that the server puts on later.

    Raises:
        ValidationError: the result does not fit the protocol version.
    """
    dumped = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return clean(serialize_server_result("tools/call", version, dumped))


def _tool_error(submission: Submission, why: str) -> Completed:
    text = f"Error executing tool {submission.tool}: {why}"
    result = CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
    return Completed(dumps(to_wire(result, submission.protocol_version), "The error"))
