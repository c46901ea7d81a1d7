"""Hears of tasks instead of asking for them: one `subscriptions/listen` per session, for all that are waited for.

A stream's filter is fixed when it is opened, so further tasks mean a new stream in place of the old one. Nothing here
is needed for a result: where a server does not push, or a stream breaks, waiting polls as if there were none.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final
from weakref import ref

import anyio
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    SubscriptionFilter,
    SubscriptionsListenRequest,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
)

from mcptasks.client.polling import Ear
from mcptasks.wire import MODERN, DetailedTask

log: Final = logging.getLogger("mcptasks.client")

#: A task that is over by then costs no stream, and tasks that begin together share one ...
SETTLE_S: Final = 0.1
#: ... for which each task already listened to adds this much, because a new stream tells of every one of them again.
SETTLE_PER_TASK_S: Final = 0.002

#: Between a stream that broke and the next; doubling up to the last while streams break before they told anything.
FIRST_AGAIN_S: Final = 1.0
LAST_AGAIN_S: Final = 60.0

#: Answers after which this session does not ask again: the server does not push.
_NEVER: Final = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY})


class Listener:
    """The stream of one session, open for as long as somebody waits for a task."""

    def __init__(self, session: ClientSession) -> None:
        #: Whoever waits has it; a strong one here would keep it for as long as its extension.
        self._session = ref(session)
        self._offered = session.protocol_version in MODERN
        self._ears: dict[str, list[Ear]] = {}
        self._life: anyio.CancelScope | None = None
        self._running = set[asyncio.Task[None]]()
        #: Of the stream that is open.
        self._stream: anyio.CancelScope | None = None
        self._listened = frozenset[str]()
        self._told = False
        self._renewal: asyncio.TimerHandle | None = None

    @contextmanager
    def hearing(self, task_id: str, ear: Ear) -> Generator[None]:
        """Inside the block the ear hears what is pushed of the task, sooner or later, or never."""
        if not self._offered:
            yield
            return
        self._ears.setdefault(task_id, []).append(ear)
        self._listen_to(task_id)
        try:
            yield
        finally:
            ears = self._ears[task_id]
            ears.remove(ear)
            if not ears:
                del self._ears[task_id]
            if ear not in ears:
                ear.live = False
            if not self._ears and self._life is not None:
                self._life.cancel()
                self._life = None

    def deliver(self, task: DetailedTask) -> None:
        """This state was pushed."""
        for ear in self._ears.get(task.task_id, ()):
            self._told = True
            ear.hear(task)

    def _listen_to(self, task_id: str) -> None:
        loop = asyncio.get_running_loop()
        if self._life is None:
            self._life = anyio.CancelScope()
            running = loop.create_task(self._listening(self._life))
            self._running.add(running)
            running.add_done_callback(self._running.discard)
        elif self._stream is not None and task_id not in self._listened and self._renewal is None:
            self._renewal = loop.call_later(SETTLE_S + SETTLE_PER_TASK_S * len(self._listened), self._renew)

    def _renew(self) -> None:
        self._renewal = None
        if self._stream is not None:
            self._stream.cancel()

    async def _listening(self, life: anyio.CancelScope) -> None:
        with life:
            await anyio.sleep(SETTLE_S)
            again_s = FIRST_AGAIN_S
            while self._offered:
                if await self._listen():
                    continue
                for ear in [ear for ears in self._ears.values() for ear in ears]:
                    ear.doubt()
                if self._told:
                    again_s = FIRST_AGAIN_S
                await anyio.sleep(again_s)
                again_s = min(again_s * 2, LAST_AGAIN_S)

    async def _listen(self) -> bool:
        """The stream has ended; whether it was to make room for one of more tasks."""
        session = self._session()
        if session is None:
            return False
        self._listened, self._told = frozenset(self._ears), False
        wanted = SubscriptionFilter.model_validate({"taskIds": sorted(self._listened)})
        request = SubscriptionsListenRequest(params=SubscriptionsListenRequestParams(notifications=wanted))
        self._stream = stream = anyio.CancelScope()
        try:
            with stream:
                await session.send_request(request, SubscriptionsListenResult, math.inf)
        except MCPError as exc:
            self._offered = exc.code not in _NEVER
            log.debug("The server tells of no tasks (%d)", exc.code)
        except Exception:  # whatever it is, it must not cost anybody a result
            log.debug("A stream of tasks broke", exc_info=True)
        finally:
            if self._stream is stream:
                self._stream = None
        return stream.cancelled_caught
