"""A load balancer with no memory: each HTTP request goes to the next server, whoever sends it.

One request per connection in both directions (`Connection: close`), which makes "per request" true by construction and
lets a response be passed on byte by byte until its server closes it: event streams need no framing here.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from anyio.from_thread import start_blocking_portal

HOST: Final = "127.0.0.1"
#: Past this a request head is refused; uvicorn's own limit is the same.
HEAD_MAX: Final = 64 * 1024

_LENGTH = re.compile(rb"^content-length:\s*(\d+)\s*$", re.IGNORECASE | re.MULTILINE)
_CHUNKED = re.compile(rb"^transfer-encoding:", re.IGNORECASE | re.MULTILINE)
_CONNECTION = re.compile(rb"^connection:[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)


class RoundRobin:
    """Passes requests to the ports in turn. `served[i]` is how many went to the i-th port."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.served = [0] * len(ports)
        self.port = 0
        self._ports = ports
        self._turn = itertools.cycle(range(len(ports)))

    async def start(self) -> asyncio.Server:
        """It listens on a free loopback port, which `port` names from now on."""
        server = await asyncio.start_server(self._serve, HOST, 0, limit=HEAD_MAX)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read_request(reader)
            if request is None:
                writer.write(b"HTTP/1.1 411 Length Required\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
                return
            await self._forward(request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # either side hung up; the other one is told by the close below
        finally:
            writer.close()

    async def _forward(self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        turn = next(self._turn)
        self.served[turn] += 1
        from_server, to_server = await asyncio.open_connection(HOST, self._ports[turn])
        try:
            to_server.write(request)
            await to_server.drain()
            # A client that leaves must reach the server: it ends the event stream it no longer reads.
            ways: set[asyncio.Task[Any]] = {
                asyncio.create_task(_pass_on(from_server, writer)),
                asyncio.create_task(reader.read(1)),
            }
            _, late = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in late:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            to_server.close()


async def _read_request(reader: asyncio.StreamReader) -> bytes | None:
    head = await reader.readuntil(b"\r\n\r\n")
    if _CHUNKED.search(head):
        return None
    length = _LENGTH.search(head)
    body = await reader.readexactly(int(length[1])) if length else b""
    return _CONNECTION.sub(b"", head)[:-2] + b"connection: close\r\n\r\n" + body


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(HEAD_MAX):
        target.write(data)
        await target.drain()


@contextmanager
def round_robin(ports: Sequence[int]) -> Generator[RoundRobin]:
    """A balancer in front of these ports serves, from a thread of its own, until the block ends."""
    balancer = RoundRobin(ports)
    with start_blocking_portal() as portal:
        server = portal.call(balancer.start)
        try:
            yield balancer
        finally:
            portal.call(server.close)
