"""A client that writes its JSON-RPC by hand and keeps the answer's bytes, over HTTP into the server's ASGI app.

It shares no code with mcptasks: what it sends and what it looks for is written out as the specification has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn, Self, cast

import httpx2

from tests.support.waiting import eventually

URL: Final = "http://127.0.0.1:8000/mcp"
VERSION: Final = "2026-07-28"
LEGACY_VERSION: Final = "2025-11-25"
TASKS: Final = "io.modelcontextprotocol/tasks"

#: What the client can answer.
EVERYTHING: Final[Mapping[str, Any]] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}

#: Names whose value stands in the `Mcp-Name` header of the specification's own methods.
_NAMED: Final = {"tools/call": "name", "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}


@dataclass(frozen=True)
class Reply:
    """One HTTP response."""

    status: int
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The JSON-RPC response; parsed as strictly as the strictest client would."""
        document = json.loads(self.raw.decode("utf-8"), parse_constant=_no_constant)
        assert document["jsonrpc"] == "2.0"
        return cast("dict[str, Any]", document)

    @property
    def result(self) -> dict[str, Any]:
        """The result, without the server's stamp."""
        body = self.body
        assert "error" not in body, body["error"]
        result = cast("dict[str, Any]", body["result"])
        meta = result["_meta"]
        del meta["io.modelcontextprotocol/serverInfo"]
        if not meta:
            del result["_meta"]
        return result

    @property
    def error(self) -> dict[str, Any]:
        """The JSON-RPC error."""
        body = self.body
        assert "result" not in body, body["result"]
        return cast("dict[str, Any]", body["error"])


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} does not exist in JSON")


@dataclass
class LegacyClient:
    """A client of protocol 2025-11-25 over HTTP, with the session that its handshake opened."""

    http: httpx2.AsyncClient
    session: str = ""
    token: str | None = None
    #: What `initialize` answered.
    greeting: dict[str, Any] = field(default_factory=dict[str, Any])

    async def connect(self, capabilities: Mapping[str, Any] | None = None) -> Self:
        """The handshake is done."""
        params = {
            "protocolVersion": LEGACY_VERSION,
            "capabilities": dict(capabilities or {}),
            "clientInfo": {"name": "legacy", "version": "1"},
        }
        response = await self._post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        self.session = response.headers["mcp-session-id"]
        self.greeting = Reply(response.status_code, response.content).body["result"]
        await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    async def send(self, method: str, params: Mapping[str, Any]) -> Reply:
        """One request."""
        response = await self._post({"jsonrpc": "2.0", "id": 1, "method": method, "params": dict(params)})
        return Reply(response.status_code, response.content)

    async def _post(self, body: Mapping[str, Any]) -> httpx2.Response:
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        if self.session:
            headers |= {"Mcp-Session-Id": self.session, "MCP-Protocol-Version": LEGACY_VERSION}
        return await self.http.post(URL, content=json.dumps(body), headers=headers)


@dataclass(frozen=True, kw_only=True)
class RawClient:
    """One caller: its bearer token and what it declares with every request."""

    http: httpx2.AsyncClient
    token: str | None = None
    declares_tasks: bool = True
    capabilities: Mapping[str, Any] | None = None

    def with_(self, **changes: Any) -> Self:
        """Another caller on the same server."""
        return replace(self, **changes)

    def undeclared(self) -> Self:
        """The same caller, not knowing tasks."""
        return replace(self, declares_tasks=False)

    # -------------------------------------------------------------------------------------------- methods

    async def call(
        self,
        tool: str,
        arguments: Any = None,
        *,
        headers: Mapping[str, str | None] | None = None,
        meta: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Reply:
        """`tools/call`; `more` goes into its params."""
        params = {"name": tool, "arguments": {} if arguments is None else arguments, **more}
        return await self.send("tools/call", params, headers=headers, meta=meta)

    async def start(self, tool: str, arguments: Any = None, **more: Any) -> str:
        """The id of the task that the call became."""
        created = (await self.call(tool, arguments, **more)).result
        assert created["resultType"] == "task", created
        return str(created["taskId"])

    async def get(self, task_id: Any, **options: Any) -> Reply:
        """`tasks/get`."""
        return await self.send("tasks/get", {"taskId": task_id}, **options)

    async def update(self, task_id: Any, responses: Mapping[str, Any], **options: Any) -> Reply:
        """`tasks/update`."""
        return await self.send("tasks/update", {"taskId": task_id, "inputResponses": responses}, **options)

    async def cancel(self, task_id: Any, **options: Any) -> Reply:
        """`tasks/cancel`."""
        return await self.send("tasks/cancel", {"taskId": task_id}, **options)

    async def state(self, task_id: str) -> dict[str, Any]:
        """What `tasks/get` says."""
        return (await self.get(task_id)).result

    async def until(self, task_id: str, seen: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """What `tasks/get` says once that is seen in it."""

        async def look() -> dict[str, Any] | None:
            state = await self.state(task_id)
            return state if seen(state) else None

        return await eventually(look, description="tasks/get shows it")

    # -------------------------------------------------------------------------------------------- the wire

    async def send(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        headers: Mapping[str, str | None] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Reply:
        """One request. A header of None is left out."""
        body, sent = self.written(method, params, headers=headers, meta=meta)
        return await self._post(body, sent)

    def written(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        headers: Mapping[str, str | None] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> tuple[bytes, dict[str, str]]:
        """The request's body and headers, as `send` sends them."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": self._params(params, meta)}
        name = params.get(_NAMED.get(method, ""))
        standing = {"Mcp-Name": name if isinstance(name, str) and name.isascii() and name.isprintable() else None}
        return json.dumps(body).encode(), self._headers(method, {**standing, **(headers or {})})

    def envelope(self) -> dict[str, Any]:
        """What every request of the modern protocol carries under `_meta`."""
        capabilities: dict[str, Any] = dict(EVERYTHING if self.capabilities is None else self.capabilities)
        if self.declares_tasks:
            capabilities["extensions"] = {TASKS: {}}
        return {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        }

    def _params(self, params: Mapping[str, Any], meta: Mapping[str, Any] | None) -> dict[str, Any]:
        return {**params, "_meta": {**self.envelope(), **(meta or {})}}

    async def post(self, body: bytes, method: str, headers: Mapping[str, str | None]) -> Reply:
        """These very bytes."""
        return await self._post(body, self._headers(method, headers))

    def _headers(self, method: str, more: Mapping[str, str | None]) -> dict[str, str]:
        sent: dict[str, str | None] = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": method,
            "Authorization": None if self.token is None else f"Bearer {self.token}",
            **more,
        }
        return {name: value for name, value in sent.items() if value is not None}

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        response = await self.http.post(URL, content=body, headers=headers)
        return Reply(response.status_code, response.content)
