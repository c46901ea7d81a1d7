"""The callers' side: one HTTP request at a time, written out as the specification has it, through two servers.

An answer is one of three: the result, a refusal that is final (`Refused`), or nobody knows (`Unanswered`): the server
died during the call, was not there, or could not reach its store. What nobody knows is asked again.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, Final, cast

import httpx2

VERSION: Final = "2026-07-28"
TASKS: Final = "io.modelcontextprotocol/tasks"

_META: Final = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "chaos", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, "extensions": {TASKS: {}}},
}
_NAMES: Final = {"tools/call": "name", "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}
_INTERNAL_ERROR: Final = -32603
#: Above the server's own limit on the store (2 s), with room for a machine that starts three Pythons at once.
_TIMEOUT: Final = httpx2.Timeout(15.0, connect=5.0)


class Unanswered(Exception):
    """Nobody knows whether the server did it."""


class Refused(Exception):
    """The server said no."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code


class Door:
    """One of the servers."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self._http = httpx2.AsyncClient(timeout=_TIMEOUT)
        self._ids = itertools.count(1)

    async def aclose(self) -> None:
        """Its connections are closed."""
        await self._http.aclose()

    async def call(self, tool: str, arguments: dict[str, Any], idempotency_key: str) -> dict[str, Any]:
        """The task that the call became."""
        meta = {"mcptasks/idempotencyKey": idempotency_key}
        created = await self._send("tools/call", {"name": tool, "arguments": arguments}, meta)
        if created.get("resultType") != "task":
            raise Refused(0, f"{tool} was answered without a task: {created}")
        return created

    async def get(self, task_id: str) -> dict[str, Any]:
        """The task as it is now."""
        return await self._send("tasks/get", {"taskId": task_id})

    async def update(self, task_id: str, answers: dict[str, Any]) -> None:
        """The server has acknowledged the answers."""
        await self._send("tasks/update", {"taskId": task_id, "inputResponses": answers})

    async def cancel(self, task_id: str) -> None:
        """The server has acknowledged the wish to cancel."""
        await self._send("tasks/cancel", {"taskId": task_id})

    async def _send(self, method: str, params: dict[str, Any], meta: dict[str, Any] | None = None) -> dict[str, Any]:
        body = {
            "jsonrpc": "2.0",
            "id": next(self._ids),
            "method": method,
            "params": {**params, "_meta": {**_META, **(meta or {})}},
        }
        headers = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": method,
            "Mcp-Name": str(params[_NAMES[method]]),
        }
        try:
            response = await self._http.post(self.url, content=json.dumps(body), headers=headers)
        except httpx2.RequestError as exc:
            raise Unanswered(type(exc).__name__) from exc
        return _result(response)


def _result(response: httpx2.Response) -> dict[str, Any]:
    try:
        answer = cast("dict[str, Any]", response.json())
    except ValueError as exc:
        raise Unanswered(f"HTTP {response.status_code}: {response.text[:200]!r}") from exc
    if "error" in answer:
        error = cast("dict[str, Any]", answer["error"])
        if error["code"] == _INTERNAL_ERROR and "store is not available" in error["message"]:
            raise Unanswered("the server's store is away")
        raise Refused(error["code"], error["message"])
    result = cast("dict[str, Any]", answer["result"])
    result.pop("_meta", None)
    return result
