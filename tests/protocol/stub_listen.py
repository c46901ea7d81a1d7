"""Task notifications for the scripted task server: streams that a test opens its eyes on, and speaks on by hand.

It shares no code with mcptasks: what it sends is written out as the Tasks extension has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import MCPServer
from mcp_types import (
    Notification,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotification,
    SubscriptionsAcknowledgedNotificationParams,
)

from tests.protocol.stub_server import StubTasks, serve
from tests.support.waiting import eventually

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


class _Status(Notification[dict[str, Any], Literal["notifications/tasks"]]):
    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: dict[str, Any]


class Stream:
    """One `subscriptions/listen` that a client has made."""

    def __init__(self, ctx: ServerRequestContext[Any, Any], task_ids: list[str]) -> None:
        self.task_ids, self._ctx = task_ids, ctx
        self._over = anyio.Event()
        self._failure: Exception | None = None
        #: The client is gone, or the stream was ended.
        self.closed = False

    async def push(self, state: Mapping[str, Any], **changed: Any) -> None:
        """The client is told of this state."""
        params = {name: value for name, value in state.items() if name != "resultType"}
        note = _Status(params={**params, **changed, "_meta": {SUBSCRIPTION: self._ctx.request_id}})
        await self._ctx.session.send_notification(cast("Any", note), self._ctx.request_id)

    def end(self, failure: Exception | None = None) -> None:
        """The stream is over: with its result, or with this."""
        self._failure, self.closed = failure, True
        self._over.set()

    async def run(self) -> HandlerResult:
        """Open until it is ended or the client leaves."""
        meta: Any = {SUBSCRIPTION: self._ctx.request_id}
        filters = SubscriptionFilter.model_validate({"taskIds": self.task_ids})
        params = SubscriptionsAcknowledgedNotificationParams(notifications=filters, _meta=meta)
        await self._ctx.session.send_notification(
            SubscriptionsAcknowledgedNotification(params=params), self._ctx.request_id
        )
        try:
            await self._over.wait()
        finally:
            self.closed = True
        if self._failure is not None:
            raise self._failure
        return {"resultType": "complete", "_meta": meta}


class Streams:
    """All the streams that clients of one stub have asked for, refused ones included."""

    def __init__(self) -> None:
        self.asked: list[Stream] = []
        #: What the next streams are refused with.
        self.refusal: Exception | None = None

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """The middleware."""
        if ctx.method != "subscriptions/listen":
            return await call_next(ctx)
        stream = Stream(ctx, list((ctx.params or {})["notifications"]["taskIds"]))
        self.asked.append(stream)
        if self.refusal is not None:
            stream.closed = True
            raise self.refusal
        return await stream.run()

    async def open(self, *task_ids: str) -> Stream:
        """The stream that is open, once there is one, of just these tasks where any are given."""

        async def found() -> Stream | None:
            streams = [stream for stream in self.asked if not stream.closed]
            fits = [stream for stream in streams if not task_ids or set(task_ids) == set(stream.task_ids)]
            return fits[0] if fits else None

        return await eventually(found, description="the stream is open")

    async def none(self) -> None:
        """No stream is open any more."""

        async def closed() -> bool:
            return all(stream.closed for stream in self.asked)

        await eventually(closed, description="every stream is closed")


def serve_pushing(stub: StubTasks) -> tuple[MCPServer, Streams]:
    """The stub's server, which pushes what the test says."""
    mcp, streams = serve(stub), Streams()
    mcp.middleware.append(streams)
    return mcp, streams
