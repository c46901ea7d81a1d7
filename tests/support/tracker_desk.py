"""A tracker in this process on a stub server, moved by hand: it polls and delivers what a test asks for, no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import redis

from mcptasks.settings import Settings
from mcptasks.tracker.consumers import Consumer
from mcptasks.tracker.deliverer import Deliverer
from mcptasks.tracker.model import Delivery, Tracked
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.poller import Poller
from mcptasks.tracker.remote import Accepted, Driver, RemoteStatus, Snapshot
from mcptasks.tracker.servers import Servers
from mcptasks.tracker.store.store import TrackStore
from mcptasks.tracker.submitting import DriverSource, Submitter
from tests.support.stub_server import StubServer
from tests.support.tracking import TrackPeek, intent


class Desk:
    """The parts of one tracker, and steps of it."""

    def __init__(self, settings: Settings, raw: redis.Redis, servers: DriverSource, options: TrackOptions) -> None:
        self.options, self.servers = options, servers
        self.store = TrackStore(settings, options)
        self.peek = TrackPeek(raw, settings.prefix)
        self.submitter = Submitter(self.store, servers, options)
        self.poller = Poller(self.store, servers, options, self.submitter)

    async def submit(self, **changed: Any) -> Tracked:
        """A task on the server "stub"."""
        return await self.submitter.submit(intent(**{"server": "stub", **changed}))

    async def read(self, task_id: str) -> Tracked:
        """The task, which is there."""
        task = await self.store.read(task_id)
        assert task is not None
        return task

    async def poll(self, *task_ids: str) -> list[Tracked]:
        """The tasks have been polled, as if they were due."""
        self.peek.make_due(*task_ids)
        claims = [one for one in (await self.store.claim("desk", 100)).claims if one.task.task_id in task_ids]
        await asyncio.gather(*(self.poller.poll(claim) for claim in claims))
        return [await self.read(task_id) for task_id in task_ids]

    async def deliver(self, name: str, consumer: Consumer, *task_ids: str) -> list[Delivery]:
        """What the consumer is owed of these tasks (or of all) has been brought to it, as if its time had come."""
        if task_ids:
            self.peek.deliver_now(name, *task_ids)
        post = await self.store.take(name, 100, 60_000)
        deliverer = Deliverer(name, consumer, self.store, self.options)
        await asyncio.gather(*(deliverer.deliver(delivery) for delivery in post.deliveries))
        return post.deliveries

    async def aclose(self) -> None:
        """All is closed."""
        await self.submitter.aclose()
        await self.store.aclose()


@asynccontextmanager
async def desk(settings: Settings, raw: redis.Redis, servers: DriverSource, **options: Any) -> AsyncGenerator[Desk]:
    """A desk over these drivers."""
    made = Desk(settings, raw, servers, TrackOptions(**options))
    try:
        yield made
    finally:
        await made.aclose()


@asynccontextmanager
async def stub_desk(settings: Settings, raw: redis.Redis, stub: StubServer, **options: Any) -> AsyncGenerator[Desk]:
    """A desk whose server "stub" is this one, which keeps to idempotency keys."""
    async with stub_servers(stub) as servers, desk(settings, raw, servers, **options) as made:
        yield made


def stub_servers(stub: StubServer, **speaking: Any) -> Servers:
    """The driver source of a stub server."""
    ours = {"driver": "tasks", "honours_key": True, "timeout": 10, "max_concurrency": 64, **speaking}
    return Servers({"mcpServers": {"stub": {"url": stub.url, "mcptasks": ours}}})


class ScriptedDriver:
    """A server in memory: what it says to each call is a list that a test writes; a gate holds a call."""

    def __init__(self, *, honours_key: bool = True) -> None:
        self.honours_key = honours_key
        self.calls: list[tuple[str, Any]] = []
        #: By method, what the next calls come to: an exception is raised, a value returned.
        self.says: dict[str, list[Any]] = {}
        #: By method, what a call waits for before it answers.
        self.gates: dict[str, asyncio.Event] = {}
        self.handles: dict[str, str] = {}

    def named(self, method: str) -> list[Any]:
        """What the calls of this method were about."""
        return [about for name, about in self.calls if name == method]

    async def _said(self, method: str, about: Any, usual: Any) -> Any:
        self.calls.append((method, about))
        if method in self.gates:
            await self.gates[method].wait()
        says = self.says.get(method)
        said = says.pop(0) if says else usual
        if isinstance(said, BaseException):
            raise said
        return said

    async def submit(
        self, tool: str, arguments: Mapping[str, Any], *, key: str, on_send: Callable[[], None] | None = None
    ) -> Accepted:
        if "turn" in self.gates:
            await self.gates["turn"].wait()
        if on_send is not None:
            on_send()
        handle = self.handles.setdefault(key, f"h{len(self.handles) + 1}") if self.honours_key else f"h-{key}"
        working = Snapshot(status=RemoteStatus.WORKING)
        return await self._said("submit", key, Accepted(handle=handle, snapshot=working))

    async def look(self, handle: str) -> Snapshot:
        return await self._said("look", handle, Snapshot(status=RemoteStatus.WORKING))

    async def answer(self, handle: str, answers: Mapping[str, Any]) -> None:
        await self._said("answer", dict(answers), None)

    async def cancel(self, handle: str) -> None:
        await self._said("cancel", handle, None)

    async def listen(self, handles: Sequence[str]) -> AsyncGenerator[tuple[str, Snapshot]]:
        for said in await self._said("listen", tuple(handles), []):
            yield said


class OneDriver:
    """A source whose every server is this driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def driver(self, name: str) -> Driver:
        return self._driver

    async def aclose(self) -> None:
        pass
