"""A server that is a program of our own, spoken to over its standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack
from typing import Any, Final, TextIO

import anyio
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.message import SessionMessage
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter

from mcptasks.tracker.peer import Greeting, Peer
from mcptasks.tracker.remote import RemoteUnavailable
from mcptasks.tracker.strict import finite, outcome

#: In a request of the server's: the task that asks it (2025-11-25).
_RELATED_META: Final = "io.modelcontextprotocol/related-task"


class _Pipe:
    """The program while it runs. One task opens and closes it: the SDK's cancel scopes must not change tasks."""

    def __init__(self) -> None:
        self.outgoing = asyncio.Queue[dict[str, Any]]()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: By the id of the request that waits for it; a stream takes more than one message.
        self.waiting: dict[int, asyncio.Queue[dict[str, Any] | None]] = {}
        #: By the remote task that a stream is about: what the server asks for it comes there.
        self.related: dict[str, asyncio.Queue[dict[str, Any] | None]] = {}
        self.owner: asyncio.Task[None] | None = None
        self.scope = anyio.CancelScope()
        self.gone = False


class StdioPeer(Peer):
    """One process, started at the first request and again at the next one after it has ended."""

    def __init__(self, *args: Any, parameters: StdioServerParameters) -> None:
        """`args`: as of `Peer`."""
        super().__init__(*args)
        self._parameters = parameters
        self._pipe: _Pipe | None = None
        self._starts = asyncio.Lock()

    async def aclose(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None and pipe.owner is not None:
            pipe.scope.cancel()
            await pipe.owner

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
        return await self._asked(request_id, message)

    async def _asked(self, request_id: int, message: dict[str, Any]) -> dict[str, Any]:
        pipe = await self._running()
        answers = pipe.waiting[request_id] = asyncio.Queue()
        try:
            with anyio.fail_after(self._timeout_s):
                pipe.outgoing.put_nowait(message)
                while (found := await answers.get()) is not None:
                    if "method" not in found:
                        return outcome(finite(found, self.server), request_id, self.server)
            raise self._over()
        except TimeoutError:
            raise RemoteUnavailable(f"Server {self.server!r} did not answer within {self._timeout_s:g} s") from None
        finally:
            pipe.waiting.pop(request_id, None)

    async def stream(
        self, method: str, params: Mapping[str, Any], *, session: str | None = None
    ) -> AsyncGenerator[dict[str, Any]]:
        greeting = await self.greet()
        pipe = await self._running()
        request_id, message = self._message(greeting, method, params)
        answers = pipe.waiting[request_id] = asyncio.Queue()
        about = str(params.get("taskId"))
        pipe.related[about] = answers
        try:
            pipe.outgoing.put_nowait(message)
            while (found := await answers.get()) is not None:
                if "method" not in finite(found, self.server):
                    yield {"result": outcome(found, request_id, self.server)}
                    return
                yield found
            raise self._over()
        finally:
            pipe.waiting.pop(request_id, None)
            if pipe.related.get(about) is answers:
                del pipe.related[about]
            if not pipe.gone:
                params = {"requestId": request_id, "reason": "nobody listens any more"}
                pipe.outgoing.put_nowait({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    async def respond(self, request_id: object, result: Any, *, session: str | None = None) -> None:
        pipe = await self._running()
        pipe.outgoing.put_nowait({"jsonrpc": "2.0", "id": request_id, "result": result})

    async def _initialize(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        request_id = next(self._ids)
        message = {"jsonrpc": "2.0", "id": request_id, "method": "initialize", "params": params}
        return await self._asked(request_id, message), None

    async def _initialized(self, greeting: Greeting) -> None:
        pipe = await self._running()
        pipe.outgoing.put_nowait({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _over(self) -> RemoteUnavailable:
        return RemoteUnavailable(f"The program of server {self.server!r} ended before it answered")

    # ------------------------------------------------------------------------------------------------ the process

    async def _running(self) -> _Pipe:
        async with self._starts:
            if self._pipe is None or self._pipe.gone:
                pipe = self._pipe = _Pipe()
                pipe.owner = asyncio.create_task(self._own(pipe))
                try:
                    await pipe.ready
                except (OSError, ValueError) as exc:
                    raise RemoteUnavailable(
                        f"The program of server {self.server!r} does not start ({type(exc).__name__})", sent=False
                    ) from None
            return self._pipe

    async def _own(self, pipe: _Pipe) -> None:
        try:
            with pipe.scope, ExitStack() as stack:
                async with stdio_client(self._parameters, errlog=_errlog(stack)) as (incoming, outgoing):
                    pipe.ready.set_result(None)
                    async with anyio.create_task_group() as group:

                        async def write() -> None:
                            while True:
                                message = jsonrpc_message_adapter.validate_python(await pipe.outgoing.get())
                                await outgoing.send(SessionMessage(message))

                        group.start_soon(write)
                        async for item in incoming:
                            if isinstance(item, SessionMessage):  # else a line that is no message: it says nothing
                                self._take(pipe, _plain(item.message))
                        group.cancel_scope.cancel()
        except Exception as exc:
            if not pipe.ready.done():
                pipe.ready.set_exception(exc)
        finally:
            pipe.gone = True
            if not pipe.ready.done():
                pipe.ready.cancel()
            if self._pipe is pipe:
                self._greeting = None
            for answers in pipe.waiting.values():
                answers.put_nowait(None)

    def _take(self, pipe: _Pipe, message: dict[str, Any]) -> None:
        meta = _member(_member(message, "params"), "_meta")
        if "method" not in message:
            to = message.get("id")
        elif "id" in message:
            answers = pipe.related.get(str(_member(_member(meta, _RELATED_META), "taskId")))
            if answers is None:
                pipe.outgoing.put_nowait(self._asked_back(message))
            else:
                answers.put_nowait(message)
            return
        else:
            to = _member(meta, SUBSCRIPTION_ID_META_KEY)
        if isinstance(to, int) and (answers := pipe.waiting.get(to)) is not None:
            answers.put_nowait(message)


def _member(value: Any, name: str) -> Any:
    """Of an object, and of what is none, None."""
    return value.get(name) if isinstance(value, dict) else None


def _plain(message: JSONRPCMessage) -> dict[str, Any]:
    return message.model_dump(by_alias=True, mode="python", exclude_unset=True)


def _errlog(stack: ExitStack) -> TextIO:
    """Where the program's log lines go: to our standard error if that is a file, which in a Celery worker it is not."""
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError):
        return stack.enter_context(open(os.devnull, "w"))
    return sys.stderr
