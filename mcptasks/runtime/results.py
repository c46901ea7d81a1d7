"""The tool's result in the exact form the live call would have sent, as JSON text fit for the store."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import anyio.to_thread
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolResult, ErrorData, TextContent
from mcp_types.methods import serialize_server_result

from mcptasks.errors import BadPayload, ClaimLost, ConfigurationError
from mcptasks.links import RESULT_NAME, WHOLE_RESULT, Artifact
from mcptasks.model import Claim, Submission, label
from mcptasks.pieces import pieces
from mcptasks.runtime.outcome import Completed, Failed, Superseded, error
from mcptasks.runtime.patience import patiently
from mcptasks.runtime.shelf import Shelf, link_of
from mcptasks.settings import Settings
from mcptasks.store.files import BLOCK
from mcptasks.strict_json import check_depth, clean, dumps

log: Final = logging.getLogger("mcptasks.runtime")

_WHAT: Final = "The result"
#: Bytes of a large result's text that stand in its place, and of the metadata that stay with it.
_SUMMARY_MAX: Final = 2_048
#: The first version that has links to resources in results.
_KNOWS_LINKS: Final = "2025-06-18"


async def completed(
    result: CallToolResult, submission: Submission, settings: Settings, claim: Claim, shelf: Shelf
) -> Completed | Failed | Superseded:
    """The outcome of a tool that returned this. What is over `settings.result_inline_max` is an artifact by then.

    What JSON cannot carry ends as the tool's own error, which names it: NaN, infinities, a nesting too deep, a result
    over `settings.result_max`. A lone surrogate costs one character (U+FFFD), not the task.

    Raises:
        StoreUnavailable: store or files stayed away for ten minutes.
    """
    try:
        wire = to_wire(result, submission.protocol_version)
        links = await shelf.links() if submission.protocol_version >= _KNOWS_LINKS else []
        linked = {block.get("uri") for block in wire["content"]}
        wire["content"] += [link for link in links if link["uri"] not in linked]
        if (payload := _at_most(min(settings.result_inline_max, settings.result_max), wire)) is not None:
            return Completed(payload)
        size = await anyio.to_thread.run_sync(_size, wire)
    except (BadPayload, RecursionError) as exc:
        why = str(exc) if isinstance(exc, BadPayload) else f"{_WHAT} nests too deep"
        return _tool_error(submission, why)
    except ValueError as exc:  # what pydantic says to what it cannot validate, serialize or encode
        # By its type only: pydantic's text repeats what it could not take.
        name = type(exc).__name__
        log.error("Task %s: the tool %r returned an invalid result: %s", label(claim.task_id), submission.tool, name)
        return Failed(error(INTERNAL_ERROR, "Handler returned an invalid result"))
    if size > settings.result_max:
        return _tool_error(
            submission,
            f"{_WHAT} has {size:,} bytes; the limit is {settings.result_max:,} bytes (MCPTASKS_RESULT_MAX). "
            "What is large belongs into an artifact (mcptasks.artifact)",
        )
    try:
        whole = await patiently(
            lambda: shelf.put(RESULT_NAME, "application/json", lambda: _encoded(wire), size, _WHAT),
            f"Task {label(claim.task_id)}",
        )
    except ClaimLost as exc:
        log.warning("Task %s: %s", label(claim.task_id), exc)
        return Superseded("LOST")
    except ConfigurationError as exc:
        return Failed(error(INTERNAL_ERROR, f"{_WHAT} has {size:,} bytes and cannot be kept. {exc}"))
    return Completed(dumps(_in_short(wire, claim.task_id, whole, links), _WHAT))


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
        check_depth(result.structured_content, _WHAT)
        dumped = _dump(result.model_copy(update={"structured_content": clean(result.structured_content)}))
    return clean(serialize_server_result("tools/call", version, dumped))


def _dump(result: CallToolResult) -> dict[str, Any]:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


def _tool_error(submission: Submission, why: str) -> Completed:
    text = f"Error executing tool {submission.tool}: {why}"
    result = CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
    return Completed(dumps(to_wire(result, submission.protocol_version), "The error"))


# ------------------------------------------------------------------------------------------------ large ones


def _at_most(limit: int, wire: dict[str, Any]) -> str | None:
    """The JSON; None: it has more bytes than these."""
    gathered: list[str] = []
    for piece in pieces(wire, _WHAT):
        gathered.append(piece)
        limit -= len(piece)
        if limit < 0:
            return None
    return "".join(gathered)


def _size(wire: dict[str, Any]) -> int:
    return sum(len(piece) for piece in pieces(wire, _WHAT))


async def _encoded(wire: dict[str, Any]) -> AsyncIterator[bytes]:
    """The JSON in blocks, each made in a thread: the loop has other runs."""
    source = pieces(wire, _WHAT)

    def block() -> bytes:
        gathered = bytearray()
        for piece in source:
            gathered += piece.encode()
            if len(gathered) >= BLOCK:
                break
        return bytes(gathered)

    while chunk := await anyio.to_thread.run_sync(block):
        yield chunk


def _in_short(wire: dict[str, Any], task_id: str, whole: Artifact, links: list[dict[str, Any]]) -> dict[str, Any]:
    """What stands for a large result: how it begins, and where it is. Structured content cannot be shortened."""
    text = next((str(block["text"]) for block in wire["content"] if block["type"] == "text"), "")
    head = text[:_SUMMARY_MAX]
    while len(dumps(head, _WHAT)) > _SUMMARY_MAX:
        head = head[: len(head) // 2]
    said = f"{head}{'…' if len(head) < len(text) else ''}\n\n" if head else ""
    said += f"[The whole result has {whole.size:,} bytes of JSON and is in the resource linked here.]"
    link = link_of(task_id, whole, name="result.json", description="The whole result of the tool, as JSON")
    meta = wire.get("_meta", {})
    if len(dumps(meta, _WHAT)) > _SUMMARY_MAX:
        meta = {}
    short = {name: wire[name] for name in ("resultType", "isError") if name in wire}
    return {
        **short,
        "content": [{"type": "text", "text": said}, link, *links],
        "_meta": {**meta, WHOLE_RESULT: link["uri"]},
    }
