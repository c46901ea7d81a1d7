"""What tasks there are: pages of them newest first, their numbers, and the one whose id begins so.

Scoped before anything else is done: what an owner asks is answered from the lists of that owner's tasks alone. Writes
nothing but that entries of tasks whose keys Redis has dropped go, when they are met.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from mcptasks.errors import BadCursor, Sealed
from mcptasks.model import Reason, Status, is_task_id
from mcptasks.progress import Progress
from mcptasks.store.base import FORGET_BATCH, Transitions
from mcptasks.store.keys import owner_digest
from mcptasks.store.records import read_progress
from mcptasks.store.seal import Seal

#: Tasks that one script looks at for those that are asked for: about five milliseconds.
_LOOKS: Final = 1_000
#: Ids that begin alike, of which one script finds the owner's. Chance gives two the same 4 characters in 16 million.
_ALIKE: Final = 1_000
#: The fewest characters that an id is found by.
PREFIX_MIN: Final = 4
#: What a summary is made of.
_COLUMNS: Final = (
    *(
        "id",
        "tool",
        "owner",
        "status",
        "reason",
        "msg",
        "progress",
        "total",
        "rate",
        "progressed",
        "created",
        "updated",
    ),
    *("ttl", "attempt", "cancel", "worker", "queue", "open", "version"),
)
_PREFIX: Final = re.compile(rf"[A-Za-z0-9_-]{{{PREFIX_MIN},32}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A task as lists show it: everything small. Times are Unix milliseconds by the store's clock."""

    task_id: str
    tool: str
    owner: str
    status: Status
    created_ms: int
    updated_ms: int
    #: None: never removed by time.
    ttl_ms: int | None
    attempt: int
    reason: Reason | None
    #: None, too, where it is sealed with a key that is not here.
    status_message: str | None
    progress: Progress | None
    cancel_requested: bool
    worker: str | None
    queue: str
    #: How many questions are open.
    questions: int
    version: str


@dataclass(frozen=True, slots=True)
class Page:
    """Some tasks, newest first."""

    tasks: list[Summary]
    #: Gives the page that follows, which may turn out empty; None: there is none.
    cursor: str | None
    #: Tasks in between that a newer mcptasks wrote and this one cannot read: they are left out.
    newer: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """How many tasks there are."""

    #: Every status has its number. Overdue tasks are in none of them.
    by_status: Mapping[Status, int]
    #: Of the unfinished ones, since when (Unix ms) the one that has not moved for longest is in that status.
    since_ms: Mapping[Status, int]
    #: Unfinished tasks whose time to live is over: the sweeper is about to fail them.
    overdue: int
    #: Unfinished tasks that a newer mcptasks wrote and this one cannot read.
    newer: int = 0

    @property
    def unfinished(self) -> int:
        """Those that were admitted and have not ended, whatever they are."""
        return self.overdue + self.newer + sum(count for status, count in self.by_status.items() if not status.terminal)


class Place(NamedTuple):
    """Behind that task in every list: lists are in the order of creation and then of ids, which never changes."""

    created_ms: int
    task_id: str

    def cursor(self) -> str:
        return f"{self.created_ms:x}.{self.task_id}"

    @classmethod
    def of(cls, cursor: str) -> Place:
        created, _, task_id = cursor.partition(".")
        if not re.fullmatch("[0-9a-f]{1,12}", created) or not is_task_id(task_id):
            raise BadCursor("This is no cursor of a list of tasks. Leave it out to begin with the newest task.")
        return cls(int(created, 16), task_id)


def _after(place: Place | None) -> dict[str, Any]:
    return {"after_ms": None, "after_id": None} if place is None else {"after_ms": place[0], "after_id": place[1]}


class ListTransitions(Transitions):
    """What is to be seen. `owner` is whose tasks: a caller's, who sees no other's; None is the operator, who sees all.

    The tasks of the anonymous caller (owner "") are shown to operators alone: without authentication everybody is that
    caller, and a list of ids would be a list of secrets.
    """

    async def page(
        self,
        owner: str | None,
        *,
        tool: str | None = None,
        statuses: Collection[Status] = tuple(Status),
        limit: int,
        cursor: str | None = None,
        looks: int | None = None,
    ) -> Page:
        """Up to `limit` tasks, newest first, that follow the cursor, or the newest.

        A task that is created meanwhile changes nothing in the pages that follow; one that changes its status may enter
        or leave those of a status. With `looks` a page ends early, once so many tasks were looked at for it
        (in thousands), however few it has.

        Raises:
            BadCursor: it is none of ours.
        """
        place = None if cursor is None else Place.of(cursor)
        if owner == "":
            return Page([], None)
        listed = self._list(owner, tool)
        tasks: list[Summary] = []
        newer = looked = 0
        while True:
            reply = await self.run_script(
                "page",
                self.fleet("ids"),
                {
                    "list": listed,
                    **_after(place),
                    "owner": owner,
                    "operator": "1" if owner is None else "",
                    "tool": tool,
                    "room": limit - len(tasks),
                    "looks": _LOOKS,
                    "columns": " ".join(_COLUMNS),
                    "statuses": list(statuses),
                },
            )
            newer += int(reply[1])
            tasks += (_summary(row, self.seal) for row in reply[2])
            if reply[0] == "END":
                return Page(tasks, None, newer)
            place = Place(int(reply[3]), reply[4])
            looked += _LOOKS
            if len(tasks) == limit or (looks is not None and looked >= looks):
                return Page(tasks, place.cursor(), newer)

    async def count(self, owner: str | None, tool: str | None = None) -> Counts:
        """How many tasks there are in each status, of that owner, or where the operator asks of everybody; of one tool.

        The numbers of one moment, but where more than a thousand tasks are unfinished: of as many moments as it takes
        to look at them, a thousand at a time. For one tool of one owner, who have no list together, all the owner's
        tasks are looked at, those that have ended included.
        """
        numbers, since = dict.fromkeys(Status, 0), dict[Status, int]()
        overdue, newer, place = 0, 0, None
        while owner != "":
            reply = await self.run_script(
                "count",
                self.fleet("ids"),
                {
                    "list": self._list(owner, tool),
                    "tool": None if owner is None else tool,
                    **_after(place),
                    "looks": _LOOKS,
                    "batch": FORGET_BATCH,
                },
            )
            if reply[0] == "AGAIN":
                continue
            newer += int(reply[1])
            overdue += int(reply[2])
            for word, number, first in zip(*[iter(reply[3])] * 3, strict=True):
                status = Status(word)
                numbers[status] += int(number)
                if first:
                    since[status] = min(since.get(status, int(first)), int(first))
            if reply[0] == "COUNTED":
                break
            place = Place(int(reply[4]), reply[5])
        return Counts(numbers, since, overdue, newer)

    async def find(self, start: str, owner: str | None) -> str | Literal["NONE", "SEVERAL"]:
        """The id of the one task that begins so (with at least `PREFIX_MIN` characters); another owner's is none."""
        if owner == "" or not _PREFIX.fullmatch(start):
            return "NONE"
        digest = None if owner is None else owner_digest(owner)
        args = {"start": start, "owner_digest": digest, "operator": "1" if owner is None else "", "looks": _ALIKE}
        reply = await self.run_script("find", self.fleet("ids"), args)
        return reply[1] if reply[0] == "FOUND" else reply[0]

    def _list(self, owner: str | None, tool: str | None) -> str:
        keys = self.keys
        if owner is not None:
            name = keys.tasks_of_owner(owner)
        else:
            name = keys.tasks if tool is None else keys.tasks_of_tool(tool)
        return name.removeprefix(keys.prefix)


def _summary(row: Sequence[str | None], seal: Seal) -> Summary:
    fields = {name: text for name, text in zip(_COLUMNS, row, strict=True) if text is not None}
    try:
        fields |= seal.open_all(fields["id"], {name: fields[name] for name in ("msg",) if name in fields})
    except Sealed:
        del fields["msg"]
    return Summary(
        task_id=fields["id"],
        tool=fields["tool"],
        owner=fields["owner"],
        status=Status(fields["status"]),
        created_ms=int(fields["created"]),
        updated_ms=int(fields["updated"]),
        ttl_ms=int(fields["ttl"]) if fields["ttl"] else None,
        attempt=int(fields["attempt"]),
        reason=Reason(fields["reason"]) if "reason" in fields else None,
        status_message=fields.get("msg") or None,
        progress=read_progress(fields),
        cancel_requested=fields.get("cancel") == "1",
        worker=fields.get("worker") or None,
        queue=fields["queue"],
        questions=int(fields.get("open", 0)),
        version=fields.get("version", ""),
    )
