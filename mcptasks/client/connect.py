"""A client of a task server over HTTP, in one line."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx2
from mcp.client import Client
from mcp.client.session import ElicitationFnT, ListRootsFnT, SamplingFnT
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, ErrorData, JSONRPCError

from mcptasks.client.extension import TasksClient
from mcptasks.settings import MIB
from mcptasks.wire import DetailedTask

#: The SDK's own time-outs: a server may hold a response open for long.
_TIMEOUT: Final = httpx2.Timeout(30.0, read=300.0)


@dataclass(frozen=True, slots=True)
class Connection:
    """What `connect` yields: the SDK's client, and the extension that makes it know tasks."""

    client: Client
    tasks: TasksClient


class _SteadyHTTP(httpx2.AsyncClient):
    """Once connected, a broken connection fails its own request only.

    mcp 2.3 lets an httpx error out of the request's task into the transport's task group, where it ends the whole
    client: a restart of the server would end every wait for a task. Answered as a JSON-RPC error it is an ordinary
    failed request, which waiting survives.
    """

    connected = False

    async def send(self, request: httpx2.Request, **kwargs: Any) -> httpx2.Response:
        try:
            response = await super().send(request, **kwargs)
            if response.headers.get("content-type", "").lower().startswith("application/json"):
                try:
                    await response.aread()  # here, because a connection that breaks in mid-body ends the client too
                finally:
                    await response.aclose()
        except httpx2.RequestError as exc:
            if not self.connected:
                raise  # while connecting, an error answer would be taken for an old server's
            return _failed(request, exc)
        return response


def _failed(request: httpx2.Request, exc: httpx2.RequestError) -> httpx2.Response:
    error = ErrorData(code=CONNECTION_CLOSED, message=f"no connection to the server ({type(exc).__name__})")
    body = JSONRPCError(jsonrpc="2.0", id=None, error=error).model_dump(by_alias=True, mode="json", exclude_unset=True)
    return httpx2.Response(503, json=body, request=request)


@asynccontextmanager
async def connect(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    elicitation: ElicitationFnT | None = None,
    sampling: SamplingFnT | None = None,
    roots: ListRootsFnT | None = None,
    on_status: Callable[[DetailedTask], Awaitable[None]] | None = None,
    read_timeout_seconds: float = 30.0,
    listen: bool = True,
    result_max: int = 64 * MIB,
) -> AsyncGenerator[Connection]:
    """Yields a connected client that knows tasks; it survives restarts of the server while tasks are waited for.

    Args:
        url: of the server's streamable HTTP endpoint, such as "http://127.0.0.1:8000/mcp".
        headers: sent with every request, such as `Authorization`.
        elicitation: answers the questions of tools; so do `sampling` and `roots`, each in the SDK's own signature.
        on_status: see `TasksClient`, and so for `listen` and `result_max`.
        read_timeout_seconds: bounds each single request about a task, never the task.

    Raises:
        ConnectionError: no MCP server answers at the URL.
        MCPError: one answers, but refuses.
    """
    tasks = TasksClient(
        on_status=on_status, read_timeout_seconds=read_timeout_seconds, listen=listen, result_max=result_max
    )
    http = _SteadyHTTP(headers=dict(headers or {}), timeout=_TIMEOUT)
    sdk = Client(
        streamable_http_client(url, http_client=http),
        elicitation_callback=elicitation,
        sampling_callback=sampling,
        list_roots_callback=roots,
        extensions=[tasks],
    )
    failure: BaseException | None = None
    try:
        async with http, sdk as client:
            http.connected = True
            try:
                yield Connection(client, tasks)
            except Exception as exc:
                failure = exc  # raised below: on its way through the SDK's task groups it would be wrapped in groups
    except BaseExceptionGroup as group:
        failure = failure or _plain(url, group)
    if failure is not None:
        raise failure


def _plain(url: str, group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group; what the SDK's task groups wrapped while connecting, said with the URL."""
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, httpx2.RequestError):
        return ConnectionError(f"No MCP server answers at {_shown(url)}: {first}")
    if isinstance(first, MCPError):
        return MCPError(first.code, f"The server at {_shown(url)} refused the connection: {first.message}", first.data)
    return first


def _shown(url: str) -> str:
    """The URL without what may be secret in it."""
    return str(httpx2.URL(url).copy_with(userinfo=b"", query=None, fragment=None))
