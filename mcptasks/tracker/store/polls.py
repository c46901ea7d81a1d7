"""The transitions of a poller: claim, observe, release, nudge; and forget, which clears up."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mcptasks.errors import Sealed
from mcptasks.model import label
from mcptasks.observe.logs import about
from mcptasks.store.base import FORGET_BATCH
from mcptasks.store.records import pairs
from mcptasks.tracker.model import Claimed, Observation
from mcptasks.tracker.store.records import read_claimed
from mcptasks.tracker.store.submits import SubmitTransitions

log: Final = logging.getLogger("mcptasks.tracker")

#: A tracker that has not claimed for so long is taken for dead.
ALIVE_MS: Final = 15_000
#: Tasks that one script claims at most: some milliseconds of the store's one thread.
CLAIM_BATCH: Final = 100
#: A task that cannot be read here, sealed with a key that is not here for instance, is left for a tracker that can.
_LOCKED_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Batch:
    """Some due tasks, and when there will be more: in ms, None where nothing waits."""

    claims: list[Claimed]
    wait_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """What one poll came to. `seen` None: the server said nothing about its task, `next_ms` is when to ask again."""

    seen: Observation | None
    error_text: str = field(default="", repr=False)
    next_ms: int
    #: What became of the cancel that was to be delivered.
    cancel: Literal["", "sent", "refused"] = ""
    #: The keys whose answers were delivered.
    answered: Sequence[str] = field(default=(), repr=False)
    #: The keys whose answers the server did not take: their questions are open again, and news again.
    refused: Sequence[str] = field(default=(), repr=False)


class PollTransitions(SubmitTransitions):
    """What a tracker process does with due tasks."""

    async def claim(self, me: str, room: int) -> Batch:
        """Up to `room` due tasks (at most 100) are this tracker's for `options.lease_ms`, and it counts as alive."""
        reply = await self.run_script(
            "claim",
            self.fleet("due", "trackers"),
            {
                "me": me,
                "alive_ms": ALIVE_MS,
                "lease_ms": self.options.lease_ms,
                "room": min(room, CLAIM_BATCH),
            },
        )
        claims = [claimed for row in reply[2] if (claimed := await self._claimed(row)) is not None]
        return Batch(claims, None if int(reply[1]) < 0 else int(reply[1]))

    async def trackers(self) -> int:
        """How many tracker processes are alive."""
        now_ms = await self.now_ms()
        async with self.connection.turn() as client:
            return await client.zcount(self.keys.trackers, now_ms, "+inf")

    async def _claimed(self, row: Sequence[Any]) -> Claimed | None:
        token, late_ms, fields = int(row[0]), int(row[1]), pairs(row[2])
        try:
            return read_claimed(token, late_ms, fields, self.seal)
        except Sealed as exc:
            why = str(exc)
        except (ValueError, KeyError) as exc:  # of another version, or by another hand: the others of its batch go on
            why = f"its record cannot be read ({type(exc).__name__})"
        task_id = fields.get("id", "")
        with about(task_id):
            log.warning("Task %s cannot be tracked here: %s", label(task_id), why)
        await self.release(task_id, token, _LOCKED_MS)
        return None

    async def observe(
        self, task_id: str, token: int, polled: Polled
    ) -> Literal["OBSERVED", "ENDED", "STALE", "TERMINAL", "GONE"]:
        """The poll is recorded, its news are in the outboxes, and the next one is due, if the claim still holds."""
        seen = polled.seen
        state: dict[str, Any] = (
            dict.fromkeys(("status", "reason", "message", "pace_ms", "result", "failure", "truncated"))
            if seen is None
            else self._state(task_id, seen)
        )
        reply = await self.run_script(
            "observe",
            {**self.own(task_id, "task"), **self.fleet("due")},
            {
                **state,
                "task_id": task_id,
                "token": token,
                "learned": None if seen is None else "1",
                "cancel": polled.cancel,
                "error_text": self.sealed(task_id, "error_text", polled.error_text),
                "next_ms": polled.next_ms,
                "answered": len(polled.answered),
                "refused": len(polled.refused),
                "rest": [*polled.answered, *polled.refused, *([] if seen is None else self._questions(task_id, seen))],
            },
        )
        return reply[0]

    async def release(
        self, task_id: str, token: int, delay_ms: int
    ) -> Literal["RELEASED", "STALE", "TERMINAL", "GONE"]:
        """The claim is given back; the task is due again then."""
        args = {"task_id": task_id, "token": token, "delay_ms": delay_ms}
        return (await self.run_script("release", {**self.own(task_id, "task"), **self.fleet("due")}, args))[0]

    async def nudge(self, task_id: str) -> Literal["NUDGED", "IGNORED"]:
        """The task is due at once."""
        return (
            await self.run_script("nudge", {**self.own(task_id, "task"), **self.fleet("due")}, {"task_id": task_id})
        )[0]

    async def forget(self) -> bool:
        """A batch of tasks whose keys Redis has dropped stands in no list any more. True: there may be others."""
        return (await self.run_script("forget", self.fleet("ids", "drops"), {"batch": FORGET_BATCH}))[0] == "MORE"
