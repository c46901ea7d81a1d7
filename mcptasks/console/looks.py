"""What the pages show, read from the store: a list of tasks, one task, the inbox, the fleet."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

from mcptasks.console.questions import Asked, asked
from mcptasks.errors import SchemaTooNew, Sealed, UnknownTask
from mcptasks.known import Known, known
from mcptasks.model import Record, Status
from mcptasks.operations import Operations
from mcptasks.store.lists import Counts, Summary
from mcptasks.store.registry import WorkerPulse

T = TypeVar("T")

#: Tasks with open questions on one page of the inbox: each is read by itself.
INBOX: Final = 20
#: How many unfinished tasks one look at a list goes through for those that it wants: a thousand take the store five
#: milliseconds, and others have their turn after each.
LOOKS: Final = 50_000
#: After a look at a list for open pages there is none for so many times as long: a fifth of the store, at most.
_PAUSE: Final = 4
#: Lists that are kept in mind for that.
_KEPT: Final = 64
#: Numbers of the whole fleet are so old at most, unless counting takes long: then at most this part of the time.
_COUNTED_S: Final = 1.0
_SHARE: Final = 20

UNFINISHED: Final = tuple(status for status in Status if not status.terminal)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which tasks a list is to show, as its address says it."""

    status: Status | None = None
    #: Those that have ended, too.
    everything: bool = False
    tool: str = ""
    owner: str = ""
    after: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Wanted:
        """What the address says; what it says wrong counts as not said."""
        name = query.get("status", "")
        return cls(
            status=next((one for one in Status if one == name), None),
            everything=name == "all",
            tool=query.get("tool", "")[:200],
            owner=query.get("owner", "")[:500],
            after=query.get("after", "")[:60],
        )

    @property
    def statuses(self) -> tuple[Status, ...]:
        """Those that are wanted."""
        return (self.status,) if self.status else tuple(Status) if self.everything else UNFINISHED

    def query(self, **other: str) -> str:
        """The address of the same list, or of one that differs in this."""
        status = str(self.status or ("all" if self.everything else ""))
        said = {"status": status, "tool": self.tool, "owner": self.owner, "after": ""} | other
        text = urlencode({name: value for name, value in said.items() if value})
        return f"?{text}" if text else ""

    @property
    def here(self) -> str:
        """The address of this very page of the list."""
        return self.query(after=self.after)


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """What every page says of the fleet."""

    counts: Counts
    #: Why new tasks are refused; None: they are not.
    closed: str | None
    now_ms: int


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One page of a list."""

    wanted: Wanted
    tasks: list[Summary]
    #: The cursor of the next page; None: there is none.
    more: str | None
    #: Tasks in between that a newer mcptasks wrote.
    newer: int


@dataclass(frozen=True, kw_only=True)
class Inbox:
    """Open questions, the newest tasks' first."""

    questions: list[Asked]
    more: str | None
    #: Tasks that ask something that cannot be read here.
    unreadable: int


class _Kept(Generic[T]):
    """One list that pages which are open show: no two look at it at once, and not one right after another."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._began_s = self._again_s = 0.0
        self._found: T | None = None

    async def seen(self, look: Callable[[], Awaitable[T]]) -> T:
        """As it is now or a little later, never as it was before."""
        asked_s = time.monotonic()
        async with self._lock:
            if self._found is None or self._began_s < asked_s:
                await asyncio.sleep(max(self._again_s - time.monotonic(), 0))
                self._began_s = time.monotonic()
                self._found = await look()
                now_s = time.monotonic()
                self._again_s = now_s + _PAUSE * (now_s - self._began_s)
            return self._found


class Looks:
    """Reads what the pages show. The numbers of the fleet are counted once for all who look at the same time."""

    def __init__(self, fleet: Operations, page: int) -> None:
        self._fleet, self._page = fleet, page
        self._counts: Counts | None = None
        self._again_s = 0.0
        self._counting = asyncio.Lock()
        self._kept = dict[object, _Kept[Any]]()

    async def fleet(self) -> Fleet:
        """The whole fleet."""
        closed, now_ms = await asyncio.gather(self._fleet.admission(), self._fleet.now_ms())
        return Fleet(counts=await self.counts(), closed=closed, now_ms=now_ms)

    async def counts(self) -> Counts:
        """How many tasks there are in each status, a moment ago."""
        async with self._counting:
            began = time.monotonic()
            if self._counts is None or began >= self._again_s:
                self._counts = await self._fleet.count()
                took = time.monotonic() - began
                self._again_s = time.monotonic() + max(_COUNTED_S, _SHARE * took)
            return self._counts

    async def list(self, wanted: Wanted, *, live: bool = False) -> Listed:
        """One page. `live`: for a page that is open, one look for all who have it open, now and then.

        Raises:
            BadCursor: `wanted.after` is no cursor.
        """
        return await (self._of(wanted).seen(lambda: self._list(wanted)) if live else self._list(wanted))

    async def task(self, name: str) -> Known:
        """The task whose id begins so.

        Raises:
            UnknownTask, AmbiguousTask, SchemaTooNew, Sealed: as `Operations.read`.
        """
        return await known(self._fleet, name)

    async def inbox(self, after: str = "", *, live: bool = False) -> Inbox:
        """One page of open questions. `live`: as of `list`.

        Raises:
            BadCursor: `after` is no cursor.
        """
        return await (self._of(after).seen(lambda: self._inbox(after)) if live else self._inbox(after))

    async def _list(self, wanted: Wanted) -> Listed:
        page = await self._fleet.page(
            statuses=wanted.statuses,
            tool=wanted.tool or None,
            owner=wanted.owner or None,
            limit=self._page,
            cursor=wanted.after or None,
            looks=LOOKS,
        )
        return Listed(wanted=wanted, tasks=page.tasks, more=page.cursor, newer=page.newer)

    async def _inbox(self, after: str) -> Inbox:
        page = await self._fleet.page(statuses=(Status.PARKED,), limit=INBOX, cursor=after or None, looks=LOOKS)
        now_ms = await self._fleet.now_ms()
        records = await asyncio.gather(*(self._readable(task.task_id) for task in page.tasks if task.questions))
        questions = [one for record in records if record is not None for one in asked(record, now_ms)]
        unreadable = sum(record is None for record in records)
        return Inbox(questions=questions, more=page.cursor, unreadable=unreadable)

    async def workers(self) -> dict[str, WorkerPulse]:
        """The live workers by name."""
        return dict(sorted((await self._fleet.workers()).items()))

    def _of(self, what: object) -> _Kept[Any]:
        if len(self._kept) >= _KEPT and what not in self._kept:
            self._kept.clear()  # who waits for one has it in hand
        return self._kept.setdefault(what, _Kept())

    async def _readable(self, task_id: str) -> Record | None:
        try:
            return await self._fleet.read(task_id)
        except (SchemaTooNew, Sealed, UnknownTask):
            return None


def place(name: str, task_id: str) -> str:
    """Where the artifact is below its task's page: addresses are seen by proxies, and names are not for them."""
    return hashlib.sha256(f"{task_id} {name}".encode("utf-8", "replace")).hexdigest()[:24]


def percent(task: Summary | Record) -> float | None:
    """How far the task is, from 0 to 100, while it is on its way; None: it does not say."""
    fraction: Any = None if task.progress is None else task.progress.fraction
    return None if fraction is None or task.status.terminal else round(100 * fraction, 1)
