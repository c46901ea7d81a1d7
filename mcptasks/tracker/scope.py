"""The tracked tasks in their callers' and operators' hands: read, listed, answered, cancelled, waited for.

All of that needs the store alone. `Tracker` submits and tracks besides.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from types import TracebackType
from typing import Any, Final, Self

from mcptasks.errors import AmbiguousTask, BadAnswer, UnknownTask
from mcptasks.model import is_task_id, label
from mcptasks.settings import Settings
from mcptasks.store.changes import Change
from mcptasks.store.lists import PREFIX_MIN
from mcptasks.times import Duration, duration_ms
from mcptasks.tracker.model import DeadLetter, Event, Tracked, TrackPage, TrackStatus, checkable
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.store.callers import CancelAnswer
from mcptasks.tracker.store.store import TrackStore

#: One read of the stream of events waits so long.
_EVENTS_MS: Final = 10_000
#: How often a wait looks although it heard nothing.
_LOOK_S: Final = 15.0


class TrackedTasks:
    """A connection to the tracked tasks; `async with TrackedTasks() as tracked`. Each event loop has its own.

    `owner`, wherever it is a parameter: only his tasks are there; None: all.

    Every method raises `StoreUnavailable` when the store does not answer.
    """

    def __init__(self, settings: Settings | None = None, options: TrackOptions | None = None) -> None:
        self.settings = settings or Settings.load()
        self.options = options or TrackOptions.load()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._store: TrackStore | None = None

    @property
    def store(self) -> TrackStore:
        """The running loop's store."""
        loop = asyncio.get_running_loop()
        if self._store is None or self._loop is not loop:
            self._store, self._loop = TrackStore(self.settings, self.options), loop
        return self._store

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """The running loop's connections are closed."""
        if self._store is not None and self._loop is asyncio.get_running_loop():
            store, self._store = self._store, None
            await store.aclose()

    async def get(self, task: str, *, owner: str | None = None) -> Tracked:
        """The task as it is stored now, by its id or the beginning of it.

        Raises:
            UnknownTask: there is none.
            AmbiguousTask: there are several.
            SchemaTooNew, Sealed: it cannot be read here.
        """
        task_id = await self._find(task, owner)
        found = await self.store.read(task_id, owner)
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
        return await self.store.page(owner=owner, server=server, statuses=statuses, limit=limit, cursor=cursor)

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
            open_keys = ", ".join(repr(key[:80]) for key in sorted(found.questions)[:5]) or "none"
            raise BadAnswer(
                f"Task {label(found.task_id)} has no open question with such a key; nothing was stored. "
                f"Open: {open_keys}"
            )
        # Only here: it brings the SDK along, a second that lists need not wait for.
        from mcptasks.answers import checked  # noqa: PLC0415

        known = {key: question for key, question in found.questions.items() if checkable(question)}
        taken = open_now | checked(open_now, known)
        if await self.store.answer(found.task_id, taken, owner) != "ANSWERED":
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
        answer = await self.store.cancel(await self._find(task, owner), reason, owner)
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

        changes = self.store.changes
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
        store = self.store
        place = await store.last_event() if after is None else after
        while True:
            for place, event in await store.events(place, _EVENTS_MS):  # noqa: B020 - the next read begins behind it
                yield place, event

    async def trackers(self) -> int:
        """How many trackers run; with none nothing is polled, delivered or told until there is one."""
        return await self.store.trackers()

    async def dead(self) -> list[DeadLetter]:
        """The events that were given up, newest first, at most 500."""
        return await self.store.dead()

    async def replay(self, task: str, consumer: str | None = None) -> int:
        """The task's dead letters (of that consumer) are delivered again, with all attempts before them; how many."""
        return await self.store.replay_task(await self._find(task, None), consumer)

    async def replay_all(self, consumer: str | None = None) -> int:
        """All dead letters (of that consumer) that there are now are delivered again; how many."""
        return await self.store.replay_all(consumer)

    async def _find(self, task: str, owner: str | None) -> str:
        if is_task_id(task):
            return task
        found = await self.store.find(task, owner)
        if found == "NONE":
            short = f" Give {PREFIX_MIN} characters of it." if len(task) < PREFIX_MIN else ""
            raise UnknownTask(f"There is no tracked task {label(task)!r}...; it never was, or its time is over.{short}")
        if found == "SEVERAL":
            raise AmbiguousTask(f"More than one tracked task's id begins with {label(task)!r}; give more of it.")
        return found
