"""How much there is of everything, for those who watch: cheap enough to be asked every few seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcptasks.store.keys import Keys
from mcptasks.store.lists import Counts, ListTransitions
from mcptasks.store.registry import FRESH_MS, RegistryTransitions, WorkerPulse

_INDEXES: Final = ("unsent", "leases", "expiry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The store at one moment, nearly."""

    now_ms: int
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


class GaugeTransitions(ListTransitions, RegistryTransitions):
    """Looks; writes nothing."""

    async def levels(self) -> Levels:
        """All of it. Costs a look at each unfinished task."""
        now_ms, counts, workers = await self.now_ms(), await self.count(None), await self.workers()
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
            found: list[Any] = await pipe.execute()
        late = [max(0, now_ms - int(first[0][1])) if first else 0 for first in found[: len(indexes) + 1]]
        unsent, closed, tracked, dead = found[len(indexes) + 1 :]
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
        )
