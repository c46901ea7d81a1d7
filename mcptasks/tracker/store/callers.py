"""What callers and operators do to tracked tasks: read, answer, cancel, list, find. `owner` None is the operator."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from mcptasks.errors import Sealed, TooLarge
from mcptasks.store.keys import owner_digest
from mcptasks.store.lists import PREFIX_MIN, Place
from mcptasks.store.records import newer
from mcptasks.strict_json import dumps
from mcptasks.tracker.model import Event, EventKind, Tracked, TrackPage, TrackStatus
from mcptasks.tracker.store.base import TrackTransitions
from mcptasks.tracker.store.records import read_tracked

#: Tasks that one script looks at: about a millisecond.
_LOOKS: Final = 1_000
_PREFIX: Final = re.compile(rf"[A-Za-z0-9_-]{{{PREFIX_MIN},32}}")
#: What a list shows of a task.
_COLUMNS: Final = (
    *("id", "owner", "server", "tool", "status", "reason", "msg", "created", "updated", "rev", "failures"),
    *("error_text", "polls", "cancel", "consumers", "truncated"),
)


@dataclass(frozen=True, slots=True)
class CancelAnswer:
    """Answer of `cancel`: the word, how many trackers can deliver it (REQUESTED), the end it had (FINISHED)."""

    outcome: Literal["REQUESTED", "CANCELLED", "FINISHED", "GONE"]
    trackers: int = 0
    status: TrackStatus | None = None


class CallerTransitions(TrackTransitions):
    """The tracked tasks in their owner's hands."""

    async def read(self, task_id: str, owner: str | None = None) -> Tracked | None:
        """The task; None when there is none, or it is not the owner's. Writes nothing.

        Raises:
            SchemaTooNew: a newer mcptasks wrote it.
            Sealed: something of it is sealed with a key that is not here.
        """
        async with self.connection.turn() as client:
            fields = cast("dict[str, str]", await client.hgetall(self.keys.task(task_id)))
        if not fields or (owner is not None and fields["owner"] != owner):
            return None
        return read_tracked(fields, self.seal)

    async def answer(
        self, task_id: str, answers: Mapping[str, Any], owner: str | None = None
    ) -> Literal["ANSWERED", "IGNORED", "GONE"]:
        """Each answer whose question is open is stored, and the fleet delivers it. The first one to a key wins.

        Raises:
            TooLarge: one answer is over `settings.answer_max`; none of them was stored.
            BadPayload: an answer is not JSON.
            SchemaTooNew: a newer mcptasks wrote the task.
        """
        flat: list[str] = []
        for key, answer in answers.items():
            text = dumps(answer, "The answer")
            if len(text) > self.settings.answer_max:
                raise TooLarge("The answer", len(text), self.settings.answer_max, "MCPTASKS_ANSWER_MAX")
            flat += (key, self.sealed(task_id, f"a:{key}", text))
        reply = await self.run_script(
            "answer",
            {**self.own(task_id, "task"), **self.fleet("due")},
            {"task_id": task_id, **_whose(owner), "answers": flat},
        )
        if reply[0] == "NEWER":
            raise newer(task_id, reply[1])
        return reply[0]

    async def cancel(self, task_id: str, message: str, owner: str | None = None) -> CancelAnswer:
        """The wish to cancel is stored, and delivered by the fleet.

        Raises:
            SchemaTooNew: a newer mcptasks wrote the task.
        """
        reply = await self.run_script(
            "cancel",
            {**self.own(task_id, "task"), **self.fleet("due", "trackers")},
            {"task_id": task_id, **_whose(owner), "message": self.sealed(task_id, "msg", message)},
        )
        match reply[0]:
            case "NEWER":
                raise newer(task_id, reply[1])
            case "REQUESTED":
                return CancelAnswer("REQUESTED", trackers=int(reply[1]))
            case "FINISHED":
                return CancelAnswer("FINISHED", status=TrackStatus(reply[1]))
            case other:
                return CancelAnswer(other)

    async def page(
        self,
        *,
        owner: str | None = None,
        server: str | None = None,
        statuses: Collection[TrackStatus] = tuple(TrackStatus),
        limit: int,
        cursor: str | None = None,
    ) -> TrackPage:
        """Up to `limit` tasks, newest first, that follow the cursor, or the newest.

        Raises:
            BadCursor: it is none of ours.
        """
        place = None if cursor is None else Place.of(cursor)
        tasks: list[Tracked] = []
        unreadable = 0
        while True:
            reply = await self.run_script(
                "page",
                self.fleet("ids"),
                {
                    "list": self._list(owner, server),
                    "after_ms": None if place is None else place.created_ms,
                    "after_id": None if place is None else place.task_id,
                    **_whose(owner),
                    "tool": None,
                    "room": limit - len(tasks),
                    "looks": _LOOKS,
                    "columns": " ".join(_COLUMNS),
                    "statuses": list(statuses),
                },
            )
            unreadable += int(reply[1])
            found = [self._row(row) for row in reply[2]]
            # The lists are of an owner's or of a server's tasks; of both, the owner's are looked through.
            tasks += (task for task in found if server is None or task.server == server)
            if reply[0] == "END":
                return TrackPage(tasks, None, unreadable)
            place = Place(int(reply[3]), reply[4])
            if len(tasks) == limit:
                return TrackPage(tasks, place.cursor(), unreadable)

    def _row(self, row: list[str | None]) -> Tracked:
        fields = {name: text for name, text in zip(_COLUMNS, row, strict=True) if text is not None}
        try:
            return read_tracked({**fields, "v": "1"}, self.seal)
        except Sealed:
            # A list shows what it can.
            return read_tracked(
                {**{k: v for k, v in fields.items() if k not in ("msg", "error_text")}, "v": "1"}, self.seal
            )

    def _list(self, owner: str | None, server: str | None) -> str:
        if owner is not None:
            name = self.keys.tasks_of_owner(owner)
        else:
            name = self.keys.tasks if server is None else self.keys.tasks_of_tool(server)
        return name.removeprefix(self.keys.prefix)

    async def find(self, start: str, owner: str | None = None) -> str | Literal["NONE", "SEVERAL"]:
        """The id of the one task that begins so (with at least 4 characters); another owner's is none."""
        if not _PREFIX.fullmatch(start):
            return "NONE"
        digest = None if owner is None else owner_digest(owner)
        args = {"start": start, "owner_digest": digest, "operator": "1" if owner is None else "", "looks": _LOOKS}
        reply = await self.run_script("find", self.fleet("ids"), args)
        return reply[1] if reply[0] == "FOUND" else reply[0]

    async def events(self, after: str, block_ms: int) -> list[tuple[str, Event]]:
        """The events behind that place in the stream ("0": all that are left, "$": none yet), each with its own place.

        None within `block_ms`: an empty list.
        """
        async with self.connection.blocking_client() as client:
            reply = await client.xread({self.keys.events: after}, count=100, block=block_ms)
        entries = cast("Any", reply)[0][1] if reply else []
        return [(place, _event(fields)) for place, fields in entries]

    async def last_event(self) -> str:
        """The place of the newest event."""
        async with self.connection.turn() as client:
            newest = cast("list[tuple[str, Any]]", await client.xrevrange(self.keys.events, count=1))
        return newest[0][0] if newest else "0"


def _whose(owner: str | None) -> dict[str, str | None]:
    return {"owner": owner, "operator": "1" if owner is None else ""}


def _event(fields: Mapping[str, str]) -> Event:
    return Event(
        event_id=fields["event"],
        kind=EventKind(fields["kind"]),
        task_id=fields["task"],
        server=fields["server"],
        tool=fields["tool"],
        owner=fields["owner"],
    )
