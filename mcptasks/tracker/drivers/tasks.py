"""Servers of the Tasks extension (SEP-2663, `io.modelcontextprotocol/tasks`, protocol 2026-07-28)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final

from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp_types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)

from mcptasks.tracker.drivers.shapes import (
    ask,
    error_of,
    judge,
    message_of,
    new_handle,
    questions_of,
    result_of,
    same_task,
    seed,
    status_of,
)
from mcptasks.tracker.peer import Peer
from mcptasks.tracker.remote import (
    Accepted,
    ProtocolBroken,
    PushUnavailable,
    RemoteRefused,
    RemoteStatus,
    RemoteUnavailable,
    Snapshot,
)
from mcptasks.tracker.tool_list import ToolList
from mcptasks.wire import IDEMPOTENCY_HEADER, IDEMPOTENCY_META

#: Answers to `subscriptions/listen` of servers that do not tell of tasks.
_NO_PUSH: Final = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY})


def keyed(tool: str, arguments: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The parameters of a `tools/call` that may be sent again: the key in the field and in `_meta`."""
    return {"name": tool, "arguments": dict(arguments), "idempotencyKey": key, "_meta": {IDEMPOTENCY_META: key}}


def at_once(result: object, server: str) -> Accepted:
    """The call was answered without a task."""
    return Accepted(handle=None, snapshot=Snapshot(status=RemoteStatus.COMPLETED, result=result_of(result, server)))


class TasksDriver:
    """See `Driver`. Whether a call becomes a task is the server's choice; one that does not is answered at once."""

    def __init__(self, peer: Peer, *, honours_key: bool) -> None:
        self._peer, self._honours_key, self._tools = peer, honours_key, ToolList(peer)

    @property
    def honours_key(self) -> bool:
        return self._honours_key

    async def submit(
        self, tool: str, arguments: Mapping[str, Any], *, key: str, on_send: Callable[[], None] | None = None
    ) -> Accepted:
        server = self._peer.server
        try:
            result = await self._call(tool, arguments, key, on_send)
        except RemoteRefused as exc:
            judge(server, exc, about_a_task=False)
        match result.get("resultType", "complete"):
            case "task":
                handle = new_handle(result, server)
                return Accepted(handle=handle, snapshot=seed(result, handle, server, hint="pollIntervalMs"))
            case "complete":
                return at_once(result, server)
            case "input_required":
                text = f"Tool {tool!r} of server {server!r} asks something before it makes a task; that is not tracked"
                raise RemoteRefused(MISSING_REQUIRED_CLIENT_CAPABILITY, text)
            case _:
                raise ProtocolBroken(f"Server {server!r} answered a call with a kind of result that is not known")

    async def look(self, handle: str) -> Snapshot:
        return self._snapshot(await ask(self._peer, "tasks/get", {"taskId": handle}, handle=handle), handle)

    async def answer(self, handle: str, answers: Mapping[str, Any]) -> None:
        params = {"taskId": handle, "inputResponses": dict(answers)}
        try:
            await self._peer.request("tasks/update", params, name=handle)
        except RemoteRefused as exc:
            if exc.code == INVALID_PARAMS:
                # So is an answer refused that does not satisfy its question. A look tells: it finds the task, or not.
                await self.look(handle)
            judge(self._peer.server, exc, about_a_task=False)

    async def cancel(self, handle: str) -> None:
        await ask(self._peer, "tasks/cancel", {"taskId": handle}, handle=handle)

    async def listen(self, handles: Sequence[str]) -> AsyncGenerator[tuple[str, Snapshot]]:
        """As `Driver.listen`; each task's state at that moment comes first, where the server does as mcptasks does."""
        wanted = frozenset(handles)
        try:
            async with aclosing(
                self._peer.stream("subscriptions/listen", {"notifications": {"taskIds": list(handles)}})
            ) as messages:
                async for message in messages:
                    params = message.get("params")
                    if message.get("method") != "notifications/tasks" or not isinstance(params, dict):
                        continue
                    handle = params.get("taskId")
                    if not (isinstance(handle, str) and handle in wanted):
                        continue
                    with suppress(ProtocolBroken):  # a look is what judges a task; its siblings are told of meanwhile
                        yield handle, self._snapshot(params, handle)
        except RemoteRefused as exc:
            if exc.code in _NO_PUSH:
                raise PushUnavailable(f"Server {self._peer.server!r} tells of no tasks ({exc.code})") from exc
            raise RemoteUnavailable(f"Server {self._peer.server!r} refused to tell of tasks ({exc.code})") from exc
        raise RemoteUnavailable(f"Server {self._peer.server!r} ended the stream of its tasks")

    async def _call(
        self, tool: str, arguments: Mapping[str, Any], key: str, on_send: Callable[[], None] | None
    ) -> dict[str, Any]:
        params, headers = keyed(tool, arguments, key), {IDEMPOTENCY_HEADER: key}
        try:
            return await self._peer.request("tools/call", params, name=tool, headers=headers, on_send=on_send)
        except RemoteRefused as exc:
            if exc.code != HEADER_MISMATCH:
                raise
            # The tool wants arguments of its own in headers (x-mcp-header), which only the list of tools says.
            schema = (await self._tools.find(tool, fresh=True) or {}).get("inputSchema")
            if schema is None or find_invalid_x_mcp_header(schema) is not None:
                raise
        headers |= mcp_param_headers(x_mcp_header_map(schema), arguments)
        return await self._peer.request("tools/call", params, name=tool, headers=headers, on_send=on_send)

    def _snapshot(self, task: Mapping[str, Any], handle: str) -> Snapshot:
        server = self._peer.server
        same_task(task, handle, server)
        status = status_of(task, server)
        asks, done, failed = RemoteStatus.INPUT_REQUIRED, RemoteStatus.COMPLETED, RemoteStatus.FAILED
        return Snapshot(
            status=status,
            message=message_of(task),
            questions=questions_of(task.get("inputRequests"), server) if status is asks else {},
            result=result_of(task.get("result"), server) if status is done else None,
            error=error_of(task.get("error"), server) if status is failed else None,
            hint=task.get("pollIntervalMs"),
        )
