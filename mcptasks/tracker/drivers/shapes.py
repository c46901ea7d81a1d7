"""What tasks look like on the wire, checked; and what an error about a task means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn, cast

from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_PARAMS, PARSE_ERROR, REQUEST_TIMEOUT

from mcptasks.tracker.peer import Peer
from mcptasks.tracker.remote import (
    HANDLE_MAX,
    ProtocolBroken,
    RemoteGone,
    RemoteRefused,
    RemoteStatus,
    RemoteUnavailable,
    Snapshot,
)

#: The server had a trouble of its own (its store away), or something in front of it answered in its place.
_TRANSIENT: Final = frozenset({INTERNAL_ERROR, PARSE_ERROR, CONNECTION_CLOSED, REQUEST_TIMEOUT})

_STATUSES: Final = {status.value: status for status in RemoteStatus}


def judge(server: str, refused: RemoteRefused, *, about_a_task: bool) -> NoReturn:
    """Raise what a JSON-RPC error means.

    Raises:
        RemoteUnavailable: it says nothing about the task or the call.
        RemoteGone: it is about a task, and the server knows none such.
        RemoteRefused: anything else.
    """
    if refused.code in _TRANSIENT:
        raise RemoteUnavailable(f"Server {server!r} has a problem of its own ({refused.code})") from refused
    if about_a_task and refused.code == INVALID_PARAMS:
        raise RemoteGone(f"Server {server!r} knows no such task") from refused
    raise refused


async def ask(peer: Peer, method: str, params: Mapping[str, Any], *, handle: str) -> dict[str, Any]:
    """The result of a request about a task; raises as `judge`, and as `Peer.request`."""
    try:
        return await peer.request(method, params, name=handle)
    except RemoteRefused as exc:
        judge(peer.server, exc, about_a_task=True)


def new_handle(task: Mapping[str, Any], server: str) -> str:
    """The id of a task that was just made.

    Raises:
        ProtocolBroken: there is none, or none that can be kept; carries it where it is a text.
    """
    handle = task.get("taskId")
    if not isinstance(handle, str):
        raise ProtocolBroken(f"Server {server!r} made a task without an id that is a text")
    if not 0 < len(handle) <= HANDLE_MAX:
        raise ProtocolBroken(
            f"Server {server!r} made a task whose id has {len(handle):,} characters; 1 to {HANDLE_MAX:,} can be kept",
            handle=handle,
        )
    return handle


def seed(task: Mapping[str, Any], handle: str, server: str, *, hint: str) -> Snapshot:
    """The state of a task that was just made, without its payload, which the first look has.

    Raises:
        ProtocolBroken: its status is none; carries the handle.
    """
    try:
        status = status_of(task, server)
    except ProtocolBroken as exc:
        exc.handle = handle
        raise
    seeded = status if status is RemoteStatus.CANCELLED else RemoteStatus.WORKING
    return Snapshot(status=seeded, message=message_of(task), hint=task.get(hint))


def same_task(task: Mapping[str, Any], handle: str, server: str) -> None:
    """The answer is about the task that was asked for.

    Raises:
        ProtocolBroken: it is about another one, or about none.
    """
    if task.get("taskId") != handle:
        raise ProtocolBroken(f"Server {server!r} answered about another task than the one it was asked about")


def status_of(task: Mapping[str, Any], server: str) -> RemoteStatus:
    """The task's status.

    Raises:
        ProtocolBroken: there is none.
    """
    status = task.get("status")
    if not isinstance(status, str) or status not in _STATUSES:
        raise ProtocolBroken(f"Server {server!r} sent a task whose status is none of {', '.join(_STATUSES)}")
    return _STATUSES[status]


def message_of(task: Mapping[str, Any]) -> str | None:
    """The task's status message; what is no text is no message."""
    message = task.get("statusMessage")
    return message if isinstance(message, str) else None


def questions_of(requests: object, server: str) -> dict[str, Any]:
    """The open questions, each `{"method", "params"}`; none where the member is absent.

    Raises:
        ProtocolBroken: they are no map of requests.
    """
    if requests is None:
        return {}
    if not isinstance(requests, dict):
        raise ProtocolBroken(f"Server {server!r} sent questions that are no map of requests")
    found = cast("dict[str, Any]", requests)
    for request in found.values():
        params = request.get("params", {}) if isinstance(request, dict) else None
        if not isinstance(params, dict) or not isinstance(request.get("method"), str):
            raise ProtocolBroken(f"Server {server!r} sent a question that is no request")
    return {key: {"method": each["method"], "params": each.get("params", {})} for key, each in found.items()}


def result_of(result: object, server: str) -> dict[str, Any]:
    """A CallToolResult.

    Raises:
        ProtocolBroken: it is none.
    """
    if not isinstance(result, dict) or not isinstance(result.get("content"), list):
        raise ProtocolBroken(f"Server {server!r} sent a result that is none of a tool")
    return cast("dict[str, Any]", result)


def error_of(error: object, server: str) -> dict[str, Any]:
    """A JSON-RPC error.

    Raises:
        ProtocolBroken: it is none.
    """
    found = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    if type(found.get("code")) is not int or not isinstance(found.get("message"), str):
        raise ProtocolBroken(f"Server {server!r} sent a failed task without an error")
    return found
