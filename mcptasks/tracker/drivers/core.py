"""Servers of protocol 2025-11-25, whose core has tasks: `tools/call` with `task`, `tasks/get`, `tasks/result`.

What a task asks comes as requests on the stream of its `tasks/result`, and each is answered into the session that it
came in. So a question belongs to the process that heard it: its answer has to go out there, and is refused as
unavailable elsewhere, unless the server asks again on a new stream. Nothing is told without being asked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from mcp_types import INTERNAL_ERROR

from mcptasks.tracker.drivers.conversation import Conversations
from mcptasks.tracker.drivers.sessions import handle_in, session_of, task_of
from mcptasks.tracker.drivers.shapes import judge, message_of, result_of, same_task, seed, status_of
from mcptasks.tracker.drivers.tasks import at_once, keyed
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
from mcptasks.wire import IDEMPOTENCY_HEADER


class CoreDriver:
    """See `Driver`."""

    def __init__(self, peer: Peer, *, honours_key: bool) -> None:
        self._peer, self._honours_key = peer, honours_key
        self._tools, self._conversations = ToolList(peer), Conversations(peer)

    @property
    def honours_key(self) -> bool:
        return self._honours_key

    async def submit(
        self, tool: str, arguments: Mapping[str, Any], *, key: str, on_send: Callable[[], None] | None = None
    ) -> Accepted:
        server = self._peer.server
        try:
            params = keyed(tool, arguments, key)
            if await self._can_be_a_task(tool):
                params["task"] = {}
        except RemoteUnavailable as exc:
            exc.sent = False  # the call was not, yet
            raise
        try:
            headers = {IDEMPOTENCY_HEADER: key}
            result = await self._peer.request("tools/call", params, name=tool, headers=headers, on_send=on_send)
        except RemoteRefused as exc:
            judge(server, exc, about_a_task=False)
        if "task" not in result:
            return at_once(result, server)
        if not isinstance(task := result["task"], dict):
            raise ProtocolBroken(f"Server {server!r} made a task that is no object")
        try:
            session = (await self._peer.greet()).session
        except RemoteUnavailable as exc:
            exc.sent = True  # the session was lost behind the call
            raise
        handle = handle_in(session, task, server)
        return Accepted(handle=handle, snapshot=seed(task, handle, server, hint="pollInterval"))

    async def look(self, handle: str) -> Snapshot:
        task = await self._ask("tasks/get", handle)
        same_task(task, task_of(handle), self._peer.server)
        status = status_of(task, self._peer.server)
        message, hint = message_of(task), task.get("pollInterval")
        if status in (RemoteStatus.COMPLETED, RemoteStatus.FAILED):
            return await self._ended(handle, status, message)
        if status is RemoteStatus.INPUT_REQUIRED:
            questions = await self._conversations.questions(handle)
            return Snapshot(status=status, message=message, questions=questions, hint=hint)
        if status.terminal:
            self._conversations.forget(handle)
        return Snapshot(status=status, message=message, hint=hint)

    async def answer(self, handle: str, answers: Mapping[str, Any]) -> None:
        await self._conversations.answer(handle, answers)

    async def cancel(self, handle: str) -> None:
        await self._ask("tasks/cancel", handle)

    async def listen(self, handles: Sequence[str]) -> AsyncGenerator[tuple[str, Snapshot]]:
        """As `Driver.listen`: 2025-11-25 has no such thing."""
        raise PushUnavailable(f"Server {self._peer.server!r} speaks 2025-11-25, which has no push of tasks")
        yield  # makes this a generator

    async def aclose(self) -> None:
        """No stream of a question is open any more."""
        await self._conversations.aclose()

    async def _ask(self, method: str, handle: str) -> dict[str, Any]:
        try:
            return await self._peer.request(method, {"taskId": task_of(handle)}, session=session_of(handle))
        except RemoteRefused as exc:
            judge(self._peer.server, exc, about_a_task=True)

    async def _can_be_a_task(self, tool: str) -> bool:
        """2025-11-25, tasks: a tool that does not say so must not be called as one."""
        greeting = await self._peer.greet()
        tasks = greeting.capabilities.get("tasks")
        if not isinstance(tasks, dict) or "call" not in (((tasks.get("requests") or {}).get("tools")) or {}):
            return False
        execution = (await self._tools.find(tool) or {}).get("execution")
        return isinstance(execution, dict) and execution.get("taskSupport") in ("optional", "required")

    async def _ended(self, handle: str, status: RemoteStatus, message: str | None) -> Snapshot:
        """2025-11-25 calls a tool error a failed task; with its result it is what a completed one is elsewhere."""
        self._conversations.forget(handle)
        try:
            params = {"taskId": task_of(handle)}
            result = await self._peer.request("tasks/result", params, session=session_of(handle))
        except RemoteRefused as exc:
            if status is RemoteStatus.COMPLETED:
                judge(self._peer.server, exc, about_a_task=True)
            error = {"code": exc.code, "message": exc.message} | ({} if exc.data is None else {"data": exc.data})
            return Snapshot(status=RemoteStatus.FAILED, message=message, error=error)
        found = result_of(result, self._peer.server)
        if status is RemoteStatus.FAILED and not found.get("isError"):
            error = {"code": INTERNAL_ERROR, "message": message or "The task failed", "data": found}
            return Snapshot(status=RemoteStatus.FAILED, message=message, error=error)
        return Snapshot(status=RemoteStatus.COMPLETED, message=message, result=found)
