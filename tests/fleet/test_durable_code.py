"""A tool of all that durable code has, its worker killed with -9 at random points: always the same result.

Each effect happens once; or twice, where the kill fell between the effect and its record, which the ledger and the
journal tell apart.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final, cast

import anyio
import anyio.to_thread
import pytest

from mcptasks.client import TaskHandle
from mcptasks.model import Status
from tests.fleet.conftest import Served
from tests.fleet.recovery_system import RecoveryFleet, Supervised, on_recovering
from tests.fleet.system import accepted, client, new_key, outcome, start
from tests.requirements import covers

pytest_plugins = ["tests.fleet.recovery_fixtures"]
pytestmark = pytest.mark.anyio

QUESTIONS: Final = ("first?", "second?", "left?", "right?", "third?")
EFFECTS: Final = ("reserve", "charge")
#: Above what a busy machine may let a worker stall, so that only the killed ones look dead.
ENV: Final = {"MCPTASKS_LEASE_MS": "4000", "MCPTASKS_RENEW_MS": "1000"}


async def answer_all(handle: TaskHandle) -> dict[str, str]:
    """Every question has got its own answer, until the task ended: text -> key. None was put twice."""
    asked: dict[str, str] = {}
    while True:
        task = await handle.wait(180, until=["input_required"])
        if task.terminal:
            return asked
        texts = {key: cast("str", request["params"]["message"]) for key, request in (task.input_requests or {}).items()}
        assert not asked.keys() & set(texts.values()), f"asked again: {texts}"
        asked |= {text: key for key, text in texts.items()}
        await handle.update({key: accepted(f"yes to {text}") for key, text in texts.items()})


class Odysseys:
    """Runs of the tool on two workers, one of each pool, that are killed and started again."""

    def __init__(self, fleet: RecoveryFleet, url: str, workers: Sequence[Supervised]) -> None:
        self._fleet, self._url, self._workers = fleet, url, workers
        #: What the task was doing when its worker was killed, and the effects whose record was lost with it.
        self.struck, self.repeated = Counter[Status](), Counter[str]()
        self.kills = 0

    async def undisturbed(self) -> float:
        """How many seconds the tool takes when nobody kills anything."""
        began = time.monotonic()
        await self._run(None)
        return time.monotonic() - began

    async def killed_after(self, seconds: float) -> None:
        """The tool came to its one result, though a worker was killed so long after its call."""
        await self._run(seconds)

    async def _run(self, kill_after_s: float | None) -> None:
        key, lost = new_key(), set[str]()
        async with client(self._url) as connection:
            handle, asked = await start(connection, "odyssey", key=key), dict[str, str]()

            async def kill() -> None:
                if kill_after_s is not None:
                    await anyio.sleep(kill_after_s)  # a random point is the thing under test
                    lost.update(await anyio.to_thread.run_sync(self._kill, handle, key))

            async with anyio.create_task_group() as group:
                group.start_soon(kill)
                asked = await answer_all(handle)
            text = await outcome(handle)
        self._check(handle, key, text, asked, lost)

    def _kill(self, handle: TaskHandle, key: str) -> set[str]:
        """The worker that has the task, or any one, is dead; the effects that it did and did not record."""
        fleet = self._fleet
        record = fleet.record(handle)
        name = f"worker-{record.worker.partition('@')[0]}" if record.worker else ""
        alive = [worker.lives[-1] for worker in self._workers]
        (next((proc for proc in alive if proc.name == name), None) or random.Random(key).choice(alive)).kill()
        if record.status.terminal:
            return set()
        self.kills += 1
        self.struck[record.status] += 1
        # What the dead worker had sent is done before the second of two round trips.
        fleet.raw.ping()
        recorded = {str(field) for field in fleet.raw.hkeys(fleet.keys.journal(handle.task_id))}
        lost = {effect for effect in EFFECTS if fleet.ledger.count(key, effect) and f"s:{effect}#1" not in recorded}
        self.repeated.update(lost)
        return lost

    def _check(self, handle: TaskHandle, key: str, text: str, asked: dict[str, str], lost: set[str]) -> None:
        fleet = self._fleet
        done = {
            effect: [line["token"] for line in fleet.ledger.of(key) if line["event"] == effect] for effect in EFFECTS
        }
        assert {effect: len(tokens) for effect, tokens in done.items()} == {
            effect: 1 + (effect in lost) for effect in EFFECTS
        }, fleet.ledger.events(key)
        assert all(len(set(tokens)) == 1 for tokens in done.values()), "a repeated effect has its first one's key"
        first, second, left, right, third = (f"yes to {text}" for text in QUESTIONS)
        reserve, charge = (f"{effect} {done[effect][0]}" for effect in EFFECTS)
        assert text == ", ".join([first, reserve, second, left, right, charge, third])
        assert asked.keys() == set(QUESTIONS)
        recorded = Counter(str(field)[:2] for field in fleet.raw.hkeys(fleet.keys.journal(handle.task_id)))
        assert recorded == {"k:": 5, "a:": 5, "s:": 2, "t:": 1}


async def _sail(served: Served, points: int) -> Odysseys:
    fleet = cast("RecoveryFleet", served.fleet)
    chance = random.Random(points)
    with (
        Supervised(fleet, "threads", concurrency=2, **ENV) as threads,
        Supervised(fleet, "prefork", concurrency=1, **ENV) as prefork,
    ):
        odysseys = Odysseys(fleet, served.url, (threads, prefork))
        span_s = min([await odysseys.undisturbed() for _ in range(2)])
        began = time.monotonic()
        # A kill that finds the task ended is none.
        while odysseys.kills < points:
            await odysseys.killed_after(chance.uniform(0, span_s))
        took_s = time.monotonic() - began
    print(
        f"\n{points} kills within {span_s:.1f} s each, {took_s:.0f} s in all: {dict(odysseys.struck)}; "
        f"effects without a record: {dict(odysseys.repeated)}"
    )
    return odysseys


@on_recovering
@covers("E01", "E10", "N7", "N8")
async def test_a_worker_killed_anywhere_in_durable_code_changes_nothing(recovering: Served) -> None:
    """E01: a, b and c once each in every kill position; E10: nobody is asked twice."""
    assert (await _sail(recovering, 5)).kills == 5


@on_recovering
@covers("E01", "E10", "N7", "N8")
@pytest.mark.slow
async def test_a_worker_killed_at_fifty_points_of_durable_code_changes_nothing(recovering: Served) -> None:
    """The same, often enough to meet every place: while it runs, is queued, waits for a person, sleeps."""
    odysseys = await _sail(recovering, 50)
    assert odysseys.struck.keys() >= {Status.RUNNING, Status.PARKED}
