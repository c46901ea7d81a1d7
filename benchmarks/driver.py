"""The load driver: the same code, byte for byte, against every server, speaking MCP 2026-07-28 over streamable HTTP.

It is a client of its own because its cost is part of every figure: httpx2 took 2.8 ms of CPU for one request here, the
server about 4 ms, so on few cores httpx2 would have been half of what is measured; this takes 0.6 ms. It understands
only what a server sends for a silent tool: one JSON body with a Content-Length.

Every request carries what a modern client sends: the `_meta` of protocol version, client info and capabilities
(elicitation and the tasks extension declared), and the headers `Mcp-Method`, `Mcp-Name`, `Mcp-Protocol-Version`.

Polling is the same for both systems and ignores the advertised `pollIntervalMs`, so that it is the server's latency
that shows: the first `tasks/get` 2 ms after the call, then the pause grows by half each time up to 20 ms.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_NAME_HEADER, MCP_PROTOCOL_VERSION_HEADER
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY

VERSION: Final = "2026-07-28"
POLL_FIRST_MS: Final = 2.0
POLL_GROWTH: Final = 1.5
POLL_MAX_MS: Final = 20.0

#: No single answer and no single task takes this long in a sound run; past it the run fails instead of hanging.
PATIENCE_S: Final = 60.0

_META: Final = {
    PROTOCOL_VERSION_META_KEY: VERSION,
    CLIENT_INFO_META_KEY: {"name": "mcptasks-bench", "version": "1"},
    CLIENT_CAPABILITIES_META_KEY: {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}},
}


class WrongAnswer(Exception):
    """A server did not answer as the protocol or the tool demands: the figures would be worthless."""


class Client:
    """One keep-alive connection to one MCP server."""

    def __init__(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._port, self._reader, self._writer = port, reader, writer
        self._head = (
            f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
            f"accept: application/json, text/event-stream\r\n{MCP_PROTOCOL_VERSION_HEADER}: {VERSION}\r\n"
        )
        self._sent = 0

    @classmethod
    async def open(cls, port: int) -> Client:
        """A connection that has served one call, so that accepting it is in nobody's figure.

        Raises:
            OSError: nobody listens on the port.
            WrongAnswer: what listens is not the benchmark's server.
        """
        client = cls(port, *await asyncio.open_connection("127.0.0.1", port))
        await client.plain_add(1, 1)
        return client

    def close(self) -> None:
        """The connection is gone."""
        self._writer.close()

    async def request(self, method: str, name: str, params: dict[str, Any]) -> dict[str, Any]:
        """The `result` of one JSON-RPC request.

        Raises:
            WrongAnswer: a JSON-RPC error, an answer that is not one JSON body, or none because the server hung up.
            TimeoutError: no answer within a minute.
        """
        self._sent += 1
        message = {"jsonrpc": "2.0", "id": self._sent, "method": method, "params": {**params, "_meta": _META}}
        body = json.dumps(message, separators=(",", ":")).encode()
        head = (
            f"{self._head}{MCP_METHOD_HEADER}: {method}\r\n{MCP_NAME_HEADER}: {name}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        if (
            self._reader.at_eof()
        ):  # servers hang up on a connection that idles for seconds, as in a long wait for others
            self._writer.close()
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(head.encode() + body)
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = json.loads(await self._body(method))
        except asyncio.IncompleteReadError as exc:
            raise WrongAnswer(f"{method}: the server hung up instead of answering") from exc
        if answer.get("id") != self._sent or "result" not in answer:
            raise WrongAnswer(f"{method} {name}: {json.dumps(answer)[:300]}")
        return answer["result"]

    async def _body(self, method: str) -> bytes:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head.split("\r\n")[1:-2])}
        if "content-length" not in headers or not headers.get("content-type", "").startswith("application/json"):
            raise WrongAnswer(f"{method}: expected one JSON body, got {head.splitlines()[0]} {headers}")
        return await self._reader.readexactly(int(headers["content-length"]))

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of `tools/call`, whatever kind it is of."""
        return await self.request("tools/call", tool, {"name": tool, "arguments": arguments})

    async def plain_add(self, a: int, b: int) -> None:
        """The live tool has answered, and rightly."""
        check_sum(await self.call("plain_add", {"a": a, "b": b}), a + b)

    async def create(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The handle (`CreateTaskResult`) of a call that became a task.

        Raises:
            WrongAnswer: the server ran the call live.
        """
        handle = await self.call(tool, arguments)
        if handle.get("resultType") != "task":
            raise WrongAnswer(f"{tool}: no task but {json.dumps(handle)[:300]}")
        return handle

    async def get(self, task_id: str) -> dict[str, Any]:
        """The task as `tasks/get` shows it."""
        return await self.request("tasks/get", task_id, {"taskId": task_id})

    async def answer(self, task_id: str, responses: dict[str, Any]) -> None:
        """`tasks/update` is acknowledged."""
        await self.request("tasks/update", task_id, {"taskId": task_id, "inputResponses": responses})

    async def until(self, task_id: str, status: str) -> dict[str, Any]:
        """The task in the awaited status, polled as the module's docstring says.

        Raises:
            WrongAnswer: the task ended in another status.
            TimeoutError: it did neither within a minute.
        """
        pause_ms = POLL_FIRST_MS
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await asyncio.sleep(pause_ms / 1000)
                task = await self.get(task_id)
                if task["status"] == status:
                    return task
                if task["status"] in ("completed", "failed", "cancelled"):
                    raise WrongAnswer(f"waited for {status}: {json.dumps(task)[:300]}")
                pause_ms = min(pause_ms * POLL_GROWTH, POLL_MAX_MS)


def check_sum(result: dict[str, Any], expected: int) -> None:
    """The tool result carries the expected sum.

    Raises:
        WrongAnswer: it does not.
    """
    if result.get("structuredContent") != {"result": expected}:
        raise WrongAnswer(f"expected {expected}: {json.dumps(result)[:300]}")


@dataclass(frozen=True)
class Samples:
    """What one measure gave in one round."""

    #: One duration per operation, in milliseconds.
    ms: Sequence[float]
    #: From the start of the first operation to the end of the last, in milliseconds.
    wall_ms: float


@asynccontextmanager
async def connected(port: int, concurrency: int):
    """`concurrency` open clients; closed afterwards."""
    clients = [await Client.open(port) for _ in range(concurrency)]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


def now_ms() -> float:
    """Milliseconds on a clock that only runs forward."""
    return time.perf_counter() * 1000


async def spread(
    clients: Sequence[Client], count: int, op: Callable[[Client, int], Awaitable[float | None]]
) -> Samples:
    """`op` has run `count` times, each client taking the next number as soon as it is free (a closed loop).

    `op` gets the client and the number, and returns a duration in milliseconds if it times a part of itself only.
    """
    numbers = iter(range(count))
    durations: list[float] = []

    async def work(client: Client) -> None:
        for number in numbers:
            started = now_ms()
            own = await op(client, number)
            durations.append(now_ms() - started if own is None else own)

    began = now_ms()
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(work(client))
    return Samples(durations, now_ms() - began)
