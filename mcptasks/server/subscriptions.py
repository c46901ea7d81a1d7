"""`subscriptions/listen` with `taskIds`: a listener hears of its tasks as they change, on whichever server (SEP-2663).

The SDK serves the method; here it is wrapped: what it knows stays its own, and the task ids are ours.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import anyio
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import require_client_extension
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    RequestId,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotification,
    SubscriptionsAcknowledgedNotificationParams,
    SubscriptionsListenResult,
)
from pydantic import ValidationError

from mcptasks.errors import SchemaTooNew, Sealed, StoreUnavailable
from mcptasks.model import Record, is_task_id, label
from mcptasks.server.audience import shown
from mcptasks.server.closing import Closing
from mcptasks.server.news import News
from mcptasks.server.owner import OwnerOf, owner_of
from mcptasks.server.refusals import answering
from mcptasks.store.store import TaskStore
from mcptasks.wire import EXTENSION, MODERN, TaskNotification, pushed

log: Final = logging.getLogger("mcptasks.server")

Ctx = ServerRequestContext[Any, Any]

#: How many of a server's listeners read from the store at once: requests that somebody waits for come first.
_READERS: Final = 3
#: A task that could not be read is read again after this long.
_AGAIN_S: Final = 1.0


class Subscriptions:
    """The listeners of one server."""

    def __init__(self, store: TaskStore, owner: OwnerOf, closing: Closing) -> None:
        self._store, self._owner, self._closing = store, owner, closing
        self._reading = asyncio.Semaphore(_READERS)
        self._open = 0

    async def listen(self, ctx: Ctx, call_next: CallNext) -> HandlerResult:
        """The middleware: a `subscriptions/listen` that names tasks is answered until its client leaves.

        First the acknowledgement, with those of the tasks that are the caller's (P70); then each task as it is now
        (P72), and again whenever it has changed.

        Raises:
            MCPError: -32021, the request does not declare the extension; -32602, `taskIds` is no list of texts; -32603,
                the store is not available, or the server has `settings.listeners_max` listeners.
        """
        wanted = _wanted(ctx)
        if wanted is None:
            return await call_next(ctx)
        require_client_extension(ctx, EXTENSION)
        settings = self._store.settings
        if self._open >= settings.listeners_max:
            text = f"This server has {self._open} listeners, which is the limit; poll, or listen again later"
            raise MCPError(INTERNAL_ERROR, text)
        task_ids = _task_ids(wanted)[: settings.listen_max]
        self._open += 1
        try:
            owner = await owner_of(self._owner, ctx)
            honoured = await answering(lambda: self._store.owned(task_ids, owner))
            return await self._serve(ctx, call_next, wanted, owner, honoured)
        finally:
            self._open -= 1

    async def _serve(
        self, ctx: Ctx, call_next: CallNext, wanted: Mapping[str, Any], owner: str, honoured: list[str]
    ) -> HandlerResult:
        news = News(honoured, self._store.settings.push_progress_ms / 1000)
        session = _Acknowledging(ctx.session, honoured)
        meta = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        scope = anyio.CancelScope(deadline=_end_of_token())
        pushing = asyncio.get_running_loop().create_task(self._push(ctx, owner, news, session.acknowledged))
        # Should it fail, the client must not go on trusting that it is told.
        pushing.add_done_callback(lambda _: scope.cancel())
        self._closing.add(scope.cancel)
        self._store.changes.follow(honoured, news.hear)
        try:
            with scope:
                if any(value for name, value in wanted.items() if name != "taskIds"):
                    return await call_next(replace(ctx, session=cast("ServerSession", session)))
                # Nothing that the SDK knows is asked for, so its limit on streams does not apply.
                params = SubscriptionsAcknowledgedNotificationParams(notifications=SubscriptionFilter(), _meta=meta)
                await session.send_notification(SubscriptionsAcknowledgedNotification(params=params), ctx.request_id)
                await anyio.sleep_forever()
        finally:
            self._closing.discard(scope.cancel)
            self._store.changes.leave(honoured, news.hear)
            pushing.cancel()
            await asyncio.wait([pushing])
            if not pushing.cancelled() and (failure := pushing.exception()):
                log.error("A listener is told no more", exc_info=failure)
        return SubscriptionsListenResult(_meta=meta)

    async def _push(self, ctx: Ctx, owner: str, news: News, acknowledged: asyncio.Event) -> None:
        await acknowledged.wait()
        assert ctx.request_id is not None
        while True:
            task_id = await news.next()
            try:
                async with self._reading:
                    record = await self._store.read(task_id, owner)
            except StoreUnavailable as exc:
                log.warning("Task %s: its listener is not told yet: %s", label(task_id), exc)
                news.again(task_id, _AGAIN_S)
            except (SchemaTooNew, Sealed) as exc:
                log.warning("Its listener is told no more: %s", exc)
                self._drop(task_id, news)
            else:
                await self._tell(ctx, task_id, record, news)

    async def _tell(self, ctx: Ctx, task_id: str, record: Record | None, news: News) -> None:
        if record is not None and news.fresh(record):
            assert ctx.request_id is not None
            notification = cast("Any", TaskNotification(params=pushed(record, shown(ctx, record), ctx.request_id)))
            await ctx.session.send_notification(notification, ctx.request_id)
            news.told(record)
        if record is None or record.status.terminal:
            self._drop(task_id, news)

    def _drop(self, task_id: str, news: News) -> None:
        news.drop(task_id)
        self._store.changes.leave([task_id], news.hear)


class _Acknowledging:
    """The session of a listener: its acknowledgement names the tasks, too."""

    def __init__(self, session: ServerSession, task_ids: Sequence[str]) -> None:
        self._session, self._task_ids = session, list(task_ids)
        self.acknowledged = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def send_notification(self, notification: Any, related_request_id: RequestId | None = None) -> None:
        """As the session's own."""
        acknowledges = isinstance(notification, SubscriptionsAcknowledgedNotification)
        if acknowledges:
            told = notification.params.notifications.model_dump(by_alias=True, exclude_none=True)
            both = SubscriptionFilter.model_validate({**told, "taskIds": self._task_ids}, by_name=False)
            params = notification.params.model_copy(update={"notifications": both})
            notification = notification.model_copy(update={"params": params})
        await self._session.send_notification(notification, related_request_id)
        if acknowledges:
            self.acknowledged.set()


def _wanted(ctx: Ctx) -> Mapping[str, Any] | None:
    """What the request listens to, if tasks are part of it."""
    if ctx.method != "subscriptions/listen" or ctx.request_id is None or ctx.protocol_version not in MODERN:
        return None
    wanted = (ctx.params or {}).get("notifications")
    return cast("Mapping[str, Any]", wanted) if isinstance(wanted, Mapping) and "taskIds" in wanted else None


def _task_ids(wanted: Mapping[str, Any]) -> list[str]:
    """Each id that could be one of ours, once."""
    ids = wanted["taskIds"]
    try:
        SubscriptionFilter.model_validate(wanted, by_name=False)
    except ValidationError:
        raise MCPError(INVALID_PARAMS, "Invalid request parameters", "") from None
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in cast("list[Any]", ids)):
        raise MCPError(INVALID_PARAMS, "notifications.taskIds must be a list of task ids")
    return [one for one in dict.fromkeys(cast("list[str]", ids)) if is_task_id(one)]


def _end_of_token() -> float:
    """When the caller's access token ends, by the event loop's clock; what comes after needs another one."""
    token = get_access_token()
    if token is None or token.expires_at is None:
        return math.inf
    return anyio.current_time() + token.expires_at - time.time()
