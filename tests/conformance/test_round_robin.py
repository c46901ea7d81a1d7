"""The balancer must do what the conformance runs lean on: alternate per request, and not hold a stream back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from tests.conformance.round_robin import HOST, RoundRobin

pytestmark = pytest.mark.anyio

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def in_front_of(*answers: Answer) -> AsyncGenerator[RoundRobin]:
    """A balancer in front of servers that answer each connection so; nothing in the block waits for ever."""
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(10))
        servers = [await stack.enter_async_context(await asyncio.start_server(answer, HOST, 0)) for answer in answers]
        balancer = RoundRobin([server.sockets[0].getsockname()[1] for server in servers])
        await stack.enter_async_context(await balancer.start())
        yield balancer


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """The head and the five bytes of body that these tests send."""
    return await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(5)


async def ask(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request has been sent as a client that wants to keep its connection."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"POST /mcp HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello")
    return reader, writer


async def test_each_request_reaches_the_next_server_with_its_body() -> None:
    """Ours: P20 is only shown when no two requests of a client meet the same server process."""
    seen: list[tuple[str, bytes]] = []

    def named(name: str) -> Answer:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append((name, await read_request(reader)))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n" + name.encode())
            writer.close()

        return answer

    async with in_front_of(named("a"), named("b")) as balancer:
        for _ in range(5):
            reader, writer = await ask(balancer.port)
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
            writer.close()

    assert [name for name, _ in seen] == ["a", "b", "a", "b", "a"]
    assert balancer.served == [3, 2]
    for _, request in seen:
        assert request.endswith(b"\r\n\r\nhello")
        assert b"connection: close" in request
        assert b"keep-alive" not in request


async def test_the_first_event_of_a_stream_arrives_before_the_second_is_written() -> None:
    """Ours: a balancer that buffered would deadlock here, and hide a server's late frames in the suite."""
    read_by_client = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n")
        await writer.drain()
        await read_by_client.wait()
        writer.write(b"data: 2\n\n")
        writer.close()

    async with in_front_of(answer) as balancer:
        reader, writer = await ask(balancer.port)
        await reader.readuntil(b"data: 1\n\n")
        read_by_client.set()
        assert await reader.read() == b"data: 2\n\n"
        writer.close()


async def test_a_client_that_leaves_is_noticed_by_the_server() -> None:
    """Ours: a server ends a stream that nobody reads; a balancer that kept it open would keep the server busy."""
    gone = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\ndata: 1\n\n")
        await reader.read()
        gone.set()
        writer.close()

    async with in_front_of(answer) as balancer:
        reader, writer = await ask(balancer.port)
        await reader.readuntil(b"data: 1\n\n")
        writer.close()
        await gone.wait()


async def test_a_request_of_unknown_length_is_refused() -> None:
    """Ours: passing on only the first part of a chunked body would be a wrong request, so none is made."""

    async def never(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with in_front_of(never) as balancer:
        reader, writer = await asyncio.open_connection(HOST, balancer.port)
        writer.write(b"POST /mcp HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 411 ")
        writer.close()
    assert balancer.served == [0]
