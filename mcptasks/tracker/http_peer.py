"""A server behind streamable HTTP, read so that a failure of the network is never taken for one of a task.

The SDK's own client is not used here: it hands 429, 502, a proxy's page and a cut-off body on as the same error,
without Retry-After, and reads bodies of any size.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast

import anyio
import httpx2
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_NAME_HEADER, MCP_PROTOCOL_VERSION_HEADER

from mcptasks.strict_json import dumps
from mcptasks.tracker import tls
from mcptasks.tracker.headers import name_value, retry_after_ms
from mcptasks.tracker.peer import FrontRefused, Greeting, Peer, SessionLost
from mcptasks.tracker.remote import ProtocolBroken, RemoteUnavailable
from mcptasks.tracker.strict import outcome, read
from mcptasks.wire import MODERN

Auth: TypeAlias = Callable[[], Awaitable[Mapping[str, str]]]
"""Gives the headers that authenticate; awaited before the first request, and again after each 401."""

_SESSION_HEADER: Final = "mcp-session-id"
_CONNECT_S: Final = 10.0
#: A connection is not used again after that long: servers close idle ones after 5 s (uvicorn, Node), and a call sent on
#: one that is just being closed is in doubt.
_IDLE_S: Final = 4.0
#: Of a stream that tells nothing for so long nobody knows whether it is there.
_STREAM_IDLE_S: Final = 300.0
#: Errors before there was a connection: the request is not on its way.
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


class _Unlogged(logging.Filter):
    """httpx2 logs the URL of every request at INFO; of ours it may hold a secret, and there are many."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args if isinstance(record.args, tuple) else ()
        return not any(isinstance(arg, httpx2.URL) and str(arg) in self.urls for arg in args)


_unlogged: Final = _Unlogged()
logging.getLogger("httpx2").addFilter(_unlogged)


class _Unauthorized(FrontRefused):
    """HTTP 401."""


class HttpPeer(Peer):
    """One connection pool to one URL."""

    def __init__(
        self,
        *args: Any,
        url: str,
        headers: Mapping[str, str],
        body_max: int,
        auth: Auth | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """`transport`: in the place of the network; `args`: as of `Peer`."""
        super().__init__(*args)
        self._url, self._headers, self._body_max, self._auth = url, dict(headers), body_max, auth
        _unlogged.urls.add(str(httpx2.URL(url)))
        self._signed: Mapping[str, str] | None = None
        self._signing = asyncio.Lock()
        times = httpx2.Timeout(self._timeout_s, connect=_CONNECT_S, read=_STREAM_IDLE_S, pool=None)
        pool = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=_IDLE_S)
        self._http = httpx2.AsyncClient(
            timeout=times, limits=pool, transport=transport, follow_redirects=False, verify=tls.context()
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    # ------------------------------------------------------------------------------------------------ requests

    async def _request(
        self,
        greeting: Greeting,
        method: str,
        params: Mapping[str, Any],
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        request_id, message = self._message(greeting, method, params)
        sent = self._head(greeting, method, name) | dict(headers or {})
        async with self._exchange(message, sent, greeting) as response:
            result: dict[str, Any] | None = None
            async with aclosing(self._messages(response, request_id)) as messages:
                async for found in messages:
                    if "method" not in found:
                        result = found["result"]
                    elif "id" in found:
                        with suppress(RemoteUnavailable):  # the server's loss; what it was asked counts
                            await self._send(self._asked_back(found), greeting)
            assert result is not None  # `_messages` ends with one
            return result

    async def stream(
        self, method: str, params: Mapping[str, Any], *, session: str | None = None
    ) -> AsyncGenerator[dict[str, Any]]:
        greeting = await self._in(session)
        request_id, message = self._message(greeting, method, params)
        async with (
            self._opened(message, self._head(greeting, method, None), greeting) as response,
            aclosing(self._messages(response, request_id, endless=True)) as messages,
        ):
            async for found in messages:
                yield found

    async def respond(self, request_id: object, result: Any, *, session: str | None = None) -> None:
        await self._send({"jsonrpc": "2.0", "id": request_id, "result": result}, await self._in(session))

    async def _in(self, session: str | None) -> Greeting:
        greeting = await self.greet()
        return greeting if session is None else replace(greeting, session=session)

    async def _send(self, message: Mapping[str, Any], greeting: Greeting) -> None:
        """The server has a message that asks for no answer."""
        async with self._exchange(message, self._head(greeting, None, None), greeting) as response:
            if response.status_code >= 400:
                raise self._no_answer(response)

    async def _initialize(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        request_id = next(self._ids)
        message = {"jsonrpc": "2.0", "id": request_id, "method": "initialize", "params": params}
        result: dict[str, Any] = {}
        async with self._exchange(message, {}, None) as response:
            async with aclosing(self._messages(response, request_id)) as messages:
                async for found in messages:
                    result = found.get("result", result)
            return result, response.headers.get(_SESSION_HEADER)

    async def _initialized(self, greeting: Greeting) -> None:
        await self._send({"jsonrpc": "2.0", "method": "notifications/initialized"}, greeting)

    def _head(self, greeting: Greeting, method: str | None, name: str | None) -> dict[str, str]:
        head = {MCP_PROTOCOL_VERSION_HEADER: greeting.version}
        if greeting.session is not None:
            head[_SESSION_HEADER] = greeting.session
        if greeting.version in MODERN and method is not None:
            head[MCP_METHOD_HEADER] = method
            if name is not None and (value := name_value(name)) is not None:
                head[MCP_NAME_HEADER] = value
        return head

    # ------------------------------------------------------------------------------------------------ HTTP

    @asynccontextmanager
    async def _exchange(
        self, message: Mapping[str, Any], headers: Mapping[str, str], greeting: Greeting | None
    ) -> AsyncGenerator[httpx2.Response]:
        """As `_opened`; everything inside the block, reading the body too, is over within the server's time limit."""
        try:
            with anyio.fail_after(self._timeout_s):
                async with self._opened(message, headers, greeting) as response:
                    yield response
        except TimeoutError:
            raise RemoteUnavailable(f"Server {self.server!r} did not answer within {self._timeout_s:g} s") from None

    @asynccontextmanager
    async def _opened(
        self, message: Mapping[str, Any], headers: Mapping[str, str], greeting: Greeting | None
    ) -> AsyncGenerator[httpx2.Response]:
        """The response that has its head, and a status that says that the rest can be an answer."""
        content = dumps(message, "The request").encode()
        try:
            for again in (True, False):
                signature = await self._signature()
                try:
                    sent = self._all_headers(signature, headers)
                    async with self._http.stream("POST", self._url, content=content, headers=sent) as response:
                        self._check(response, greeting)
                        yield response
                    return
                except _Unauthorized:
                    if self._signed is signature:  # else it has been renewed since this request went out
                        self._signed = None
                    if self._auth is None or not again:
                        raise
        except _NOT_SENT as exc:
            raise RemoteUnavailable(
                f"No connection to server {self.server!r} ({type(exc).__name__})", sent=False
            ) from None
        except httpx2.SSEError:
            raise self._too_large() from None
        except (httpx2.RequestError, httpx2.StreamError) as exc:
            # Its text may hold the URL, and that a secret.
            raise RemoteUnavailable(f"The connection to server {self.server!r} broke ({type(exc).__name__})") from None

    async def _signature(self) -> Mapping[str, str]:
        """What the hook gave; it is asked by one request for all. It has half of a request's time."""
        if self._auth is None:
            return {}
        try:
            async with asyncio.timeout(self._timeout_s / 2), self._signing:
                if self._signed is None:
                    self._signed = await self._auth()
                return self._signed
        except Exception as exc:
            raise RemoteUnavailable(
                f"The hook that authenticates at server {self.server!r} failed ({type(exc).__name__})", sent=False
            ) from exc

    def _all_headers(self, signature: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, str]:
        own = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        return {**self._headers, **signature, **own, **headers}

    def _check(self, response: httpx2.Response, greeting: Greeting | None) -> None:
        status = response.status_code
        if status == 401:
            raise _Unauthorized(f"Server {self.server!r} wants to know who asks (HTTP 401)", 401, sent=False)
        if status == 403:
            raise FrontRefused(f"Server {self.server!r} does not let us in (HTTP 403)", 403, sent=False)
        if status == 404 and greeting is not None and greeting.session is not None:
            raise SessionLost(f"Server {self.server!r} lost its session (HTTP 404)", sent=False)
        if status == 429 or status >= 500:
            raise RemoteUnavailable(
                f"Server {self.server!r} answered HTTP {status}",
                retry_after_ms=retry_after_ms(response.headers.get("retry-after", "")),
                sent=status != 429,
            )
        if 300 <= status < 400:
            raise RemoteUnavailable(f"Server {self.server!r} answers with a redirect (HTTP {status})", sent=False)

    # ------------------------------------------------------------------------------------------------ bodies

    async def _messages(
        self, response: httpx2.Response, request_id: int, *, endless: bool = False
    ) -> AsyncGenerator[dict[str, Any]]:
        """Yields what comes with the answer to this request, and `{"result": ...}` last.

        `endless`: the size is bounded for each message, not for all of them.
        """
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            refused = response.status_code >= 400
            try:
                message = read(await self._body(response), self.server)
                yield {"result": outcome(message, request_id, self.server, any_id=refused)}
            except (RemoteUnavailable, ProtocolBroken):
                if refused:
                    raise self._no_answer(response) from None
                raise
            return
        if kind != "text/event-stream" or response.status_code >= 400:
            raise self._no_answer(response)
        size, source = 0, httpx2.EventSource(response, max_event_size=self._body_max)
        async with aclosing(cast("AsyncGenerator[httpx2.ServerSentEvent]", aiter(source))) as events:
            async for event in events:
                if event.event != "message" or not event.data:
                    continue
                size = 0 if endless else size + len(event.data)
                if size > self._body_max:
                    raise self._too_large()
                message = read(event.data, self.server)
                if not (isinstance(message, dict) and "method" in message):
                    yield {"result": outcome(message, request_id, self.server)}
                    return
                yield cast("dict[str, Any]", message)
        raise RemoteUnavailable(f"The stream of server {self.server!r} ended before the answer came")

    async def _body(self, response: httpx2.Response) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > self._body_max:
                raise self._too_large()
        return bytes(body)

    def _too_large(self) -> ProtocolBroken:
        return ProtocolBroken(f"Server {self.server!r} sent an answer of more than {self._body_max:,} bytes")

    def _no_answer(self, response: httpx2.Response) -> RemoteUnavailable:
        status = response.status_code
        text = f"Server {self.server!r} answered HTTP {status} without JSON-RPC"
        return FrontRefused(text, status) if status >= 400 else RemoteUnavailable(text)
