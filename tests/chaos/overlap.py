"""Which runs went on while their successor had begun, and what made them lose their claim.

Such a run is no fault by itself: at least once means that a frozen or cut-off runner may come back and go on until it
is told. It must never commit; the accounting checks that. Here it is only explained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.faults import Interval
from tests.chaos.herd import LEASE_MS
from tests.chaos.ledger import Effect


@dataclass(frozen=True)
class Overlap:
    """A run that did something after a later run of its task had begun."""

    key: str
    run: int
    pid: int
    began: float
    successor_began: float
    last_effect: float

    @property
    def seconds(self) -> float:
        """How long both went on."""
        return self.last_effect - self.successor_began


def overlaps(effects: Mapping[str, Sequence[Effect]]) -> list[Overlap]:
    """Every one of them."""
    found: list[Overlap] = []
    for key, mine in effects.items():
        begins = {effect.run: effect.at for effect in reversed(mine) if effect.event == "begin"}
        for run, began in begins.items():
            later = [at for other, at in begins.items() if other > run]
            last = [effect for effect in mine if effect.run == run][-1]
            if later and last.at > min(later):
                found.append(Overlap(key, run, last.pid, began, min(later), last.at))
    return found


def unexplained(
    found: Sequence[Overlap], frozen: Mapping[int, Sequence[Interval]], store_away: Sequence[Interval]
) -> list[Overlap]:
    """Those whose process stood still at no time and whose store was there all the time: the machine was too slow."""
    lease_s = LEASE_MS / 1000

    def excused(overlap: Overlap) -> bool:
        faults = [*frozen.get(overlap.pid, ()), *store_away]
        return any(f.began < overlap.successor_began and f.ended > overlap.began - lease_s for f in faults)

    return [overlap for overlap in found if not excused(overlap)]
