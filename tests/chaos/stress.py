"""`python -m tests.chaos.stress`: many processes race every pair of transitions on the same tasks. Exit 1: a violation.

What is judged is exact: some order of the writers explains every answer and every stored field (`stress_races`), and
creations that race for a key, a place or a closing door come to exact counts (`stress_doors`). Timings are described,
never judged: a busy machine is not a fault.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.policy import Policy
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.chaos import stress_doors, stress_races
from tests.chaos.stress_doors import SCRAMBLES, Scramble
from tests.chaos.stress_races import Race, every_race
from tests.chaos.stress_writers import ABREAST, Done, Order, Writers
from tests.support.life import Life
from tests.support.moves import Move
from tests.support.scenes import SCENES
from tests.support.sight import WORK, look
from tests.support.twin import Twin

#: Tasks that one batch of races is about; the writers begin each batch together.
BATCH: Final = 64
#: More than there are races.
ROUNDS: Final = 24_000
#: Scrambles of each kind.
DOORS: Final = 50
#: Violations that are told in full.
TOLD: Final = 20

#: Every distance is longer than the workload: only moved deadlines pass. A slow answer on a busy machine is no fault.
DISTANCES: Final[dict[str, Any]] = {
    "deferrals_ms": (400_000,),
    "lease_ms": 3_600_000,
    "resend_ms": 7_200_000,
    "countdowns_ms": (3_600_000, 7_200_000),
    "countdown_budget": 1_000_000,
    "questions_max": 5,
    "artifacts_max": 3,
    "store_timeout_ms": 60_000,
}
POLICY: Final = Policy(ttl_ms=86_400_000, max_attempts=2, time_limit_ms=20_000_000, retry_ms=(3_600_000,))


@dataclass
class Findings:
    """What came of it."""

    rounds: int = 0
    operations: int = 0
    scrambles: int = 0
    #: Who must have come first, as far as it can be told.
    first: Counter[str] = field(default_factory=Counter[str])
    #: "word of transition" -> how often.
    words: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter[str]))
    took_ms: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list[float]))
    violations: list[str] = field(default_factory=list[str])
    #: Tasks that must still be active.
    active: set[str] = field(default_factory=set[str])


class Stress:
    """The workload on one store."""

    def __init__(self, settings: Settings, writers: Writers, count: int, chance: random.Random) -> None:
        self.settings, self.writers, self.count, self.chance = settings, writers, count, chance
        self.store = TaskStore(settings)
        self.found = Findings()

    async def races(self, batch: Sequence[Race]) -> None:
        """One round of each race, all under way together."""
        places = asyncio.Semaphore(ABREAST)
        tasks = await asyncio.gather(*(self._prepared(race.scene, places) for race in batch))
        moves = [race.moves(life, self.count) for race, (_, life) in zip(batch, tasks, strict=True)]
        began = await self.store.now_ms()
        columns = [
            [Order(task_id, each[n]) for (task_id, _), each in zip(tasks, moves, strict=True)]
            for n in range(self.count)
        ]
        done = await asyncio.to_thread(self.writers.race, columns)
        for place, (race, (task_id, life)) in enumerate(zip(batch, tasks, strict=True)):
            await self._judge(race, task_id, life, moves[place], [column[place] for column in done], began)

    async def _prepared(self, scene: str, places: asyncio.Semaphore) -> tuple[str, Life]:
        async with places:
            twin = await Twin.create(self.store, POLICY, SCENES[scene])
        return twin.task_id, twin.life

    async def _judge(
        self, race: Race, task_id: str, life: Life, moves: Sequence[Move], done: Sequence[Done], began: float
    ) -> None:
        found, answers = self.found, [each.answer for each in done]
        sight = await look(self.store, task_id)
        verdict = stress_races.judge(life, moves, answers, began, sight)
        found.rounds += 1
        found.operations += len(moves)
        for n, each in enumerate(done):
            name = race.left if n % 2 == 0 else race.right
            found.words[name][str(each.answer[0])] += 1
            found.took_ms[name].append(each.took_ms)
        sides = {n % 2 for n in verdict.firsts}
        found.first["either" if len(sides) == 2 else "left" if sides == {0} else "right" if sides else "nobody"] += 1
        if not verdict.firsts:
            found.violations.append(f"{race}: answers {answers}: {'; or '.join(verdict.why)}")
        if sight.task["status"] not in ("completed", "failed", "cancelled"):
            found.active.add(task_id)

    async def scrambles(self, batch: Sequence[Scramble]) -> None:
        """Each scramble once, all under way together."""
        stores = [TaskStore(self.settings.model_copy(update=each.changed)) for each in batch]
        try:
            for each, store in zip(batch, stores, strict=True):
                for order in each.before:
                    await order.deed.do(store, order.task_id)
            columns = [[each.orders[n] for each in batch] for n in range(self.count)]
            done = await asyncio.to_thread(self.writers.race, columns)
            for place, (each, store) in enumerate(zip(batch, stores, strict=True)):
                answers = [column[place].answer for column in done]
                problems = await stress_doors.judge(each, answers, store)
                self.found.violations += [f"{each.name}: {problem}" for problem in problems]
                self.found.scrambles += 1
                self.found.words[each.name].update(str(answer[0]) for answer in answers)
                if "prefix" not in each.changed:
                    inside = {str(answer[1]) for answer in answers if answer[0] == "CREATED"}
                    self.found.active |= inside | {order.task_id for order in each.before}
                    self.found.active -= {o.task_id for o in each.orders if isinstance(o.deed, stress_doors.End)}
                else:
                    await store.open_admission()
        finally:
            for store in stores:
                await store.aclose()

    async def audit(self) -> None:
        """After everything: the fleet's own indexes have exactly the tasks that they must have, and all will die."""
        client: Any = self.store.connection.client
        active = set(await self.store.active())
        if active != self.found.active:
            lost, extra = len(self.found.active - active), len(active - self.found.active)
            self.found.violations.append(f"active: {lost} unfinished tasks are missing, {extra} do not belong there")
        for index in WORK:
            members = set(await client.zrange(getattr(self.store.keys, index), 0, -1))
            if strangers := members - self.found.active:
                self.found.violations.append(f"{index}: {len(strangers)} ended tasks stand in it")
        for_ever = [key async for key in client.scan_iter(count=1000) if await client.pttl(key) == -1]
        if for_ever:
            self.found.violations.append(f"{len(for_ever)} keys have no expiry, as {for_ever[0]}")


async def stress(settings: Settings, rounds: int, count: int, seed: int) -> Findings:
    """So many rounds of races in random order, none a second time before all were run once, and every scramble."""
    chance = random.Random(seed)
    with Writers(settings, count) as writers:
        one = Stress(settings, writers, count, chance)
        plan: list[Race] = []
        while len(plan) < rounds:
            races = [*every_race()]
            chance.shuffle(races)
            plan += races
        for start in range(0, rounds, BATCH):
            await one.races(plan[start : min(start + BATCH, rounds)])
        for make in SCRAMBLES:
            await one.scrambles([make(count) for _ in range(DOORS)])
        await one.audit()
        await one.store.aclose()
    return one.found


def document(found: Findings, seed: int, writers: int, seconds: float) -> dict[str, Any]:
    """The findings as JSON."""
    return {
        "workload": "stress",
        "seed": seed,
        "writers": writers,
        "races": sum(1 for _ in every_race()),
        "rounds": found.rounds,
        "operations": found.operations,
        "scrambles": found.scrambles,
        "first": dict(found.first),
        "violations": found.violations,
        "answers": {name: dict(words.most_common()) for name, words in sorted(found.words.items())},
        "described": {
            "seconds": round(seconds, 1),
            "operations_per_second": round(found.operations / seconds),
            "answer_ms": {
                name: {"median": round(statistics.median(times), 2), "max": round(max(times), 2)}
                for name, times in sorted(found.took_ms.items())
            },
        },
    }


def table(run: dict[str, Any]) -> Table:
    """The same for people."""
    grid = Table(title=f"{run['rounds']} rounds, {run['operations']} operations, {run['writers']} writers")
    for name, side in (("transition", "left"), ("answers", "left"), ("median ms", "right"), ("max ms", "right")):
        grid.add_column(name, justify=side)  # pyright: ignore[reportArgumentType]
    for name, words in run["answers"].items():
        took = run["described"]["answer_ms"].get(name, {"median": "", "max": ""})
        text = ", ".join(f"{word} {count}" for word, count in words.items())
        grid.add_row(name, text, str(took["median"]), str(took["max"]))
    return grid


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Of races, all together.")] = ROUNDS,
    writers: Annotated[int, typer.Option(min=2, max=6, help="Processes that write at once.")] = 4,
    seed: Annotated[int | None, typer.Option(help="Of the order of the races.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON document instead of a table.")] = False,
) -> None:
    """Race every pair of transitions on the same tasks, on a store of its own."""
    seed = time.time_ns() % 1_000_000 if seed is None else seed
    screen = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="mcptasks-stress-") as folder, EmbeddedValkey(Path(folder)) as valkey:
        settings = Settings(redis_url=valkey.url, prefix="stress:", **DISTANCES)
        started = time.monotonic()
        with screen.status(f"seed {seed}"):
            found = asyncio.run(stress(settings, rounds, writers, seed))
        run = document(found, seed, writers, time.monotonic() - started)
    if as_json:
        typer.echo(json.dumps(run, indent=2))
    else:
        Console().print(table(run))
        typer.echo(f"first: {run['first']}; {run['scrambles']} scrambles; {run['described']['seconds']} s; seed {seed}")
        for violation in found.violations[:TOLD]:
            typer.echo(f"VIOLATION {violation}")
        typer.echo(f"{len(found.violations)} violations")
    sys.exit(1 if found.violations else 0)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
