"""`Tracker`, the one object a user makes: calls on other people's task servers that outlive this process."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, Protocol, TypeAlias

from mcp.server.mcpserver import Context

from mcptasks.errors import ConfigurationError
from mcptasks.fleet.app import App, make_app
from mcptasks.model import new_task_id
from mcptasks.settings import Settings
from mcptasks.tracker.config import load
from mcptasks.tracker.consumers import NAME, Consumer, Function
from mcptasks.tracker.deliverer import Deliverer
from mcptasks.tracker.following import follow
from mcptasks.tracker.loop import TrackerLoop
from mcptasks.tracker.model import Event, Intent, Tracked
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.poller import Poller
from mcptasks.tracker.pushes import Pushes
from mcptasks.tracker.questions import QUESTIONS, Handler, Questions
from mcptasks.tracker.remote import Driver
from mcptasks.tracker.scope import TrackedTasks
from mcptasks.tracker.servers import Servers
from mcptasks.tracker.store.store import TrackStore
from mcptasks.tracker.submitting import DriverSource, Submitter
from mcptasks.tracker.worker import attach

_SERVER: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

OnEvent = Callable[[Event, Tracked], Awaitable[None]]


class Source(DriverSource, Protocol):
    """The servers of one event loop."""

    async def aclose(self) -> None:
        """Their connections are closed."""
        ...


_Where: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Callable[[], Source]
ServersLike: TypeAlias = _Where | None


class Tracker(TrackedTasks):
    """Submits calls to task servers and tracks them on the fleet.

    ```python
    tracker = Tracker(consumers={"hook": Webhook("https://...", secret="...")})   # servers from MCPTASKS_TRACK_SERVERS
    celery = tracker.celery()                                                     # celery -A jobs:celery worker

    task = await tracker.submit("crm", "export", {"year": 2026}, key="export-2026")
    task = await tracker.wait(task.task_id)
    ```

    `servers`: the `mcpServers` file or its content, or what makes the source of an event loop's drivers (where servers
    need an auth hook); None: the file that MCPTASKS_TRACK_SERVERS names. `consumers`, by name,
    are told of news; a function is called with (event, task). `on_question` answers questions. A process only tells
    those it has: workers must be made with the consumers that submitters name.

    Every method raises `StoreUnavailable` when the store does not answer.
    """

    def __init__(
        self,
        servers: ServersLike = None,
        *,
        consumers: Mapping[str, Consumer | OnEvent] | None = None,
        on_question: Handler | None = None,
        settings: Settings | None = None,
        options: TrackOptions | None = None,
    ) -> None:
        """
        Raises:
            ConfigurationError: a consumer's name is none, or is taken.
        """
        super().__init__(settings, options)
        self._where = self.options.servers if servers is None else servers
        self._servers, self._on_question = _source(self._where), on_question
        self._consumers = {name: _consumer(name, one) for name, one in (consumers or {}).items()}
        self._parts: _Parts | None = None

    @property
    def server_names(self) -> list[str]:
        """The servers of the `mcpServers` file, in its order; none where it is code that makes the drivers.

        Raises:
            ConfigurationError: the file cannot be read.
        """
        return list(load(self._where)) if self._where and not callable(self._where) else []

    async def submit(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        owner: str = "",
        notify: Collection[str] | None = None,
    ) -> Tracked:
        """The task is tracked and its handle stored, or it has ended because the server answered at once.

        `key`: the same owner, server and key again return the task of the first time, also after a crash of this
        process, and send nothing. `notify`: names of consumers, which may be registered elsewhere; None: all of this
        tracker's. Of its questions the handler is told where there is one here.

        Raises:
            ConfigurationError: there is no such server, or a name is none.
            TooLarge, BadPayload: the arguments cannot be stored.
            KeyConflict: the key was used for another call.
            RemoteRefused, ProtocolBroken: nothing runs; the task has failed.
            RemoteUnavailable: nothing runs. With a `key` the same call may be made again; else the task has failed.
            SubmitUncertain: the call was sent, and no answer came; its `task_id` is tracked all the same.
            AlreadyTracked: the server answered with another tracked task's handle.
        """
        names = list(self._consumers) if notify is None else list(notify)
        if self._on_question is not None:
            names.append(QUESTIONS)
        for name in names:
            _check_name(name)
        if not _SERVER.fullmatch(server):
            raise ConfigurationError(f"{server[:40]!r} is no name of a server: letters, digits, '_', '.', '-'")
        task_id = new_task_id() if key is None else _keyed_id(owner, server, key)
        intent = Intent(
            task_id=task_id,
            server=server,
            tool=tool,
            arguments=dict(arguments or {}),
            key=task_id,
            owner=owner,
            consumers=tuple(dict.fromkeys(names)),
            repeatable=key is not None,
        )
        return await self.submit_intent(intent)

    async def submit_intent(self, intent: Intent) -> Tracked:
        """As `submit`, of an intent that says everything, its id included."""
        return await self._here.submitter.submit(intent)

    async def follow(self, ctx: Context, task: str) -> Tracked:
        """In a durable tool: the task, once it has ended; see `mcptasks.tracker.following.follow`."""
        return await follow(ctx, self, task)

    def celery(self) -> App:
        """A Celery app whose workers track, and serve no queue of the fleet. `attach` where there is one already."""
        # A worker of this app knows no tools: it must not take the messages of those that do.
        app = make_app(self.settings.model_copy(update={"queue": f"{self.settings.queue}.track"}))
        self.attach(app)
        return app

    def attach(self, app: App) -> None:
        """Workers of this app (`tasks.bind(mcp)`, or any other) track while they run."""
        attach(app, self.run)

    async def run(self) -> None:
        """Tracks, in this event loop, until it is cancelled; then every claim is given back, and all is closed."""
        store = TrackStore(self.settings, self.options)
        parts = _Parts(store, self._servers(), self.options)
        try:
            await self._loop_over(parts).run()
        finally:
            await parts.aclose()
            await store.aclose()

    def _loop_over(self, parts: _Parts) -> TrackerLoop:
        consumers: dict[str, Consumer | Questions] = dict(self._consumers)
        if self._on_question is not None:
            consumers[QUESTIONS] = Questions(self._on_question, parts.store)
        return TrackerLoop(
            parts.store,
            self.options,
            Poller(parts.store, parts.servers, self.options, parts.submitter),
            [Deliverer(name, one, parts.store, self.options) for name, one in consumers.items()],
            Pushes(parts.store, parts.servers),
        )

    async def aclose(self) -> None:
        """What a failed submit has to make good is done or left to the fleet; this loop's connections are closed."""
        if self._parts is not None and self._parts.loop is asyncio.get_running_loop():
            parts, self._parts = self._parts, None
            await parts.aclose()
        await super().aclose()

    @property
    def _here(self) -> _Parts:
        if self._parts is None or self._parts.loop is not asyncio.get_running_loop():
            self._parts = _Parts(self.store, self._servers(), self.options)
        return self._parts


class _Parts:
    """What belongs to one event loop, beside its store."""

    def __init__(self, store: TrackStore, servers: Source, options: TrackOptions) -> None:
        self.loop = asyncio.get_running_loop()
        self.store, self.servers = store, servers
        self.submitter = Submitter(store, servers, options)

    async def aclose(self) -> None:
        await self.submitter.aclose()
        await self.servers.aclose()


def _source(where: _Where) -> Callable[[], Source]:
    if callable(where):
        return where
    if not where:
        raise_later = ConfigurationError(
            "No servers are configured: MCPTASKS_TRACK_SERVERS, or Tracker(servers=...), names the mcpServers file."
        )
        return lambda: _NoServers(raise_later)
    return lambda: Servers(where)


class _NoServers:
    """Who only reads, answers and cancels needs no servers."""

    def __init__(self, why: ConfigurationError) -> None:
        self._why = why

    def driver(self, name: str) -> Driver:
        raise self._why

    async def aclose(self) -> None:
        pass


def _consumer(name: str, one: Consumer | OnEvent) -> Consumer:
    _check_name(name)
    if name == QUESTIONS:
        raise ConfigurationError(f"the name {QUESTIONS!r} is the handler's of questions: Tracker(on_question=...)")
    # Told by what it can do.
    if callable(getattr(one, "deliver", None)):
        return one  # pyright: ignore[reportReturnType]
    return Function(one)  # pyright: ignore[reportArgumentType]


def _check_name(name: str) -> None:
    if not re.fullmatch(NAME, name):
        raise ConfigurationError(f"{name[:40]!r} is no name of a consumer: up to 64 letters, digits, '_', '.', '-'")


def _keyed_id(owner: str, server: str, key: str) -> str:
    """The id of the task of that key: the same in every process, so that it needs no index."""
    scope = json.dumps([owner, server, key])
    text = base64.urlsafe_b64encode(hashlib.sha256(scope.encode()).digest()[:24]).decode()
    # As `new_task_id`: command lines take a dash for an option.
    return f"A{text[1:]}" if text.startswith("-") else text
