"""One run of chaos, from the empty folder to the verdict."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mcptasks.store.keys import Keys
from tests.chaos.aftermath import Aftermath
from tests.chaos.audit import Check, Evidence, checks, figures
from tests.chaos.faults import WANTED, Faults
from tests.chaos.herd import PREFIX, Herd
from tests.chaos.ledger import Ledger
from tests.chaos.load import Job, Load
from tests.chaos.overlap import overlaps, unexplained
from tests.chaos.recorder import Recorder
from tests.chaos.wire import Door, Refused, Unanswered

#: Tasks that are submitted a second, and how many may be under way at once.
RATE: Final = 3.0
MOST: Final = 60
#: What the tasks may take to end once nobody disturbs them any more.
SETTLE_S: Final = 150.0
#: The run is a proof for a full measure of faults only; a slow machine commits fewer in the same time.
_LEAST: Final = 0.5
#: After the storm each worker gets something to do.
_PROBES: Final = 12


@dataclass
class Verdict:
    """What one run came to."""

    seed: int
    minutes: float
    checks: list[Check]
    figures: dict[str, int]
    faults: dict[str, int]
    counted: dict[str, int]
    notes: list[str] = field(default_factory=list[str])

    @property
    def sound(self) -> bool:
        """Every promise was kept."""
        return not any(check.broken for check in self.checks)


class Chaos:
    """Everything of one run; `go` once."""

    def __init__(self, folder: Path, minutes: float, seed: int, tell: Callable[[str], None]) -> None:
        self.folder, self.minutes, self.seed, self.tell = folder, minutes, seed, tell
        self.rng = random.Random(seed)

    def go(self) -> Verdict:
        """The verdict. No process is left, whatever happens."""
        with Ledger(self.folder / "ledger.sqlite") as ledger, Herd(self.folder, ledger) as herd:
            return asyncio.run(self._within(ledger, herd))

    async def _within(self, ledger: Ledger, herd: Herd) -> Verdict:
        recorder = Recorder(herd.store_url, Keys(PREFIX))
        doors = [Door(member.name, url) for member, url in zip(herd.servers, herd.urls, strict=True)]
        load = Load(doors, ledger, recorder, random.Random(self.rng.random()), RATE, MOST)
        faults = Faults(herd, ledger, random.Random(self.rng.random()))
        self.tell("starting the store, two servers, three workers")
        await herd.start()
        try:
            async with asyncio.TaskGroup() as group:
                watchers = [group.create_task(herd.supervise()), group.create_task(recorder.watch())]
                verdict = await self._storm(ledger, herd, recorder, load, faults)
                for watcher in watchers:
                    watcher.cancel()
            return verdict
        finally:
            await load.stop()
            for door in doors:
                await door.aclose()

    async def _storm(self, ledger: Ledger, herd: Herd, recorder: Recorder, load: Load, faults: Faults) -> Verdict:
        await herd.until(lambda: all(member.ready for member in herd.members), "the fleet works", 180)
        began = time.monotonic()
        storm = [asyncio.create_task(load.submit()), asyncio.create_task(faults.commit())]
        while (left_s := self.minutes * 60 - (time.monotonic() - began)) > 0:
            done, _ = await asyncio.wait(storm, timeout=min(1.0, left_s), return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
            seen = ", ".join(f"{count} {name}" for name, count in faults.summary().items())
            self.tell(f"{left_s:3.0f} s left: {len(load.jobs)} submitted, {load.unfinished} open; {seen}")
        for task in storm:
            task.cancel()
        await asyncio.gather(*storm, return_exceptions=True)
        return await self._calm(ledger, herd, recorder, load, faults)

    async def _calm(self, ledger: Ledger, herd: Herd, recorder: Recorder, load: Load, faults: Faults) -> Verdict:
        self.tell("the faults have stopped; the fleet settles")
        began = time.monotonic()
        with suppress(TimeoutError):
            await herd.until(lambda: all(member.ready for member in herd.members), "the fleet works", SETTLE_S)
        for number in range(_PROBES):
            key = f"probe-{number:02}"
            load.start(Job(key, "quick", "quick", {"key": key}, twice=False, cancel_after=None))
        await load.settle(SETTLE_S)
        settled_s = time.monotonic() - began
        aftermath = Aftermath(herd)
        try:
            await aftermath.calm()
            # Twice the recorder's interval: it has seen every end.
            await asyncio.sleep(0.5)
            last = await aftermath.records()
            left = await aftermath.checks()
        finally:
            await aftermath.aclose()
        answers = {job.task_id: await self._answers(load.doors, job) for job in load.jobs if job.task_ids}
        self.tell("stopping everything in order")
        await herd.stop_in_order()
        logs = [log for member in herd.members for log in member.logs]
        evidence = Evidence(load.jobs, ledger.effects(), recorder.ends, last, answers, logs)
        found = overlaps(evidence.effects)
        notes = [
            f"unexplained overlap of {o.seconds:.1f} s: {o}"
            for o in unexplained(found, faults.frozen, faults.store_away)
        ]
        more = {
            "runs that went on beside their successor": len(found),
            "of these unexplained": len(notes),
            "requests that nobody answered": load.unanswered,
            "ends that nobody had ordered": herd.own_ends,
            "looks at records": recorder.looks,
            "seconds to settle": round(settled_s),
        }
        return Verdict(
            self.seed,
            self.minutes,
            [
                *checks(evidence),
                Check("no illegal transition was seen", recorder.looks, recorder.violations),
                *left,
                self._processes(herd),
                self._enough(faults),
            ],
            figures(evidence) | more,
            dict(faults.counts),
            faults.summary(),
            notes,
        )

    async def _answers(self, doors: list[Door], job: Job) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = []
        for door in doors:
            try:
                said.append(await door.get(job.task_id))
            except (Refused, Unanswered) as exc:
                said.append({"error": f"{door.name}: {exc}"})
        return said

    def _processes(self, herd: Herd) -> Check:
        starts = sum(len(member.logs) for member in herd.members)
        return Check("every process ended when told to, and left none behind", starts, list(herd.complaints))

    def _enough(self, faults: Faults) -> Check:
        wanted = {name: int(count * self.minutes / 5 * _LEAST) for name, count in WANTED.items()}
        broken = [
            f"{name}: {faults.summary()[name]}, at least {least} would prove something"
            for name, least in wanted.items()
            if faults.summary()[name] < least
        ]
        return Check("enough went wrong to prove something", sum(faults.counts.values()), broken)
