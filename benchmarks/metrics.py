"""What counting costs: `python -m benchmarks.metrics` (`make bench-metrics`).

One process and one Valkey; the store's own methods with metrics off, on, and on as in a prefork child, which keeps its
numbers in files, in rounds that take turns. Each round is the life of a task without its tool: create, claim, step,
finish, read. A call's share is the process's CPU, which other work on the machine disturbs less than the clock. Then
what a scrape costs the store beside many unfinished tasks: its own time in scripts, for the tally that a scrape makes
and for the exact count, in turns.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.services import ROOT
from benchmarks.systems import valkey
from mcptasks.model import Claim, Hint, Reason, Status, Submission, new_task_id
from mcptasks.observe import metrics_port
from mcptasks.policy import Policy
from mcptasks.settings import Settings
from mcptasks.store import scripts
from mcptasks.store.store import TaskStore

OUT: Final = ROOT / "benchmarks" / "out"
#: Rounds at the beginning that do not count.
_WARM: Final = 20
#: Tasks that a scrape looks at.
_UNFINISHED: Final = 10_000
#: What a scraper may be given; nobody scrapes here.
_PORTS: Final = "19400-19499"

Observer = Callable[[scripts.Ran], None]


def counting(settings: Settings, stack: ExitStack, *, forks: bool) -> Observer:
    """What a process with a metrics port has hear of its calls; it does not hear of them yet."""
    port = metrics_port.serve(settings, forks=forks)
    assert port is not None, f"no port of {_PORTS} is free"

    def close() -> None:
        scripts.observers.append(observer)
        port.close()

    observer = scripts.observers.pop()
    stack.callback(close)
    return observer


async def live(store: TaskStore) -> None:
    """One task was made and has ended: five calls."""
    task_id = new_task_id()
    call = Submission(tool="bench", arguments={"text": "x" * 100}, protocol_version="2026-07-28", meta={})
    await store.create(task_id, call, owner="", policy=Policy())
    claim = await store.claim(Hint(task_id=task_id, run=1), "w")
    assert isinstance(claim, Claim)
    await store.step(claim, "one#1", json.dumps({"at": "0.1", "result": "x" * 100}))
    result = json.dumps({"content": [{"type": "text", "text": "done"}], "isError": False})
    assert await store.finish(claim, Status.COMPLETED, Reason.COMPLETED, payload=result) == "FINISHED"
    await store.read(task_id, "")


async def measure(url: str, rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """By way: milliseconds of CPU and of the clock that each life took."""
    settings = Settings(redis_url=url, prefix="measured:", metrics_port=_PORTS)
    store = TaskStore(settings)
    with ExitStack() as stack:
        ways: dict[str, list[Observer]] = {
            "off": [],
            "on": [counting(settings, stack, forks=False)],
            "on, prefork": [counting(settings, stack, forks=True)],
        }
        took: dict[str, tuple[list[float], list[float]]] = {way: ([], []) for way in ways}
        names = list(ways)
        for number in range(-_WARM, rounds):
            # Nobody is always the first, or always behind the same one.
            for way in names[number % 3 :] + names[: number % 3]:
                scripts.observers[:] = ways[way]
                cpu, clock = time.process_time(), time.perf_counter()
                await live(store)
                spent = (time.process_time() - cpu) * 1000, (time.perf_counter() - clock) * 1000
                if number >= 0:
                    for kept, ms in zip(took[way], spent, strict=True):
                        kept.append(ms)
        scripts.observers.clear()
    await store.aclose()
    return took


async def scrape(url: str, tasks: int) -> dict[str, float]:
    """By way: milliseconds of the store's time, the median of nine."""
    store = TaskStore(Settings(redis_url=url, prefix="scraped:"))
    call = Submission(tool="bench", arguments={}, protocol_version="2026-07-28", meta={})
    for _ in range(tasks):
        await store.create(new_task_id(), call, owner="", policy=Policy())
    ways: dict[str, Callable[[], Awaitable[object]]] = {"tally": store.tally, "count": lambda: store.count(None)}
    took: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(9):
        for way, look in ways.items():
            await store.connection.client.config_resetstat()
            await look()
            stats = await store.connection.client.info("commandstats")
            took[way].append(stats["cmdstat_evalsha"]["usec"] / 1000)
    await store.aclose()
    return {way: round(statistics.median(values), 1) for way, values in took.items()}


def main(rounds: Annotated[int, typer.Option(min=1, help="Tasks of each way.")] = 2_000) -> None:
    """Measure, print a table, write out/metrics.json."""
    logging.disable()
    with valkey() as url:
        took = asyncio.run(measure(url, rounds))
        scraped = asyncio.run(scrape(url, _UNFINISHED))
    medians = {way: [round(statistics.median(values), 4) for values in pair] for way, pair in took.items()}
    table = Table("metrics", "CPU ms per task", "ratio", "clock ms per task", "ratio")
    for way, (cpu, clock) in medians.items():
        ratios = cpu / medians["off"][0], clock / medians["off"][1]
        table.add_row(way, f"{cpu:.3f}", f"{ratios[0]:.3f}", f"{clock:.3f}", f"{ratios[1]:.3f}")
    Console().print(table)
    beside = ", ".join(f"{way} {ms} ms" for way, ms in scraped.items())
    Console().print(f"The store's time for a look at {_UNFINISHED:,} unfinished tasks: {beside}")
    OUT.mkdir(exist_ok=True)
    rows = {way: {"cpu_ms": cpu, "ms": clock} for way, (cpu, clock) in medians.items()}
    (OUT / "metrics.json").write_text(
        json.dumps({"rounds": rounds, "medians": rows, "scrape_ms": scraped}, indent=2) + "\n"
    )


if __name__ == "__main__":
    typer.run(main)
