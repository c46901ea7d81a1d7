"""Who is told of news: a Python function or a task of Celery's. A webhook and the handler of questions stand beside.

(The stream `events` in the store has every event without being asked; `Tracker.events` reads it.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import isawaitable
from typing import Any, Final, Protocol

from mcptasks.tracker.errors import Refused
from mcptasks.tracker.model import Delivery, Event, Tracked

#: What a consumer's name may be: it stands in names of keys and fields.
NAME: Final = r"[A-Za-z0-9_.-]{1,64}"

#: Messages that one consumer sends at a time.
_PUBLISHERS: Final = 4


class Consumer(Protocol):
    """Takes events. One that it has not handled when it raises comes again; `Refused` sends it to the dead letters."""

    async def deliver(self, delivery: Delivery) -> None:
        """The event is handled."""
        ...


class Function:
    """An async function is told: of the event, and of the task as it is now."""

    def __init__(self, function: Callable[[Event, Tracked], Awaitable[None]]) -> None:
        self._function = function

    async def deliver(self, delivery: Delivery) -> None:
        """The function has returned.

        Raises:
            Refused: it is a plain one, which a loop must not wait for; it was called.
        """
        said: object = self._function(delivery.event, delivery.task)
        if not isawaitable(said):
            raise Refused("it is no async function")
        await said


class CeleryTask:
    """A task of Celery's is sent the event, as its one argument: a dict without questions or results.

    The task looks them up (`Tracker.get`): payloads never enter a message.
    """

    def __init__(self, app: Any, name: str, *, queue: str | None = None) -> None:
        """`app` is the Celery app that the task, called `name` there, is of."""
        self._app, self._name, self._queue = app, name, queue
        # Of its own: a broker that hangs must not take the threads in which names are resolved for everybody else.
        self._threads = ThreadPoolExecutor(_PUBLISHERS, thread_name_prefix="mcptasks-news")

    async def deliver(self, delivery: Delivery) -> None:
        """The broker has the message. The same event has the same message id, should it be sent again."""
        event = delivery.event
        options: dict[str, Any] = {"task_id": event.event_id, "argsrepr": f"({event.kind},)", "ignore_result": True}
        if self._queue is not None:
            options["queue"] = self._queue
        # Publishing blocks.
        send = partial(self._app.send_task, self._name, (event.as_json(),), **options)
        await asyncio.get_running_loop().run_in_executor(self._threads, send)
