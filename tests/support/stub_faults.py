"""What a server, a proxy or a network can answer in the place of an answer; for `StubServer`."""

from __future__ import annotations

import json
import socket
import struct
from asyncio import StreamWriter, sleep
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

JSON: Final = "application/json"


@dataclass(frozen=True)
class Seen:
    """One request, as it came."""

    method: str
    params: dict[str, Any]
    headers: dict[str, str]
    #: JSON-RPC id; None for notifications and answers.
    id: Any
    #: Seconds, monotonic.
    at: float
    #: What else the message holds: `result` or `error` of an answer to one of our own requests.
    message: dict[str, Any] = field(default_factory=dict[str, Any])


#: Writes bytes of its own. True: the connection can be used again.
Fault = Callable[[StreamWriter, Seen], Awaitable[bool]]


def http(
    status: int,
    body: bytes,
    content_type: str = JSON,
    headers: Mapping[str, str] | None = None,
    length: int | None = None,
) -> bytes:
    """One HTTP response."""
    lines = {"content-type": content_type, "content-length": str(len(body) if length is None else length)}
    head = "".join(f"{name}: {value}\r\n" for name, value in (lines | dict(headers or {})).items())
    return f"HTTP/1.1 {status} Stub\r\n{head}\r\n".encode() + body


def reply(seen: Seen, **outcome: Any) -> bytes:
    """The JSON-RPC response to this request."""
    return json.dumps({"jsonrpc": "2.0", "id": seen.id, **outcome}).encode()


def _sends(response: Callable[[Seen], bytes]) -> Fault:
    async def fault(writer: StreamWriter, seen: Seen) -> bool:
        writer.write(response(seen))
        await writer.drain()
        return True

    return fault


def status(code: int, body: bytes = b"", **headers: str) -> Fault:
    """A bare status. Underscores in header names stand for hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return _sends(lambda _: http(code, body, "text/plain", named))


def html(code: int = 502) -> Fault:
    """A proxy's page."""
    return _sends(lambda _: http(code, b"<html><body><h1>Bad gateway</h1></body></html>", "text/html; charset=utf-8"))


def too_many(retry_after: str) -> Fault:
    """429 with Retry-After: seconds, or an HTTP date."""
    return status(429, b"slow down", retry_after=retry_after)


def body(raw: bytes, content_type: str = JSON) -> Fault:
    """200 with these very bytes."""
    return _sends(lambda _: http(200, raw, content_type))


def invalid_json() -> Fault:
    """A body that ends in the middle of a word."""
    return body(b'{"jsonrpc": "2.0", "id": 1, "resu')


def result(value: Any) -> Fault:
    """A well-formed JSON-RPC response whose result is this, whatever it is. NaN is written as Python writes it."""
    return _sends(lambda seen: http(200, reply(seen, result=value)))


def raw_result(text: str) -> Fault:
    """As `result`, with the result's JSON given as text: for what Python would write otherwise."""
    return _sends(
        lambda seen: http(200, b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(seen.id).encode(), text.encode()))
    )


def error(code: int, message: str = "stub says no", data: Any = None, *, status: int = 200) -> Fault:
    """A JSON-RPC error."""
    made = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return _sends(lambda seen: http(status, reply(seen, error=made)))


def other_id() -> Fault:
    """A response to a request that nobody made."""
    return _sends(lambda seen: http(200, json.dumps({"jsonrpc": "2.0", "id": "nobody", "result": {}}).encode()))


def session_lost() -> Fault:
    """404, as a server answers that has been restarted and knows no sessions."""
    return status(404, b"Session not found")


def reset() -> Fault:
    """The connection is reset before an answer."""

    async def fault(writer: StreamWriter, _: Seen) -> bool:
        peer: socket.socket = writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        return False

    return fault


def cut(after: int = 20) -> Fault:
    """The connection ends in the middle of the body."""

    async def fault(writer: StreamWriter, seen: Seen) -> bool:
        writer.write(http(200, reply(seen, result={"padding": "x" * 100})[:after], length=10_000))
        await writer.drain()
        return False

    return fault


def slow(seconds: float) -> Fault:
    """The head at once, and a byte of the body now and then, for that long."""

    async def fault(writer: StreamWriter, seen: Seen) -> bool:
        writer.write(http(200, b"", length=1_000_000))
        for _ in range(int(seconds / 0.05)):
            writer.write(b" ")
            await writer.drain()
            await sleep(0.05)
        return False

    return fault


def silent(seconds: float) -> Fault:
    """Nothing at all for that long; then the connection ends."""

    async def fault(_: StreamWriter, __: Seen) -> bool:
        await sleep(seconds)
        return False

    return fault
