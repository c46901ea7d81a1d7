"""`Tracker`, the one object a user makes: calls on other people's task servers that outlive this process."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias

from mcptasks.answers import checked
from mcptasks.errors import AmbiguousTask, BadAnswer, ConfigurationError, UnknownTask
from mcptasks.fleet.app import App, make_app
from mcptasks.model import is_task_id, label, new_task_id
from mcptasks.settings import Settings
from mcptasks.store.changes import Change
from mcptasks.store.lists import PREFIX_MIN
from mcptasks.times import Duration, duration_ms
from mcptasks.tracker.consumers import NAME, Consumer, Function
from mcptasks.tracker.deliverer import Deliverer
from mcptasks.tracker.loop import TrackerLoop
from mcptasks.tracker.model import DeadLetter, Event, Intent, Tracked, TrackPage, TrackStatus
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.poller import Poller
from mcptasks.tracker.pushes import Pushes
from mcptasks.tracker.questions import QUESTIONS, Handler, Questions, known
from mcptasks.tracker.remote import Driver
from mcptasks.tracker.servers import Servers
from mcptasks.tracker.store.callers import CancelAnswer
from mcptasks.tracker.store.store import TrackStore
from mcptasks.tracker.submitting import DriverSource, Submitter
from mcptasks.tracker.worker import attach

_SERVER: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: One read of the stream of events waits so long.
_EVENTS_MS: Final = 10_000
#: How often a wait looks although it heard nothing.
_LOOK_S: Final = 15.0

OnEvent = Callable[[Event, Tracked], Awaitable[None]]


class Source(DriverSource, Protocol):
    """The servers of one event loop."""

    async def aclose(self) -> None:
        """Their connections are closed."""
        ...


ServersLike: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Callable[[], Source] | None


class Tracker:
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
        self.settings = settings or Settings.load()
        self.options = options or TrackOptions.load()
        self._servers, self._on_question = _source(servers, self.options), on_question
        self._consumers = {name: _consumer(name, one) for name, one in (consumers or {}).items()}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._parts: _Parts | None = None

    # -------------------------------------------------------------------------------------------- for callers

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
            RemoteRefused, RemoteUnavailable, ProtocolBroken: nothing runs; the task has failed.
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
        )
        return await self._here.submitter.submit(intent)

    async def get(self, task: str, *, owner: str | None = None) -> Tracked:
        """The task as it is stored now, by its id or the beginning of it. `owner`: only his are seen; None: all.

        Raises:
            UnknownTask: there is none.
            AmbiguousTask: there are several.
            SchemaTooNew, Sealed: it cannot be read here.
        """
        task_id = await self._find(task, owner)
        found = await self._here.store.read(task_id, owner)
        if found is None:
            raise UnknownTask(f"There is no tracked task {label(task)!r}...; it never was, or its time is over.")
        return found

    async def list(
        self,
        *,
        owner: str | None = None,
        server: str | None = None,
        statuses: Collection[TrackStatus] = tuple(TrackStatus),
        limit: int = 50,
        cursor: str | None = None,
    ) -> TrackPage:
        """Up to `limit` tasks (at most 500), newest first, without results and questions; `cursor`: those behind it.

        Raises:
            BadCursor: the cursor is none of ours.
            ValueError: `limit` is not from 1 to 500.
        """
        if not 1 <= limit <= 500:
            raise ValueError(f"a page has 1 to 500 tasks, not {limit}")
        return await self._here.store.page(owner=owner, server=server, statuses=statuses, limit=limit, cursor=cursor)

    async def answer(self, task: str, answers: Mapping[str, Any], *, owner: str | None = None) -> list[str]:
        """Each answer (key -> result in the wire form) whose question is open is stored; the fleet delivers it at once.

        Returns the keys that were open. The first answer to a key wins.

        Raises:
            UnknownTask, AmbiguousTask: as `get`.
            BadAnswer: an answer does not satisfy its question, or no key is open; nothing was stored.
            TooLarge, BadPayload: an answer cannot be stored.
        """
        found = await self.get(task, owner=owner)
        open_now = {key: answer for key, answer in answers.items() if key in found.questions}
        if not open_now:
            raise BadAnswer(f"Task {label(found.task_id)} has no open question with such a key; nothing was stored.")
        checkable = {key: question for key, question in found.questions.items() if known(question)}
        taken = open_now | checked(open_now, checkable)
        if await self._here.store.answer(found.task_id, taken, owner) != "ANSWERED":
            raise BadAnswer(f"Task {label(found.task_id)}: somebody else was faster; nothing was stored.")
        return sorted(taken)

    async def cancel(
        self, task: str, reason: str = "Cancelled by its caller", *, owner: str | None = None
    ) -> CancelAnswer:
        """The wish to cancel is stored, and the fleet delivers it: REQUESTED, with how many trackers run to do that.

        0 trackers: it is recorded, and waits for one. CANCELLED: the task had no handle. FINISHED: it came too late.

        Raises:
            UnknownTask, AmbiguousTask: as `get`.
        """
        answer = await self._here.store.cancel(await self._find(task, owner), reason, owner)
        if answer.outcome == "GONE":
            raise UnknownTask(f"There is no tracked task {label(task)!r}...; it never was, or its time is over.")
        return answer

    async def wait(
        self, task: str, timeout: Duration | None = None, *, question: bool = False, owner: str | None = None
    ) -> Tracked:
        """The task, once it has ended, or, with `question`, once a question is open.

        Raises:
            UnknownTask, AmbiguousTask: as `get`.
            TimeoutError: it did not, in that time.
        """
        task_id = await self._find(task, owner)
        changed = asyncio.Event()

        def hear(_: Change) -> None:
            changed.set()

        changes = self._here.store.changes
        changes.follow([task_id], hear)
        try:
            async with asyncio.timeout(None if timeout is None else duration_ms(timeout) / 1000):
                while True:
                    changed.clear()
                    found = await self.get(task_id, owner=owner)
                    if found.status.terminal or (question and found.questions):
                        return found
                    try:
                        async with asyncio.timeout(_LOOK_S):
                            await changed.wait()
                    except TimeoutError:
                        continue
        finally:
            changes.leave([task_id], hear)

    async def events(self, after: str | None = None) -> AsyncGenerator[tuple[str, Event]]:
        """Every event from now on, or behind that place ("0": the last ten thousand), each with its own place.

        The places are those of the Redis stream `<prefix>track:events`. Others may read it with consumer groups.
        """
        store = self._here.store
        place = await store.last_event() if after is None else after
        while True:
            for place, event in await store.events(place, _EVENTS_MS):  # noqa: B020 - the next read begins behind it
                yield place, event

    async def dead(self) -> list[DeadLetter]:
        """The events that were given up, newest first, at most 500."""
        return await self._here.store.dead()

    async def replay(self, task: str, consumer: str | None = None) -> int:
        """The task's dead letters (of that consumer) are delivered again, with all attempts before them; how many."""
        task_id = await self._find(task, None)
        names = [letter.consumer for letter in await self.dead() if letter.event.task_id == task_id]
        wanted = [name for name in names if consumer is None or name == consumer]
        words = [await self._here.store.replay(task_id, name) for name in wanted]
        return words.count("REPLAYED")

    # -------------------------------------------------------------------------------------------- for the fleet

    def celery(self) -> App:
        """A Celery app whose workers track. Use `attach` where there is one already."""
        app = make_app(self.settings)
        self.attach(app)
        return app

    def attach(self, app: App) -> None:
        """Workers of this app (`tasks.bind(mcp)`, or any other) track while they run."""
        attach(app, self.run)

    async def run(self) -> None:
        """Tracks, in this event loop, until it is cancelled; then every claim is given back, and all is closed."""
        parts = _Parts(self.settings, self.options, self._servers())
        try:
            await self.loop(parts).run()
        finally:
            await parts.aclose()

    def loop(self, parts: _Parts) -> TrackerLoop:
        """The loop over these parts."""
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """What a failed submit has to make good is done or left to the fleet; this loop's connections are closed."""
        if self._parts is not None and self._loop is asyncio.get_running_loop():
            parts, self._parts = self._parts, None
            await parts.aclose()

    @property
    def _here(self) -> _Parts:
        loop = asyncio.get_running_loop()
        if self._parts is None or self._loop is not loop:
            self._parts, self._loop = _Parts(self.settings, self.options, self._servers()), loop
        return self._parts

    async def _find(self, task: str, owner: str | None) -> str:
        if is_task_id(task):
            return task
        found = await self._here.store.find(task, owner)
        if found == "NONE":
            short = f" Give {PREFIX_MIN} characters of it." if len(task) < PREFIX_MIN else ""
            raise UnknownTask(f"There is no tracked task {label(task)!r}...; it never was, or its time is over.{short}")
        if found == "SEVERAL":
            raise AmbiguousTask(f"More than one tracked task's id begins with {label(task)!r}; give more of it.")
        return found


class _Parts:
    """What belongs to one event loop."""

    def __init__(self, settings: Settings, options: TrackOptions, servers: Source) -> None:
        self.store, self.servers = TrackStore(settings, options), servers
        self.submitter = Submitter(self.store, servers, options)

    async def aclose(self) -> None:
        await self.submitter.aclose()
        await self.servers.aclose()
        await self.store.aclose()


def _source(servers: ServersLike, options: TrackOptions) -> Callable[[], Source]:
    if callable(servers):
        return servers
    where = servers if servers is not None else options.servers
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
