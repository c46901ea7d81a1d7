"""The questions of 2025-11-25's tasks: requests of the server's, on a stream that is kept open for them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, cast

from mcptasks.errors import MCPTasksError
from mcptasks.settings import MIB
from mcptasks.tracker.drivers.sessions import session_of, task_of
from mcptasks.tracker.peer import Peer
from mcptasks.tracker.remote import RemoteUnavailable

#: How long a look waits for the questions of a task that says that it has some.
_HEAR_S: Final = 3.0
#: Streams that one process keeps open at one server; of further tasks the questions come later.
_STREAMS: Final = 50
#: Bytes of one task's questions, by far more than can be stored: a server that asks without end is not listened to.
_HEARD_MAX: Final = 1 * MIB


@dataclass
class _Conversation:
    #: By our key: the id of the server's request, and the request.
    asked: dict[str, tuple[object, dict[str, Any]]] = field(default_factory=dict[str, tuple[object, dict[str, Any]]])
    news: asyncio.Event = field(default_factory=asyncio.Event)
    listening: asyncio.Task[None] | None = None


class Conversations:
    """The open streams of one server's tasks that ask, one each."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._open: dict[str, _Conversation] = {}

    async def questions(self, handle: str) -> dict[str, Any]:
        """What the task asks and nobody has answered; waits a little for the first. Opens its stream if there is none.

        A question's key holds for as long as the server asks it with the same JSON-RPC id.
        """
        talk = self._talk(handle)
        if talk is None:
            return {}
        if not talk.asked:
            await _wait(talk.news)
        return {key: request for key, (_, request) in talk.asked.items()}

    async def answer(self, handle: str, answers: Mapping[str, Any]) -> None:
        """The server has the answers.

        Raises:
            RemoteUnavailable: a question is not open here: another process heard it, or the server's session is over.
        """
        talk = self._talk(handle)
        if talk is not None and not answers.keys() <= talk.asked.keys():
            talk.news.clear()
            await _wait(talk.news)
        if talk is None or not answers.keys() <= talk.asked.keys():
            raise RemoteUnavailable(
                f"Server {self._peer.server!r} has not asked this in this process; a 2025-11-25 question can be "
                "answered only where it was heard",
                sent=False,
            )
        for key, answer in answers.items():
            await self._peer.respond(talk.asked[key][0], answer, session=session_of(handle))
            talk.asked.pop(key, None)
        talk.news.clear()

    def forget(self, handle: str) -> None:
        """The task's stream is about to be closed; it asks nothing any more."""
        talk = self._open.pop(handle, None)
        if talk is not None and talk.listening is not None:
            talk.listening.cancel()

    async def aclose(self) -> None:
        """All streams are closed."""
        tasks = [talk.listening for talk in self._open.values() if talk.listening is not None]
        self._open.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _talk(self, handle: str) -> _Conversation | None:
        if (talk := self._open.get(handle)) is None:
            if len(self._open) >= _STREAMS:
                return None
            talk = self._open[handle] = _Conversation()
            talk.listening = asyncio.create_task(self._listen(handle, talk))
        return talk

    async def _listen(self, handle: str, talk: _Conversation) -> None:
        heard = 0
        try:
            params, session = {"taskId": task_of(handle)}, session_of(handle)
            async with aclosing(self._peer.stream("tasks/result", params, session=session)) as messages:
                async for message in messages:
                    if "id" in message and isinstance(message.get("method"), str):
                        params = message.get("params")
                        request = {"method": message["method"], "params": _plain(params)}
                        talk.asked[_key(message["id"], request)] = (message["id"], request)
                        talk.news.set()
                        heard += len(json.dumps(request))
                        if heard > _HEARD_MAX:
                            return  # what it has asked is too much to be stored, and ends its task
        except MCPTasksError:
            pass  # the next look sees what there is to see, and opens another stream
        finally:
            talk.news.set()
            if self._open.get(handle) is talk:
                del self._open[handle]


def _plain(params: object) -> dict[str, Any]:
    found = cast("dict[str, Any]", params) if isinstance(params, dict) else {}
    return {name: value for name, value in found.items() if name != "_meta"}


def _key(request_id: object, request: Mapping[str, Any]) -> str:
    """The same for the same request, asked again; another one for another."""
    text = json.dumps([request_id, request], sort_keys=True)
    return f"q-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


async def _wait(news: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(_HEAR_S):
            await news.wait()
    except TimeoutError:
        pass
