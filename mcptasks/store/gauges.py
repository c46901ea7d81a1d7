"""How much there is of everything, for those who watch: cheap enough to be asked every few seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, cast

from mcptasks.errors import StoreUnavailable
from mcptasks.model import Status
from mcptasks.store.base import FORGET_BATCH
from mcptasks.store.keys import Keys
from mcptasks.store.lists import Counts, ListTransitions
from mcptasks.store.registry import FRESH_MS, RegistryTransitions, WorkerPulse

_INDEXES: Final = ("unsent", "leases", "expiry")
#: Tasks that one script looks at: two milliseconds, or some more for a login that may see its own keys alone.
_LOOKS: Final = 1_000
#: A tally serves all who ask within this time ...
_KEPT_S: Final = 5.0
#: ... and within so many times what it took: tallies keep the store busy for 2 % of the time at most.
_SHARE: Final = 50


@dataclass(frozen=True, slots=True)
class Outbox:
    """What one consumer of the tracker's is owed."""

    depth: int
    #: For how long the first event that could be delivered has waited for somebody to do that; 0: none waits.
    late_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The store at one moment, nearly."""

    now_ms: int
    #: Of unfinished tasks; some seconds old.
    counts: Counts
    #: Tasks that wait for a worker or a time.
    unsent: int
    #: By the sweeper's index, how overdue its first entry is; 0: nothing is. An entry is a look that is due.
    late_ms: Mapping[str, int]
    admission_open: bool
    #: Live ones, by node name.
    workers: Mapping[str, WorkerPulse]
    #: Of the tracker.
    tracked: int
    tracked_late_ms: int
    dead_letters: int
    #: By consumer, of the hundred that were last told something.
    outboxes: Mapping[str, Outbox]


class GaugeTransitions(ListTransitions, RegistryTransitions):
    """Looks; writes nothing but the tally that others may share."""

    async def levels(self) -> Levels:
        """All of it. The dear part, a look at each unfinished task, is one for all processes that ask."""
        now_ms, counts, workers = await self.now_ms(), await self._shared_tally(), await self.workers()
        # As `mcptasks.tracker.store.keys` has them.
        track = Keys(f"{self.settings.prefix}track:")
        indexes = [getattr(self.keys, name) for name in _INDEXES]
        async with self.connection.turn() as client, client.pipeline(transaction=False) as pipe:
            for index in (*indexes, f"{track.prefix}due"):
                pipe.zrange(index, 0, 0, withscores=True)
            pipe.zcard(self.keys.unsent)
            pipe.exists(self.keys.admission)
            pipe.zcard(f"{track.prefix}list:active")
            pipe.zcard(f"{track.prefix}dead")
            pipe.zrange(f"{track.prefix}consumers", 0, -1)
            found: list[Any] = await pipe.execute()
        late = [_overdue(first, now_ms) for first in found[: len(indexes) + 1]]
        unsent, closed, tracked, dead, consumers = found[len(indexes) + 1 :]
        return Levels(
            now_ms=now_ms,
            counts=counts,
            unsent=int(unsent),
            late_ms=dict(zip(_INDEXES, late, strict=False)),
            admission_open=not closed,
            workers={name: pulse for name, pulse in workers.items() if now_ms - pulse.at_ms <= FRESH_MS},
            tracked=int(tracked),
            tracked_late_ms=late[-1],
            dead_letters=int(dead),
            outboxes=await self._outboxes(track.prefix, consumers, now_ms),
        )

    async def _outboxes(self, prefix: str, consumers: list[str], now_ms: int) -> dict[str, Outbox]:
        if not consumers:
            return {}
        async with self.connection.turn() as client, client.pipeline(transaction=False) as pipe:
            for name in consumers:
                pipe.zcard(f"{prefix}outbox:{name}")
                pipe.zrange(f"{prefix}outbox:{name}", 0, 0, withscores=True)
            found: list[Any] = await pipe.execute()
        return {
            name: Outbox(int(depth), _overdue(first, now_ms))
            for name, depth, first in zip(consumers, found[::2], found[1::2], strict=True)
        }

    async def tally(self) -> Counts:
        """The unfinished tasks by status, and since when the first has been in it: about 1.5 us of the store each.

        The numbers of one moment, but where more than a thousand tasks are unfinished: of as many moments as it takes
        to look at them, a thousand at a time. Ended ones, and those of a newer mcptasks in a status of its own, are in
        no number.
        """
        numbers, since = dict.fromkeys((status for status in Status if not status.terminal), 0), dict[Status, int]()
        overdue, after = 0, ["", ""]
        while True:
            reply = await self.run_script(
                "tally",
                self.fleet("ids", "expiry"),
                {
                    "after_ms": after[0],
                    "after_id": after[1],
                    "looks": _LOOKS,
                    "batch": FORGET_BATCH,
                    "known": [word for status, at_ms in since.items() for word in (status, at_ms)],
                },
            )
            if reply[0] == "AGAIN":
                continue
            overdue += int(reply[1])
            for word, number, first in zip(*[iter(reply[2])] * 3, strict=True):
                if word in numbers:
                    numbers[Status(word)] += int(number)
                    since[Status(word)] = int(first)
            if reply[0] == "TALLIED":
                return Counts(numbers, since, overdue)
            after = reply[3:5]

    async def _shared_tally(self) -> Counts:
        """Somebody's tally of a moment ago, or one of our own, for others to find."""
        async with self.connection.turn() as client:
            text = cast("str | None", await client.get(self.keys.tally))
        if text is not None and (found := _read(text)) is not None:
            return found
        began = perf_counter()
        counts = await self.tally()
        kept_ms = round(1000 * max(_KEPT_S, _SHARE * (perf_counter() - began)))
        with suppress(StoreUnavailable):  # a full store takes no text, and is watched all the same
            async with self.connection.turn() as client:
                await client.set(self.keys.tally, _text(counts), px=kept_ms)
        return counts


def _text(counts: Counts) -> str:
    return json.dumps([counts.by_status, counts.since_ms, counts.overdue])


def _read(text: str) -> Counts | None:
    """None: another version of mcptasks wrote it, in another form."""
    try:
        numbers, since, overdue = json.loads(text)
        by_status, since_ms = ({Status(word): int(of[word]) for word in of} for of in (numbers, since))
        return Counts(by_status, since_ms, int(overdue))
    except (ValueError, TypeError, AttributeError):
        return None


def _overdue(first: list[tuple[str, float]], now_ms: int) -> int:
    """How overdue the index is whose first entry this is; 0: nothing is."""
    return max(0, now_ms - int(first[0][1])) if first else 0
