"""The load: callers that submit, follow, answer and cancel, and repeat what nobody answered."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tests.chaos.ledger import Ledger
from tests.chaos.plan import RETRIES
from tests.chaos.recorder import TERMINAL, Recorder
from tests.chaos.wire import Door, Refused, Unanswered

T = TypeVar("T")

#: How often each kind is drawn.
MIX: Final = {
    "quick": 18,
    "quick_sync": 12,
    "long": 12,
    "long_sync": 6,
    "asks": 16,
    "asks_held": 8,
    "retries": 10,
    "gives_up": 3,
    "fragile": 5,
    "cancelled": 10,
}
#: What a caller cancels.
_CANCELLABLE: Final = ("long", "long_sync", "asks", "asks_held", "retries")
_TWICE: Final = 0.2
#: Between two attempts at a request that nobody answers.
_LONGEST_PAUSE_S: Final = 4.0


@dataclass
class Job:
    """One task from its caller's side."""

    key: str
    kind: str
    tool: str
    arguments: dict[str, Any]
    #: Sent through both servers at once.
    twice: bool
    #: Seconds after its acceptance at which the caller cancels.
    cancel_after: float | None
    #: Every id that any server gave for it.
    task_ids: set[str] = field(default_factory=set[str])
    #: What was answered to each question, by all who answered.
    answers: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    end: dict[str, Any] | None = None
    cancel_acknowledged: float | None = None
    resubmitted: int = 0
    #: What its caller saw that may not be.
    complaints: list[str] = field(default_factory=list[str])

    @property
    def task_id(self) -> str:
        """Its id, once it was accepted."""
        return min(self.task_ids, default="")


def draw(rng: random.Random, number: int) -> Job:
    """The next job."""
    kind = rng.choices(list(MIX), list(MIX.values()))[0]
    tool = rng.choice(_CANCELLABLE) if kind == "cancelled" else kind
    key = f"{number:05}-{rng.getrandbits(32):08x}"
    arguments: dict[str, Any] = {"key": key}
    match tool:
        case "long" | "long_sync" | "fragile":
            arguments["seconds"] = round(rng.uniform(2, 4 if tool == "fragile" else 10), 1)
        case "asks" | "asks_held":
            arguments["questions"] = rng.choice([1, 1, 1, 2, 3])
        case "retries":
            arguments["times"] = rng.randint(1, len(RETRIES))
        case _:
            pass
    cancel_after = rng.choice([0.0, rng.uniform(0, 2), rng.uniform(0, 8)]) if kind == "cancelled" else None
    return Job(key, kind, tool, arguments, rng.random() < _TWICE, cancel_after)


@dataclass
class Load:
    """All callers of one run."""

    doors: list[Door]
    ledger: Ledger
    recorder: Recorder
    rng: random.Random
    per_s: float
    most: int
    jobs: list[Job] = field(default_factory=list[Job])
    unanswered: int = 0
    _open: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    @property
    def unfinished(self) -> int:
        """Callers that still wait."""
        return len(self._open)

    async def submit(self) -> None:
        """Never returns: starts callers at the rate, as long as not too many wait."""
        while True:
            await asyncio.sleep(self.rng.expovariate(self.per_s))
            if len(self._open) < self.most:
                self.start(draw(self.rng, len(self.jobs)))

    def start(self, job: Job) -> None:
        """A caller lives through the job."""
        self.jobs.append(job)
        self.ledger.add("submissions", job.key, job.kind, json.dumps(job.arguments), time.time())
        caller = asyncio.get_running_loop().create_task(self._live(job), name=job.key)
        self._open.add(caller)
        caller.add_done_callback(self._open.discard)

    async def settle(self, within_s: float) -> None:
        """Every caller has seen the end of its task, or the time is up."""
        if self._open:
            await asyncio.wait(set(self._open), timeout=within_s)

    async def stop(self) -> None:
        """No caller is left."""
        for caller in set(self._open):
            caller.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    # -------------------------------------------------------------------------------------------- one caller

    async def _live(self, job: Job) -> None:
        try:
            await self._accepted(job)
            await self._followed(job)
        except* Refused as refused:
            job.complaints += [f"refused: {exc}" for exc in refused.exceptions]

    async def _accepted(self, job: Job) -> None:
        async def once(door: Door) -> None:
            created = await door.call(job.tool, job.arguments, job.key)
            job.task_ids.add(created["taskId"])
            self.recorder.expect(created["taskId"])

        if job.twice:
            await asyncio.gather(*(self._insist(job, "call", once, door) for door in self.doors))
        else:
            await self._insist(job, "call", once)
        job.complaints += [f"one key, {len(job.task_ids)} tasks: {job.task_ids}"] if len(job.task_ids) != 1 else []

    async def _followed(self, job: Job) -> None:
        accepted, created_at, updated_at = time.monotonic(), "", ""
        answering: set[str] = set()
        async with asyncio.TaskGroup() as group:
            if job.cancel_after is not None:
                group.create_task(self._cancel(job, job.cancel_after))
            while True:
                await asyncio.sleep(self.rng.uniform(0.3, 0.8) if time.monotonic() - accepted < 2 else self._pause())
                task = await self._insist(job, "get", lambda door: door.get(job.task_id))
                if task["createdAt"] != (created_at or task["createdAt"]) or task["lastUpdatedAt"] < updated_at:
                    job.complaints.append(f"its times moved: {created_at} {updated_at} then {task}")
                created_at, updated_at = task["createdAt"], task["lastUpdatedAt"]
                for key in set(task.get("inputRequests", {})) - answering:
                    answering.add(key)
                    group.create_task(self._answer(job, key))
                if task["status"] in TERMINAL:
                    job.end = task
                    return

    def _pause(self) -> float:
        # More callers ask more seldom: the machine is to be busy with tasks.
        return self.rng.uniform(0.5, 1.5) * max(1.0, len(self._open) / 25)

    async def _answer(self, job: Job, question: str) -> None:
        await asyncio.sleep(self.rng.choice([0.0, self.rng.uniform(0, 1.5), self.rng.uniform(0, 6)]))

        async def say(value: str, door: Door | None) -> None:
            given = {question: {"action": "accept", "content": {"value": value}}}
            job.answers.setdefault(question, []).append(value)
            await self._insist(job, "update", lambda door: door.update(job.task_id, given), door)

        values = [f"{self.rng.getrandbits(24):06x}" for _ in range(2)]
        if self.rng.random() < 0.3:  # two people at once; the first one wins
            await asyncio.gather(*(say(value, door) for value, door in zip(values, self.doors, strict=True)))
        else:
            await say(values[0], None)

    async def _cancel(self, job: Job, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self._insist(job, "cancel", lambda door: door.cancel(job.task_id))
        job.cancel_acknowledged = time.time()

    async def _insist(
        self, job: Job, method: str, request: Callable[[Door], Awaitable[T]], first: Door | None = None
    ) -> T:
        """The request's answer; asked through one door after the other until there is one."""
        door, pause = first or self.rng.choice(self.doors), 0.5
        while True:
            try:
                answer = await request(door)
            except Unanswered as exc:
                self.unanswered += 1
                job.resubmitted += method == "call"
                self._tell(job, door, method, "unknown", str(exc))
            except Refused as exc:
                self._tell(job, door, method, "refused", str(exc))
                raise
            else:
                if method != "get":
                    self._tell(job, door, method, "accepted", job.task_id)
                return answer
            await asyncio.sleep(pause * self.rng.uniform(0.5, 1.0))
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)
            door = self.rng.choice(self.doors)

    def _tell(self, job: Job, door: Door, method: str, outcome: str, detail: str) -> None:
        if method == "get" and outcome == "unknown":
            return
        self.ledger.add("calls", job.key, time.time(), door.name, method, outcome, detail)
