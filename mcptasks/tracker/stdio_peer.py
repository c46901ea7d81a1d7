"""A server that is a program of our own, spoken to over its standard input and output."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, aclosing
from typing import Any, Final, TextIO, TypeAlias, cast

import anyio
from anyio.abc import Process
from mcp.client.stdio import StdioServerParameters
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY

from mcptasks.strict_json import dumps
from mcptasks.tracker.peer import Greeting, Peer
from mcptasks.tracker.program import TooLong, lines, running, write
from mcptasks.tracker.remote import ProtocolBroken, RemoteUnavailable
from mcptasks.tracker.strict import finite, outcome

log: Final = logging.getLogger("mcptasks.tracker")

#: In a request of the server's: the task that asks it (2025-11-25).
_RELATED_META: Final = "io.modelcontextprotocol/related-task"
#: Messages that the program has not read: one that has so many reads none, and is started again.
_UNREAD_MAX: Final = 1_000

#: Messages of the program's that one stream has not taken; further ones are lost, and the next look finds the same.
_UNHEARD_MAX: Final = 1_000
#: How long a program that takes no more is still listened to.
_LAST_WORDS_S: Final = 0.5

_Heard: TypeAlias = dict[str, Any] | RemoteUnavailable | ProtocolBroken
"""A message, or why there is none."""


class _Pipe:
    """The program while it runs. One task opens and closes it: the SDK's cancel scopes must not change tasks."""

    def __init__(self) -> None:
        self.outgoing = asyncio.Queue[bytes]()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: By the id of the request that waits for it; a stream takes more than one message.
        self.waiting: dict[int, asyncio.Queue[_Heard]] = {}
        #: By the remote task that a stream is about: what the server asks for it comes there.
        self.related: dict[str, asyncio.Queue[_Heard]] = {}
        self.owner: asyncio.Task[None] | None = None
        self.scope = anyio.CancelScope()
        self.gone = False

    def send(self, message: Mapping[str, Any]) -> bool:
        """The program gets the message, in its turn. False: it has not read what it was sent before, and is ended."""
        if self.outgoing.qsize() >= _UNREAD_MAX:
            self.scope.cancel()
            return False
        self.outgoing.put_nowait(dumps(message, "The message").encode())
        return True


class StdioPeer(Peer):
    """One process, started at the first request and again at the next one after it has ended."""

    def __init__(self, *args: Any, parameters: StdioServerParameters, body_max: int) -> None:
        """`args`: as of `Peer`. `body_max`: bytes of one line."""
        super().__init__(*args)
        self._parameters, self._body_max = parameters, body_max
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
                self._send(pipe, message)
                while "method" in (found := await _next(answers)):
                    pass
                return outcome(finite(found, self.server), request_id, self.server)
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
            self._send(pipe, message)
            while "method" in (found := finite(await _next(answers), self.server)):
                yield found
            yield {"result": outcome(found, request_id, self.server)}
        finally:
            pipe.waiting.pop(request_id, None)
            if pipe.related.get(about) is answers:
                del pipe.related[about]
            if not pipe.gone:
                params = {"requestId": request_id, "reason": "nobody listens any more"}
                pipe.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    async def respond(self, request_id: object, result: Any, *, session: str | None = None) -> None:
        pipe = await self._running()
        self._send(pipe, {"jsonrpc": "2.0", "id": request_id, "result": result})

    async def _initialize(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        request_id = next(self._ids)
        message = {"jsonrpc": "2.0", "id": request_id, "method": "initialize", "params": params}
        return await self._asked(request_id, message), None

    async def _initialized(self, greeting: Greeting) -> None:
        pipe = await self._running()
        self._send(pipe, {"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _send(self, pipe: _Pipe, message: Mapping[str, Any]) -> None:
        if not pipe.send(message):
            raise RemoteUnavailable(f"The program of server {self.server!r} does not read what it is sent", sent=False)

    def _over(self, *, sent: bool = True) -> RemoteUnavailable:
        return RemoteUnavailable(f"The program of server {self.server!r} ended before it answered", sent=sent)

    # ------------------------------------------------------------------------------------------------ the process

    async def _running(self) -> _Pipe:
        async with self._starts:
            if self._pipe is None or self._pipe.gone:
                pipe = self._pipe = _Pipe()
                # In a context of its own: it outlives the task for which it is started.
                pipe.owner = asyncio.create_task(self._own(pipe), context=contextvars.Context())
                try:
                    await asyncio.shield(pipe.ready)
                except (OSError, ValueError) as exc:
                    raise RemoteUnavailable(
                        f"The program of server {self.server!r} does not start ({type(exc).__name__})", sent=False
                    ) from None
            return self._pipe

    async def _own(self, pipe: _Pipe) -> None:
        try:
            with pipe.scope, ExitStack() as stack:
                async with running(self._parameters, _errlog(stack)) as process:
                    pipe.ready.set_result(None)
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._write, pipe, process)
                        async with aclosing(lines(process, self._body_max)) as said:
                            async for line in said:
                                self._hear(pipe, line)
                        group.cancel_scope.cancel()
        except Exception as exc:
            if pipe.ready.done():
                log.warning("The program of server %s is given up (%s)", self.server, type(exc).__name__)
            else:
                pipe.ready.set_exception(exc)
        finally:
            pipe.gone = True
            if not pipe.ready.done():
                pipe.ready.set_exception(self._over(sent=False))
            pipe.ready.exception()  # nobody may wait for it any more
            if self._pipe is pipe:
                self._greeting = None
            for answers in pipe.waiting.values():
                answers.put_nowait(self._over())

    async def _write(self, pipe: _Pipe, process: Process) -> None:
        while await write(process, await pipe.outgoing.get()):
            pass
        # It may have answered and gone: what it said last is still to be read.
        await asyncio.sleep(_LAST_WORDS_S)
        pipe.scope.cancel()

    def _hear(self, pipe: _Pipe, line: bytes | TooLong) -> None:
        if isinstance(line, TooLong):
            log.warning("Server %s wrote a line of more than %s bytes", self.server, f"{self._body_max:,}")
            if line.request_id is not None and (answers := pipe.waiting.get(line.request_id)) is not None:
                text = f"Server {self.server!r} sent an answer of more than {self._body_max:,} bytes"
                answers.put_nowait(ProtocolBroken(text))
            return
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return  # a line that is no message says nothing
        if isinstance(message, dict):
            self._take(pipe, cast("dict[str, Any]", message))

    def _take(self, pipe: _Pipe, message: dict[str, Any]) -> None:
        meta = _member(_member(message, "params"), "_meta")
        if "method" not in message:
            to = message.get("id")
        elif "id" in message:
            answers = pipe.related.get(str(_member(_member(meta, _RELATED_META), "taskId")))
            if answers is None:
                pipe.send(self._asked_back(message))
            elif answers.qsize() < _UNHEARD_MAX:
                answers.put_nowait(message)
            return
        else:
            to = _member(meta, SUBSCRIPTION_ID_META_KEY)
        answers = pipe.waiting.get(to) if isinstance(to, int) else None
        if answers is not None and ("method" not in message or answers.qsize() < _UNHEARD_MAX):
            answers.put_nowait(message)


def _member(value: Any, name: str) -> Any:
    """Of an object, and of what is none, None."""
    return value.get(name) if isinstance(value, dict) else None


async def _next(answers: asyncio.Queue[_Heard]) -> dict[str, Any]:
    found = await answers.get()
    if not isinstance(found, dict):
        raise found
    return found


def _errlog(stack: ExitStack) -> TextIO:
    """Where the program's log lines go: to our standard error if that is a file, which in a Celery worker it is not."""
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError):
        return stack.enter_context(open(os.devnull, "w"))
    return sys.stderr
