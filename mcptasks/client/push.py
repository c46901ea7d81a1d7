"""Hears of tasks instead of asking for them: one `subscriptions/listen` per session, for all that are waited for.

A stream's filter is fixed when it is opened, so further tasks mean a new stream in place of the old one. Nothing here
is needed for a result: where a server does not push, or a stream breaks, waiting polls as if there were none.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Final
from weakref import ref

import anyio
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
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


class _Stream:
    """One `subscriptions/listen`."""

    def __init__(self, task_ids: Iterable[str]) -> None:
        self.task_ids = frozenset(task_ids)
        self.scope = anyio.CancelScope()
        #: It has told something; `name` is the subscription that it told it by.
        self.told = False
        self.name: object = None


class Listener:
    """The stream of one session, open for as long as somebody waits for a task.

    A stream of more tasks is opened beside the one there is and takes its place once it tells something, so that no
    task is without one meanwhile.
    """

    def __init__(self, session: ClientSession) -> None:
        #: Whoever waits has it; a strong one here would keep it for as long as its extension.
        self._session = ref(session)
        self._offered = session.protocol_version in MODERN
        self._ears: dict[str, list[Ear]] = {}
        self._life: anyio.CancelScope | None = None
        self._running = set[asyncio.Task[None]]()
        self._current: _Stream | None = None
        self._next: _Stream | None = None
        self._stir = anyio.Event()

    @contextmanager
    def hearing(self, task_id: str, ear: Ear) -> Generator[None]:
        """Inside the block the ear hears what is pushed of the task, sooner or later, or never."""
        if not self._offered:
            yield
            return
        self._ears.setdefault(task_id, []).append(ear)
        self._begin()
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
                self._life = self._current = self._next = None

    def deliver(self, task: DetailedTask) -> None:
        """This state was pushed."""
        name = (task.meta or {}).get(SUBSCRIPTION_ID_META_KEY)
        current, following = self._current, self._next
        told_by_next = current is None or name is None or name != current.name
        if following is not None and task.task_id in following.task_ids and told_by_next:
            following.told, following.name = True, name
            self._current, self._next = following, None
            if current is not None:
                current.scope.cancel()
            self._stir.set()
        for ear in self._ears.get(task.task_id, ()):
            ear.hear(task)

    def _begin(self) -> None:
        self._stir.set()
        if self._life is None:
            self._life = anyio.CancelScope()
            running = asyncio.get_running_loop().create_task(self._listening(self._life))
            self._running.add(running)
            running.add_done_callback(self._running.discard)

    async def _listening(self, life: anyio.CancelScope) -> None:
        back_s, lost_s = 0.0, SETTLE_S  # before the first stream there was none to lose
        with life:
            async with anyio.create_task_group() as group:
                while self._offered:
                    await self._until(self._wanting)
                    await anyio.sleep(back_s or (lost_s if self._current is None else _settle_s(self._current)))
                    stream = self._next = _Stream(self._ears)
                    group.start_soon(self._run, stream)
                    await self._until(lambda stream=stream: self._next is not stream)
                    lost_s = FIRST_AGAIN_S
                    back_s = 0.0 if stream.told else min(max(2 * back_s, FIRST_AGAIN_S), LAST_AGAIN_S)

    def _wanting(self) -> bool:
        return self._current is None or not self._ears.keys() <= self._current.task_ids

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._stir = anyio.Event()
            await self._stir.wait()

    async def _run(self, stream: _Stream) -> None:
        wanted = SubscriptionFilter.model_validate({"taskIds": sorted(stream.task_ids)})
        request = SubscriptionsListenRequest(params=SubscriptionsListenRequestParams(notifications=wanted))
        session = self._session()
        assert session is not None  # whoever waits has it
        try:
            with stream.scope:
                await session.send_request(request, SubscriptionsListenResult, math.inf)
        except MCPError as exc:
            self._offered = exc.code not in _NEVER
            log.debug("The server tells of no tasks (%d)", exc.code)
        except Exception:  # whatever it is, it must not cost anybody a result
            log.debug("A stream of tasks broke", exc_info=True)
        self._over(stream)

    def _over(self, stream: _Stream) -> None:
        if self._next is stream:
            self._next = None
        elif self._current is stream:
            self._current = None
            for task_id in stream.task_ids:
                for ear in self._ears.get(task_id, ()):
                    ear.doubt()
        self._stir.set()


def _settle_s(stream: _Stream) -> float:
    return SETTLE_S + SETTLE_PER_TASK_S * len(stream.task_ids)
