"""HTTP/1.1 on a loopback port, by hand: a test decides about every byte and every end of a connection."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class LoopbackServer(ABC):
    """Serves in a thread of its own from `with` to its end."""

    def __init__(self, port: int) -> None:
        """`port`: 0 for one that is free."""
        self.port = port
        #: TCP connections that are open now, and that ever were.
        self.open_connections, self.connections = 0, 0
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._serve, name="stub-server", daemon=True)
        self._ready = threading.Event()
        self._stop = asyncio.Event()

    @abstractmethod
    async def request(self, verb: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> bool:
        """Write what this request is answered. True: the connection can be used again."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        assert self._ready.wait(10), "the stub server does not come up"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _main(self) -> None:
        handlers = set[asyncio.Task[None]]()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._connection(reader, writer))
            handlers.add(task)
            task.add_done_callback(handlers.discard)

        server = await asyncio.start_server(connected, "127.0.0.1", self.port, limit=64 * 1024 * 1024)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(handlers):
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_connections += 1
        self.connections += 1
        try:
            while (request := await self._read(reader)) is not None:
                verb, headers, body = request
                if not await self.request(verb, headers, body, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open_connections -= 1
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes] | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.rstrip("\r\n").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return first.split(" ")[0], headers, await reader.readexactly(int(headers.get("content-length", "0")))
