"""The transitions of the outbox: take, hold, delivered, undelivered, replay; and the dead letters."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, Literal, cast

from mcptasks.errors import Sealed
from mcptasks.model import label
from mcptasks.observe.logs import about
from mcptasks.store.records import pairs
from mcptasks.tracker.model import DeadLetter, Delivery
from mcptasks.tracker.store.base import TrackTransitions
from mcptasks.tracker.store.records import read_delivery, read_letter

log: Final = logging.getLogger("mcptasks.tracker")

#: Dead letters that are shown at most, the newest.
DEAD_SHOWN: Final = 500


@dataclass(frozen=True, slots=True)
class Post:
    """Some events to deliver, and when there will be more: in ms, None where nothing waits."""

    deliveries: list[Delivery]
    wait_ms: int | None


class OutboxTransitions(TrackTransitions):
    """What is done with the news of tasks, once the script that made them has put them into an outbox."""

    async def take(self, consumer: str, room: int, lease_ms: int) -> Post:
        """Up to `room` of the events that the consumer is owed are this process's to deliver, for a lease."""
        reply = await self.run_script(
            "take",
            {"outbox": self.keys.outbox(consumer)},
            {"consumer": consumer, "lease_ms": lease_ms, "room": room},
        )
        deliveries: list[Delivery] = []
        for token, news, failed, flat in reply[2]:
            fields = pairs(flat)
            try:
                deliveries.append(read_delivery(consumer, int(token), news, int(failed), fields, self.seal))
            except (Sealed, ValueError, KeyError) as exc:
                # Its lease runs out, and perhaps another process takes it, that has the key, or is of another version.
                why = str(exc) if isinstance(exc, Sealed) else f"its record cannot be read ({type(exc).__name__})"
                task_id = fields.get("id", "")
                with about(task_id):
                    log.warning("The event of task %s cannot be delivered here: %s", label(task_id), why)
        return Post(deliveries, None if int(reply[1]) < 0 else int(reply[1]))

    async def hold(self, delivery: Delivery, lease_ms: int) -> Literal["HELD", "STALE"]:
        """The delivery goes on for another lease. STALE: another process has it."""
        reply = await self.run_script("hold", self._letter(delivery), {**_of(delivery), "lease_ms": lease_ms})
        return reply[0]

    async def delivered(
        self, delivery: Delivery, revision: int | None = None
    ) -> Literal["DELIVERED", "REPLACED", "STALE"]:
        """The consumer has handled all news up to the revision (its event's). REPLACED: newer ones are due at once."""
        up_to = delivery.revision if revision is None else revision
        reply = await self.run_script("delivered", self._letter(delivery), {**_of(delivery), "revision": up_to})
        return reply[0]

    async def undelivered(
        self, delivery: Delivery, *, delay_ms: int, permanent: bool, why: str
    ) -> Literal["WAITING", "DEAD", "REPLACED", "STALE"]:
        """The event is tried again in so long, or is a dead letter: refused for good, or the last attempt failed."""
        reply = await self.run_script(
            "undelivered",
            {**self._letter(delivery), **self.fleet("dead")},
            {
                **_of(delivery),
                "revision": delivery.revision,
                "delay_ms": delay_ms,
                "attempts_max": self.options.attempts,
                "permanent": "1" if permanent else "",
                "why": why,
            },
        )
        return reply[0]

    async def dead(self) -> list[DeadLetter]:
        """The dead letters, newest first, at most 500. Those whose task is gone are no more."""
        async with self.connection.turn() as client:
            found = cast(
                "list[tuple[str, float]]",
                await client.zrange(self.keys.dead, 0, DEAD_SHOWN - 1, desc=True, withscores=True),
            )
            async with client.pipeline(transaction=False) as pipe:
                for member, _ in found:
                    pipe.hgetall(self.keys.task(member.split(" ")[0]))
                records = cast("list[dict[str, str]]", await pipe.execute()) if found else []
        letters: list[DeadLetter] = []
        for (member, at_ms), fields in zip(found, records, strict=True):
            consumer = member.split(" ")[1]
            letter = read_letter(consumer, int(at_ms), fields) if fields else None
            if letter is not None:
                letters.append(letter)
        return letters

    async def replay(self, task_id: str, consumer: str) -> Literal["REPLAYED", "NONE"]:
        """The dead letter is delivered again, at once."""
        keys = {**self.own(task_id, "task"), "outbox": self.keys.outbox(consumer), **self.fleet("dead")}
        return (await self.run_script("replay", keys, {"task_id": task_id, "consumer": consumer}))[0]

    async def replay_all(self, consumer: str | None) -> int:
        """Every dead letter that there is now (of that consumer) is delivered again, at once; how many."""
        async with self.connection.turn() as client:
            members = cast("list[str]", await client.zrange(self.keys.dead, 0, -1))
        letters = [(task_id, name) for task_id, name in (member.split(" ") for member in members)]
        words = [await self.replay(task_id, name) for task_id, name in letters if consumer in (None, name)]
        return words.count("REPLAYED")

    async def replay_task(self, task_id: str, consumer: str | None) -> int:
        """The task's dead letters (of that consumer) are delivered again, at once; how many."""
        async with self.connection.turn() as client:
            names = cast("str | None", await client.hget(self.keys.task(task_id), "consumers")) or ""
        words = [await self.replay(task_id, name) for name in names.split() if consumer in (None, name)]
        return words.count("REPLAYED")

    def _letter(self, delivery: Delivery) -> dict[str, str]:
        return {**self.own(delivery.task.task_id, "task"), "outbox": self.keys.outbox(delivery.consumer)}


def _of(delivery: Delivery) -> dict[str, str | int]:
    return {"task_id": delivery.task.task_id, "consumer": delivery.consumer, "token": delivery.token}
