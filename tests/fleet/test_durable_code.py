"""A tool of all that durable code has, its worker killed with -9 in every phase of its life: always the same result.

Each effect happens once; or twice, where the kill fell between the effect and its record, which the ledger and the
journal tell apart.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, cast

import anyio
import anyio.to_thread
import pytest

from mcptasks.client import TaskHandle
from mcptasks.model import Record, Status
from tests.fleet.conftest import Served
from tests.fleet.recovery_system import RecoveryFleet, Supervised, on_recovering
from tests.fleet.system import Proc, accepted, client, new_key, outcome, start
from tests.requirements import covers
from tests.support.waiting import wait_until

pytest_plugins = ["tests.fleet.recovery_fixtures"]
pytestmark = pytest.mark.anyio

QUESTIONS: Final = ("first?", "second?", "left?", "right?", "third?")
EFFECTS: Final = ("reserve", "charge")
#: Where `odyssey` stands still when it is told to.
PLACES: Final = (
    "before first?",
    "in reserve",
    "reserve done",
    "before second?",
    "before the gather",
    "in the gather",
    "after the gather",
    "in charge",
    "charge done",
    "before third?",
    "at the end",
)
ASLEEP: Final = "asleep"
#: The tool's whole life, and how the store has it meanwhile. "left?" has "right?" open beside it.
PHASES: Final = {
    **dict.fromkeys(PLACES, Status.RUNNING),
    **dict.fromkeys(QUESTIONS, Status.PARKED),
    ASLEEP: Status.SLEEPING,
}
#: A person and a busy machine are in time for what is looked at while the tool's timer runs.
LONG_NAPS: Final = ("left?", "right?", ASLEEP)
#: A kill falls so long after the moment it is for: between the effect and its record, while a task parks or wakes.
SPREAD_S: Final = 0.02
#: The end is written within a few milliseconds.
SPREAD_AT_THE_END_S: Final = 0.004
#: Above what a busy machine may let a worker stall, so that only the killed ones look dead.
ENV: Final = {"MCPTASKS_LEASE_MS": "4000", "MCPTASKS_RENEW_MS": "1000"}


@dataclass(frozen=True)
class Strike:
    """When a worker is killed: so long after the tool came to the phase, or after it was let out of it."""

    phase: str
    leaving: bool
    after_s: float


class Odyssey:
    """One call of the tool, whose worker is killed once on the way."""

    def __init__(self, fleet: RecoveryFleet, workers: Sequence[Supervised], handle: TaskHandle, key: str, go: Path):
        self._fleet, self._workers, self._handle, self._key, self._go = fleet, workers, handle, key, go
        #: What the task was doing when its worker was killed; None: the kill came too late.
        self.struck: Status | None = None
        #: The effects whose record was lost with the worker.
        self.lost: set[str] = set()

    async def sail(self, strike: Strike) -> None:
        """The tool has come to its one result, though a worker was killed."""
        asked = dict[str, str]()
        async with anyio.create_task_group() as group:
            if strike.phase not in QUESTIONS:
                group.start_soon(anyio.to_thread.run_sync, self._strike_on_the_way, strike)
            asked = await self._answer_all(strike)
        self._check(await outcome(self._handle), asked)

    async def _answer_all(self, strike: Strike) -> dict[str, str]:
        """Every question has got its own answer, until the task ended: text -> key. None was put twice."""
        asked: dict[str, str] = {}
        while True:
            task = await self._handle.wait(180, until=["input_required"])
            if task.terminal:
                return asked
            requests = task.input_requests or {}
            texts = {cast("str", request["params"]["message"]): key for key, request in requests.items()}
            assert not asked.keys() & texts.keys(), f"asked again: {texts}"
            asked |= texts
            for text, key in sorted(texts.items()):
                answer = partial(self._handle.update, {key: accepted(f"yes to {text}")})
                if text != strike.phase:
                    await answer()
                elif strike.leaving:
                    await answer()
                    await anyio.to_thread.run_sync(self._strike, strike)
                else:
                    await anyio.to_thread.run_sync(self._strike, strike)
                    await answer()

    def _strike_on_the_way(self, strike: Strike) -> None:
        if strike.phase == ASLEEP:
            self._fleet.await_status(self._handle, Status.SLEEPING)
            if strike.leaving:
                wait_until(lambda: self._record.status is not Status.SLEEPING, description="the timer is due")
        else:
            self._fleet.ledger.await_event(self._key, "stands")
            if strike.leaving:
                self._go.touch()
        self._strike(strike)

    def _strike(self, strike: Strike) -> None:
        """The worker that has the task, or had it last, is dead."""
        time.sleep(strike.after_s)  # a random point is the thing under test
        record = self._record
        worker = self._worker_of(record)
        worker.kill()
        if record.status.terminal:
            return
        assert strike.leaving or record.status is PHASES[strike.phase], f"{record.status} at {strike}"
        self.struck = record.status
        # What the dead worker had sent is done before the second of two round trips.
        self._fleet.raw.ping()
        recorded = self._journal()
        ledger = self._fleet.ledger
        self.lost = {one for one in EFFECTS if ledger.count(self._key, one) and f"s:{one}#1" not in recorded}

    def _worker_of(self, record: Record) -> Proc:
        alive = [worker.lives[-1] for worker in self._workers]
        if record.worker:
            return next(proc for proc in alive if proc.name == f"worker-{record.worker.partition('@')[0]}")
        # Each worker leads a process group of its own.
        last = os.getpgid(self._fleet.ledger.of(self._key)[-1]["pid"])
        return next(proc for proc in alive if proc.pid == last)

    @property
    def _record(self) -> Record:
        return self._fleet.record(self._handle)

    def _journal(self) -> list[str]:
        return [str(field) for field in self._fleet.raw.hkeys(self._fleet.keys.journal(self._handle.task_id))]

    def _check(self, text: str, asked: dict[str, str]) -> None:
        ledger = self._fleet.ledger
        done = {
            effect: [line["token"] for line in ledger.of(self._key) if line["event"] == effect] for effect in EFFECTS
        }
        assert {effect: len(tokens) for effect, tokens in done.items()} == {
            effect: 1 + (effect in self.lost) for effect in EFFECTS
        }, ledger.events(self._key)
        assert all(len(set(tokens)) == 1 for tokens in done.values()), "a repeated effect has its first one's key"
        first, second, left, right, third = (f"yes to {text}" for text in QUESTIONS)
        reserve, charge = (f"{effect} {done[effect][0]}" for effect in EFFECTS)
        assert text == ", ".join([first, reserve, second, left, right, charge, third])
        assert asked.keys() == set(QUESTIONS)
        assert Counter(field[:2] for field in self._journal()) == {"k:": 5, "a:": 5, "s:": 2, "t:": 1}


@dataclass
class Log:
    """What became of all the strikes."""

    phases: Counter[str]
    statuses: Counter[Status]
    #: The effects that happened and whose record was lost.
    lost: Counter[str]


async def _strike_each(served: Served, strikes: Iterable[tuple[str, bool]]) -> Log:
    """A worker, of one pool or the other, was killed in each of these phases, or on the way out of it."""
    fleet = cast("RecoveryFleet", served.fleet)
    chance, log, began = random.Random(50), Log(Counter(), Counter(), Counter()), time.monotonic()
    with (
        Supervised(fleet, "threads", concurrency=2, **ENV) as threads,
        Supervised(fleet, "prefork", concurrency=1, **ENV) as prefork,
    ):
        for phase, leaving in strikes:
            spread_s = SPREAD_AT_THE_END_S if phase == "at the end" else SPREAD_S
            while True:
                key = new_key()
                go = fleet.folder / f"go-{key}"
                nap, stand = "4s" if phase in LONG_NAPS else "1200ms", phase if phase in PLACES else ""
                async with client(served.url) as connection:
                    handle = await start(connection, "odyssey", key=key, nap=nap, stand=stand, go=str(go))
                    odyssey = Odyssey(fleet, (threads, prefork), handle, key, go)
                    await odyssey.sail(Strike(phase, leaving, chance.uniform(0, spread_s)))
                if odyssey.struck:
                    break
                # A kill that finds the task ended is none.
                spread_s /= 2
            log.phases[phase] += 1
            log.statuses[odyssey.struck] += 1
            log.lost.update(odyssey.lost)
        deaths = {"threads": threads.deaths, "prefork": prefork.deaths}
    print(
        f"\n{log.phases.total()} kills in {time.monotonic() - began:.0f} s: {deaths}, {dict(log.statuses)}; "
        f"effects without a record: {dict(log.lost)}"
    )
    return log


@on_recovering
@covers("E01", "E10", "N7", "N8")
async def test_a_worker_killed_anywhere_in_durable_code_changes_nothing(recovering: Served) -> None:
    """E01: a, b and c once each in every kill position; E10: nobody is asked twice."""
    log = await _strike_each(
        recovering,
        [("charge done", False), ("in the gather", True), ("first?", False), (ASLEEP, False), ("at the end", True)],
    )
    assert log.phases.total() == 5
    assert log.lost["charge"] == 1


@on_recovering
@covers("E01", "E10", "N7", "N8")
@pytest.mark.slow
async def test_a_worker_killed_at_fifty_points_of_durable_code_changes_nothing(recovering: Served) -> None:
    """The same in each phase of the tool's life: once in it, twice a moment after it was let out."""
    log = await _strike_each(recovering, [(phase, leaving) for leaving in (False, True, True) for phase in PHASES])
    assert log.phases == dict.fromkeys(PHASES, 3) and log.phases.total() >= 50
    assert log.statuses.keys() >= {Status.RUNNING, Status.PARKED, Status.SLEEPING}
    assert log.lost.keys() == set(EFFECTS)
