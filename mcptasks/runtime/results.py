"""The tool's result in the exact form the live call would have sent, as JSON text fit for the store."""

from __future__ import annotations

import logging
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolResult, ErrorData, TextContent
from mcp_types.methods import serialize_server_result

from mcptasks.errors import BadPayload
from mcptasks.model import Submission, label
from mcptasks.runtime.outcome import Completed, Failed, error
from mcptasks.settings import Settings
from mcptasks.wire import check_depth, clean, dumps

log: Final = logging.getLogger("mcptasks.runtime")


def completed(result: CallToolResult, submission: Submission, settings: Settings, task_id: str) -> Completed | Failed:
    """The outcome of a tool that returned this.

    What JSON cannot carry ends as the tool's own error, which names it: NaN, infinities, a nesting too deep, a result
    over `settings.result_max`. A lone surrogate costs one character (U+FFFD), not the task.
    """
    try:
        payload = dumps(to_wire(result, submission.protocol_version), "The result")
    except (BadPayload, RecursionError) as exc:
        why = str(exc) if isinstance(exc, BadPayload) else "The result nests too deep"
        return _tool_error(submission, why)
    except ValueError as exc:  # what pydantic says to what it cannot validate, serialize or encode
        # By its type only: pydantic's text repeats what it could not take.
        name = type(exc).__name__
        log.error("Task %s: the tool %r returned an invalid result: %s", label(task_id), submission.tool, name)
        return Failed(error(INTERNAL_ERROR, "Handler returned an invalid result"))
    if len(payload) > settings.result_max:
        return _tool_error(
            submission,
            f"The result has {len(payload):,} bytes; the limit is {settings.result_max:,} bytes (MCPTASKS_RESULT_MAX)",
        )
    return Completed(payload)


def failed(exc: MCPError, settings: Settings) -> Failed:
    """The outcome of a tool that ended with this protocol error: its code, message and data.

    Data that JSON cannot carry, or over `settings.result_max`, is left out, and the message says so: what a tool puts
    there must not keep its task from ending.
    """
    code, message, data = exc.error.code, clean(exc.error.message), exc.error.data
    try:
        check_depth(data, "The error")
        wire = ErrorData(code=code, message=message, data=clean(data)).model_dump(mode="json", exclude_none=True)
        if len(dumps(wire, "The error")) <= settings.result_max:
            return Failed(wire)
    except (BadPayload, ValueError):
        pass
    return Failed(error(code, f"{message} (its data cannot be sent as JSON)"))


def to_wire(result: CallToolResult, version: str) -> dict[str, Any]:
    """What the SDK's runner makes of a handler's result, minus the `serverInfo` stamp that the server puts on later.

    Raises:
        ValueError: pydantic cannot serialize the result, or it does not fit the protocol version.
        BadPayload: its structured content nests too deep.
    """
    try:
        dumped = _dump(result)
    except ValueError:  # too deep for pydantic, or a lone surrogate in the name of a member
        check_depth(result.structured_content, "The result")
        dumped = _dump(result.model_copy(update={"structured_content": clean(result.structured_content)}))
    return clean(serialize_server_result("tools/call", version, dumped))


def _dump(result: CallToolResult) -> dict[str, Any]:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


def _tool_error(submission: Submission, why: str) -> Completed:
    text = f"Error executing tool {submission.tool}: {why}"
    result = CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
    return Completed(dumps(to_wire(result, submission.protocol_version), "The error"))
