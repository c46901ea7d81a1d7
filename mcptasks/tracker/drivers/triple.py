"""Servers that know no tasks, but have tools that start a job, say how it goes, and cancel it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final, cast

from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from mcptasks.tracker.drivers.shapes import judge, new_handle, result_of
from mcptasks.tracker.drivers.tasks import at_once, keyed
from mcptasks.tracker.peer import Peer
from mcptasks.tracker.pointers import fill, find, parts
from mcptasks.tracker.remote import (
    Accepted,
    ProtocolBroken,
    PushUnavailable,
    RemoteGone,
    RemoteRefused,
    RemoteStatus,
    RemoteUnavailable,
    Snapshot,
)
from mcptasks.tracker.strict import read
from mcptasks.wire import IDEMPOTENCY_HEADER

_STRICT: Final = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

#: What the words mean where the configuration does not say: MCP's own.
_WORDS: Final = {status.value: status for status in RemoteStatus}


class ToolCall(BaseModel):
    """One call of a tool. In `arguments`, "$handle" stands for the job's id and, at submit, "$key" and "$arguments"."""

    model_config = _STRICT

    tool: str
    arguments: dict[str, Any]


class Paths(BaseModel):
    """JSON pointers into what a tool returns: its structured content, else its text read as JSON, else its text."""

    model_config = _STRICT

    #: In what the submitting tool returned.
    handle: str
    #: All others in what the status tool returned.
    status: str
    message: str | None = None
    result: str | None = None
    error: str | None = None
    hint: str | None = None

    @field_validator("*")
    @classmethod
    def _is_a_pointer(cls, value: str | None) -> str | None:
        parts(value or "")
        return value


class Triple(BaseModel):
    """The tools of a job, and how to read what they say."""

    model_config = _STRICT

    #: How to start a job; None: by the tool that is submitted, with its arguments as they are.
    submit: ToolCall | None = None
    status: ToolCall
    cancel: ToolCall | None = None
    paths: Paths
    #: The server's words for a status -> MCP's. Words that are MCP's own need no entry.
    statuses: dict[str, RemoteStatus] = Field(default_factory=dict[str, RemoteStatus])
    #: Jobs are numbers to the server: their ids are sent back as numbers.
    numeric_handles: bool = False
    #: The status tool's error holds one of these: there is no such job. Any other error says nothing about it.
    gone: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _says_which_job(self) -> Triple:
        for call in (self.status, self.cancel):
            if call is not None and "$handle" not in json.dumps(call.arguments):
                raise ValueError(f'the arguments of tool {call.tool!r} do not hold "$handle"')
        return self


class TripleDriver:
    """See `Driver`. A job cannot be answered, and tells nothing without being asked."""

    def __init__(self, peer: Peer, triple: Triple, *, honours_key: bool) -> None:
        self._peer, self._triple, self._honours_key = peer, triple, honours_key

    @property
    def honours_key(self) -> bool:
        return self._honours_key

    async def submit(
        self, tool: str, arguments: Mapping[str, Any], *, key: str, on_send: Callable[[], None] | None = None
    ) -> Accepted:
        server, call = self._peer.server, self._triple.submit
        if call is not None:
            if tool != call.tool:
                raise RemoteRefused(METHOD_NOT_FOUND, f"Of server {server!r} only tool {call.tool!r} starts jobs")
            arguments = fill(call.arguments, {"$key": key, "$arguments": dict(arguments)})
        try:
            params, headers = keyed(tool, arguments, key), {IDEMPOTENCY_HEADER: key}
            result = await self._peer.request("tools/call", params, name=tool, headers=headers, on_send=on_send)
        except RemoteRefused as exc:
            judge(server, exc, about_a_task=False)
        if result_of(result, server).get("isError"):
            return at_once(result, server)
        handle = find(_document(result, server), self._triple.paths.handle)
        if type(handle) is int:
            handle = str(handle)
        handle = new_handle({"taskId": handle}, server)
        if self._triple.numeric_handles and not handle.lstrip("-").isdecimal():
            raise ProtocolBroken(f"Server {server!r} made a job whose id is no number", handle=handle)
        return Accepted(handle=handle, snapshot=Snapshot(status=RemoteStatus.WORKING))

    async def look(self, handle: str) -> Snapshot:
        server, paths = self._peer.server, self._triple.paths
        result = await self._call(self._triple.status, handle)
        document = _document(result, server)
        status = self._status(find(document, paths.status))
        message = None if paths.message is None else find(document, paths.message)
        found = document if paths.result is None else find(document, paths.result)
        error = None if paths.error is None else find(document, paths.error)
        return Snapshot(
            status=status,
            message=message if isinstance(message, str) else None,
            result=_tool_result(found, server) if status is RemoteStatus.COMPLETED else None,
            error=_error(error, message) if status is RemoteStatus.FAILED else None,
            hint=None if paths.hint is None else find(document, paths.hint),
        )

    async def answer(self, handle: str, answers: Mapping[str, Any]) -> None:
        raise RemoteRefused(METHOD_NOT_FOUND, f"Jobs of server {self._peer.server!r} cannot be answered")

    async def cancel(self, handle: str) -> None:
        if self._triple.cancel is None:
            raise RemoteRefused(
                METHOD_NOT_FOUND, f"No tool of server {self._peer.server!r} is configured to cancel jobs"
            )
        await self._call(self._triple.cancel, handle)

    async def listen(self, handles: Sequence[str]) -> AsyncGenerator[tuple[str, Snapshot]]:
        """As `Driver.listen`: tools tell nothing by themselves."""
        raise PushUnavailable(f"Jobs of server {self._peer.server!r} tell nothing without being asked")
        yield  # makes this a generator

    async def _call(self, call: ToolCall, handle: str) -> dict[str, Any]:
        server = self._peer.server
        arguments = fill(call.arguments, {"$handle": int(handle) if self._triple.numeric_handles else handle})
        try:
            result = await self._peer.request("tools/call", {"name": call.tool, "arguments": arguments}, name=call.tool)
        except RemoteRefused as exc:
            judge(server, exc, about_a_task=False)
        if result_of(result, server).get("isError"):
            text = json.dumps(result["content"], ensure_ascii=False)
            if any(sign in text for sign in self._triple.gone):
                raise RemoteGone(f"Server {server!r} knows no such job")
            raise RemoteUnavailable(f"Tool {call.tool!r} of server {server!r} ended with an error")
        return result

    def _status(self, word: object) -> RemoteStatus:
        text = word if isinstance(word, str) else json.dumps(word)
        status = self._triple.statuses.get(text) or _WORDS.get(text)
        if status is None:
            raise ProtocolBroken(
                f"Server {self._peer.server!r} said of a job's status a word that is not configured: {text[:40]!r}"
            )
        return status


def _document(result: Mapping[str, Any], server: str) -> Any:
    """What a tool returned, as JSON where it is JSON."""
    if isinstance(structured := result.get("structuredContent"), dict):
        return cast("dict[str, Any]", structured)
    match result.get("content"):
        case [{"type": "text", "text": str(text)}]:
            try:
                return read(text, server)
            except RemoteUnavailable:
                return text
        case content:
            return content


def _tool_result(value: Any, server: str) -> dict[str, Any]:
    """The value as a tool would have returned it; a CallToolResult is one already."""
    if isinstance(value, dict) and "content" in value:
        return result_of(value, server)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    more = {"structuredContent": value} if isinstance(value, dict) else {}
    return {"content": [{"type": "text", "text": text}], **more, "isError": False}


def _error(value: Any, message: Any) -> dict[str, Any]:
    """The value as a JSON-RPC error; one it may be already."""
    if isinstance(value, dict) and type(value.get("code")) is int and isinstance(value.get("message"), str):
        return cast("dict[str, Any]", value)
    texts = [text for text in (value, message) if isinstance(text, str) and text]
    error: dict[str, Any] = {"code": INTERNAL_ERROR, "message": texts[0] if texts else "The job failed"}
    return error if value is None or isinstance(value, str) else {**error, "data": value}
