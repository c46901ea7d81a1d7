"""The pages: what they show, at once and for as long as somebody looks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, Final, TypeAlias

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from mcptasks.console.desk import Desk
from mcptasks.console.live import drawn
from mcptasks.console.looks import Wanted
from mcptasks.console.questions import Refused, asked
from mcptasks.known import Known
from mcptasks.model import label

#: Of a stream on which nothing happens: proxies end connections that look dead.
_PING_S: Final = 15
#: A browser that takes nothing for so long is taken for gone: it would keep its stream for ever.
_SEND_S: Final = 60.0

Context: TypeAlias = dict[str, Any]


class _Stream(EventSourceResponse):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(SendTimeoutError):
            await super().__call__(scope, receive, send)


class Pages:
    """Everything that can be looked at."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def routes(self) -> list[Route]:
        """Their addresses."""
        return [
            Route("/", self.home),
            Route("/healthz", self.health),
            Route("/tasks", self.list),
            Route("/tasks/{task}", self.task),
            Route("/inbox", self.inbox),
            Route("/fleet", self.fleet),
            Route("/live/tasks", self.live_list),
            Route("/live/tasks/{task}", self.live_task),
            Route("/live/inbox", self.live_inbox),
            Route("/live/fleet", self.live_fleet),
        ]

    async def health(self, _: Request) -> Response:
        """It serves. Says nothing else, because everybody may ask."""
        return PlainTextResponse("ok\n")

    async def home(self, request: Request) -> Response:
        """To the list."""
        return self._desk.to(request, "/tasks")

    # -------------------------------------------------------------------------------------------- whole pages

    async def list(self, request: Request) -> Response:
        """The list of tasks."""
        self._desk.operator(request)
        known = await self._list(request, live=False)
        return await self._desk.page(request, "list.html", live=f"/live/tasks{known['listed'].wanted.here}", **known)

    async def task(self, request: Request) -> Response:
        """One task."""
        self._desk.operator(request)
        return await self.task_page(request, await self._desk.looks.task(request.path_params["task"]))

    async def task_page(
        self, request: Request, known: Known, *, key: str = "", form: Any = None, refusal: Refused | None = None
    ) -> Response:
        """One task, with a form that was refused where there is one."""
        questions = asked(known.task, known.now_ms, key, form, refusal)
        live = f"/live/tasks/{label(known.task.task_id)}"
        status = 200 if refusal is None else 422
        return await self._desk.page(request, "task.html", status, live=live, known=known, questions=questions)

    async def inbox(self, request: Request) -> Response:
        """What waits for a person."""
        self._desk.operator(request)
        known = await self._inbox(request, live=False)
        query = f"?after={request.query_params['after']}" if "after" in request.query_params else ""
        return await self._desk.page(request, "inbox.html", live=f"/live/inbox{query}", **known)

    async def fleet(self, request: Request) -> Response:
        """The door, and who works."""
        self._desk.operator(request)
        return await self._desk.page(request, "fleet.html", live="/live/fleet", **await self._fleet(request))

    # -------------------------------------------------------------------------------------------- their living parts

    async def live_list(self, request: Request) -> Response:
        """The list, as it changes."""
        return self._stream(request, "_list.html", self._list)

    async def live_task(self, request: Request) -> Response:
        """The task, as it changes."""
        return self._stream(request, "_task.html", self._task)

    async def live_inbox(self, request: Request) -> Response:
        """The inbox, as it changes."""
        return self._stream(request, "_inbox.html", self._inbox)

    async def live_fleet(self, request: Request) -> Response:
        """The fleet, as it changes."""
        return self._stream(request, "_fleet.html", self._fleet)

    def _stream(self, request: Request, name: str, look: Callable[[Request], Awaitable[Context]]) -> Response:
        self._desk.operator(request)

        async def draw() -> str:
            return await self._desk.part(request, name, **await look(request))

        async def events() -> AsyncGenerator[ServerSentEvent]:
            async with aclosing(drawn(self._desk.fleet, draw)) as parts:
                async for html in parts:
                    yield ServerSentEvent(html)

        return _Stream(events(), ping=_PING_S, send_timeout=_SEND_S)

    # -------------------------------------------------------------------------------------------- what they know

    async def _list(self, request: Request, *, live: bool = True) -> Context:
        listed = await self._desk.looks.list(Wanted.of(request.query_params), live=live)
        return {"listed": listed, "fleet": await self._desk.looks.fleet()}

    async def _task(self, request: Request) -> Context:
        known = await self._desk.looks.task(request.path_params["task"])
        return {"known": known, "questions": asked(known.task, known.now_ms), "fleet": await self._desk.looks.fleet()}

    async def _inbox(self, request: Request, *, live: bool = True) -> Context:
        inbox = await self._desk.looks.inbox(request.query_params.get("after", "")[:60], live=live)
        return {"inbox": inbox, "fleet": await self._desk.looks.fleet()}

    async def _fleet(self, _: Request) -> Context:
        return {"workers": await self._desk.looks.workers(), "fleet": await self._desk.looks.fleet()}
