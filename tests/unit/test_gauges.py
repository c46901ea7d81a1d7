"""How often a scrape looks at the store, and what it tells of a worker that is silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from mcptasks.model import Status
from mcptasks.observe import gauges
from mcptasks.observe.gauges import StoreGauges, WorkerGauges
from mcptasks.settings import Settings
from mcptasks.store.gauges import Levels
from mcptasks.store.lists import Counts
from mcptasks.store.registry import WorkerPulse

PULSE: Final = WorkerPulse(at_ms=1, host="h", pid=2, slots=4, active=1, received=9, waiting=3, deaf_ms=7)


class Clock:
    """Stands in for `time`, and for a look that takes a while."""

    def __init__(self) -> None:
        self.now, self.takes_s, self.looks = 1_000.0, 0.1, 0
        self.answer: Any = "levels"

    def monotonic(self) -> float:
        """The moment."""
        return self.now

    async def levels(self, _: Settings) -> Any:
        """The store was looked at."""
        self.looks += 1
        self.now += self.takes_s
        return self.answer


@pytest.mark.parametrize(("takes_s", "answer"), [(0.01, "levels"), (9.0, "levels"), (4.0, None)], ids=str)
def test_scrapes_within_five_seconds_are_one_look(monkeypatch: pytest.MonkeyPatch, takes_s: float, answer: Any) -> None:
    """However long it took: for as long as nobody looks, nobody sees that the store is down."""
    clock = Clock()
    clock.takes_s, clock.answer = takes_s, answer
    monkeypatch.setattr(gauges, "time", clock)
    monkeypatch.setattr(gauges, "_levels", clock.levels)
    store = StoreGauges(Settings())
    look = store._look  # pyright: ignore[reportPrivateUsage]
    assert look() is look() is answer
    assert clock.looks == 1
    clock.now += 4.5
    look()
    assert clock.looks == 1
    clock.now += 1
    look()
    assert clock.looks == 2


def test_a_worker_that_says_nothing_new_is_not_told_of_as_if_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot reach the store: what it had to do then is not what it has now."""
    clock, said = Clock(), [PULSE]
    monkeypatch.setattr(gauges, "time", clock)
    worker = WorkerGauges(lambda: said[-1])
    told = [len(list(worker.collect()))]
    for _ in range(3):
        clock.now += 7
        told.append(len(list(worker.collect())))
    said.append(replace(PULSE, at_ms=2))
    told.append(len(list(worker.collect())))
    assert told == [5, 5, 5, 0, 5]


def test_a_worker_that_was_silent_for_a_moment_is_not_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next message may be on the way; after fifteen seconds somebody is woken."""
    seen = Levels(
        now_ms=2,
        counts=Counts(dict.fromkeys(Status, 0), {}, 0),
        unsent=0,
        late_ms={},
        admission_open=True,
        workers={"a": replace(PULSE, deaf_ms=2_000), "b": replace(PULSE, deaf_ms=20_000)},
        tracked=0,
        tracked_late_ms=0,
        dead_letters=0,
        outboxes={},
    )
    store = StoreGauges(Settings())
    monkeypatch.setattr(store, "_look", lambda: seen)
    found = {family.name: family.samples[0].value for family in store.collect() if family.samples}
    assert (found["mcptasks_workers"], found["mcptasks_deaf_workers"]) == (2, 1)
