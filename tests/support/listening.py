"""A `subscriptions/listen` by hand: the stream's frames as they come, read as fast or slowly as the test wants.

The ASGI app is called directly, because httpx's ASGI transport hands an answer out only once it is whole.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, cast

from starlette.applications import Starlette

from tests.conformance.wire_schema import validate
from tests.support.raw_client import URL, RawClient

#: Generous, because the machine is shared.
_WITHIN_S: Final = 30.0

SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"


class Listener:
    """One open stream."""

    def __init__(self) -> None:
        #: Of the HTTP response, once it has begun.
        self.status = 0
        #: While cleared, the client takes nothing more off its connection.
        self.reading = asyncio.Event()
        self.reading.set()
        #: How many pieces of the body the server has written.
        self.written = 0
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._begun, self._sse = asyncio.Event(), False
        self._left = asyncio.Event()

    # -------------------------------------------------------------------------------------------- for tests

    async def message(self) -> dict[str, Any]:
        """The next JSON-RPC message of the stream."""
        async with asyncio.timeout(_WITHIN_S):
            return await self._messages.get()

    async def acknowledged(self) -> list[str]:
        """The ids that were acknowledged; it is the first thing that is said."""
        params = validate("acknowledge", await self.message())
        assert params["_meta"][SUBSCRIPTION] == 1
        return params["notifications"]["taskIds"]

    async def task(self) -> dict[str, Any]:
        """The task as the next notification has it, without the stamp of its subscription."""
        params = validate("push", await self.message())
        meta = params["_meta"]
        assert meta.pop(SUBSCRIPTION) == 1
        if not meta:
            del params["_meta"]
        return params

    async def until(self, status: str) -> list[dict[str, Any]]:
        """The tasks that are told, up to one with that status."""
        told = [await self.task()]
        while told[-1]["status"] != status:
            told.append(await self.task())
        return told

    def silent(self) -> bool:
        """Nothing was said that the test has not taken."""
        return self._messages.empty()

    def leave(self) -> None:
        """The client closes its connection."""
        self._left.set()

    # -------------------------------------------------------------------------------------------- for the app

    async def receive(self) -> dict[str, Any]:
        """ASGI: after the body, nothing but the end of the connection."""
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: Mapping[str, Any]) -> None:
        """ASGI: a piece of the response."""
        if event["type"] == "http.response.start":
            self.status = event["status"]
            self._sse = dict(event["headers"])[b"content-type"].startswith(b"text/event-stream")
            return
        await self.reading.wait()
        body = cast("bytes", event.get("body", b""))
        if body:
            self.written += 1
        if self._sse:
            for line in body.decode().splitlines():
                if line.startswith("data: "):
                    self._messages.put_nowait(json.loads(line.removeprefix("data: ")))
        elif body:
            self._messages.put_nowait(json.loads(body))


@asynccontextmanager
async def listening(
    app: Starlette, client: RawClient, task_ids: Any, *, meta: Mapping[str, Any] | None = None, **more: Any
) -> AsyncGenerator[Listener]:
    """A stream that was asked for by the client; `more` is what it listens to besides the tasks."""
    body, headers = client.written("subscriptions/listen", {"notifications": {"taskIds": task_ids, **more}}, meta=meta)
    listener = Listener()
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            return await listener.receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", URL.split("/")[2].encode())]
        + [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }
    serving = asyncio.get_running_loop().create_task(cast("Any", app)(scope, receive, listener.send))
    try:
        yield listener
    finally:
        listener.reading.set()
        listener.leave()
        async with asyncio.timeout(_WITHIN_S):
            await serving
