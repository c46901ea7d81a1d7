"""What operators do: answer, cancel, retry, extend, close the door and open it. Each is a form that was sent.

Whatever happens to a task stands in its timeline with the operator's name, and in this process's log.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcptasks.console.desk import Desk, text_of
from mcptasks.console.pages import Pages
from mcptasks.console.questions import Refused, answer_of
from mcptasks.errors import BadAnswer, ConfigurationError, TooLarge
from mcptasks.model import label
from mcptasks.observe import tracing
from mcptasks.times import iso

log: Final = logging.getLogger("mcptasks.console")

_REASON_MAX: Final = 300

Action = Callable[[Request], Awaitable[Response]]


def _traced(action: Action) -> Action:
    async def traced(request: Request) -> Response:
        with tracing.operating(action.__name__, request.path_params.get("task", "")):
            return await action(request)

    return traced


class Actions:
    """Everything that can be done."""

    def __init__(self, desk: Desk, pages: Pages) -> None:
        self._desk, self._pages = desk, pages

    def routes(self) -> list[Route]:
        """Their addresses."""
        return [
            Route("/tasks/{task}/answer", _traced(self.answer), methods=["POST"]),
            Route("/tasks/{task}/cancel", _traced(self.cancel), methods=["POST"]),
            Route("/tasks/{task}/retry", _traced(self.retry), methods=["POST"]),
            Route("/tasks/{task}/extend", _traced(self.extend), methods=["POST"]),
            Route("/fleet/close", _traced(self.close), methods=["POST"]),
            Route("/fleet/open", _traced(self.open), methods=["POST"]),
            Route("/fleet/cancel", _traced(self.cancel_all), methods=["POST"]),
        ]

    async def answer(self, request: Request) -> Response:
        """The question has its answer; one that is none comes back with what is wrong."""
        form = await self._desk.form(request)
        known = await self._desk.looks.task(request.path_params["task"])
        task, key = known.task, str(form.get("key") or "")
        if key not in task.questions:
            return self._to_task(request, task.task_id, "Somebody answered this meanwhile. Nothing was stored.")
        try:
            answer = answer_of(task.questions[key], form)
            moves_on = await self._desk.acting(request).answer(task.task_id, {key: answer})
        except Refused as exc:
            return await self._pages.task_page(request, known, key=key, form=form, refusal=exc)
        except (BadAnswer, TooLarge) as exc:
            return await self._pages.task_page(request, known, key=key, form=form, refusal=Refused(str(exc)))
        self._did(request, "answered a question of", task.task_id)
        said = "Answered. The task moves on." if moves_on else "Answered. The task has other open questions."
        if form.get("back") == "inbox":
            return self._desk.to(request, "/inbox", said)
        return self._to_task(request, task.task_id, said)

    async def cancel(self, request: Request) -> Response:
        """The task has ended, or its run is told to stop."""
        form = await self._desk.form(request)
        name, task_id = self._desk.operator(request), await self._id(request)
        reason = text_of(form, "reason", _REASON_MAX) or "Cancelled"
        outcome = await self._desk.acting(request).cancel(task_id, f"{reason} (by operator {name})")
        if outcome != "FINISHED":
            self._did(request, "cancelled", task_id)
        told = {
            "CANCELLED": "Cancelled.",
            "REQUESTED": "It runs, and was told to stop. It ends when its tool does.",
            "FINISHED": "It had ended before. Nothing was changed.",
        }
        return self._to_task(request, task_id, told[outcome])

    async def retry(self, request: Request) -> Response:
        """A new task does what the failed one was to do."""
        await self._desk.form(request)
        failed = await self._id(request)
        fresh = await self._desk.acting(request).retry(failed)
        self._did(request, "retried", failed)
        return self._to_task(request, fresh, f"This task does again what {label(failed)} was to do.")

    async def extend(self, request: Request) -> Response:
        """The task is kept longer."""
        form = await self._desk.form(request)
        longer = text_of(form, "by", 20, needed='Say how much longer, for instance "12h" or "7d".')
        task_id = await self._id(request)
        try:
            until_ms = await self._desk.acting(request).extend_by(task_id, longer)
        except ConfigurationError as exc:
            raise HTTPException(422, str(exc)) from None
        self._did(request, "extended", task_id)
        said = "It is kept for ever." if until_ms is None else f"It is kept until {iso(until_ms)}."
        return self._to_task(request, task_id, said)

    async def close(self, request: Request) -> Response:
        """New tasks are refused."""
        form = await self._desk.form(request)
        reason = text_of(form, "reason", _REASON_MAX, needed="Say why: refused callers are told.")
        await self._desk.fleet.close_admission(reason)
        self._did(request, "closed admission")
        return self._desk.to(request, "/fleet", "New tasks are refused from now on. Admitted ones go on.")

    async def open(self, request: Request) -> Response:
        """New tasks are taken again."""
        await self._desk.form(request)
        await self._desk.fleet.open_admission()
        self._did(request, "opened admission")
        return self._desk.to(request, "/fleet", "New tasks are accepted again.")

    async def cancel_all(self, request: Request) -> Response:
        """Every unfinished task has ended or is told to stop."""
        form = await self._desk.form(request)
        name = self._desk.operator(request)
        if form.get("sure") != "yes":
            raise HTTPException(422, "Tick the box if you mean all unfinished tasks. Nothing was done.")
        reason = text_of(form, "reason", _REASON_MAX, needed="Say why: the tasks' callers are told.")
        count = await self._desk.acting(request).cancel_all(f"{reason} (by operator {name})")
        self._did(request, "cancelled all unfinished tasks")
        return self._desk.to(request, "/fleet", f"{count} tasks were cancelled or told to stop.")

    async def _id(self, request: Request) -> str:
        return await self._desk.fleet.find(request.path_params["task"])

    def _to_task(self, request: Request, task_id: str, said: str) -> Response:
        return self._desk.to(request, f"/tasks/{label(task_id)}", said)

    def _did(self, request: Request, what: str, task_id: str = "") -> None:
        log.info("Operator %r %s%s", self._desk.operator(request), what, f" task {label(task_id)}" if task_id else "")
