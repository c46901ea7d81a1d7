"""What encryption at rest costs: `python -m benchmarks.sealing` (`make bench-sealing`).

One process and one Valkey; the store's own methods, with keys and without, in rounds that take turns. Each round is the
life of a task without its tool: create, claim, one step, finish, read. The server's and the worker's share of the time
is the process's CPU, which other work on the machine disturbs less than the clock.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, TypeVar, cast

import typer
from cryptography.fernet import Fernet
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from benchmarks.services import ROOT
from benchmarks.systems import valkey
from mcptasks.model import Claim, Hint, Reason, Status, Submission, new_task_id
from mcptasks.policy import Policy
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore

OUT: Final = ROOT / "benchmarks" / "out"
T = TypeVar("T")

#: Characters of argument, step result and result, by name.
SIZES: Final = {"small": 100, "100 KB": 100_000}
META: Final = {
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}


class Lives:
    """Lives of tasks in one store, and what they took."""

    def __init__(self, url: str, keys: tuple[SecretStr, ...]) -> None:
        self._store = TaskStore(Settings(redis_url=url, prefix="sealed:" if keys else "plain:", encryption_keys=keys))
        #: (size, transition) -> milliseconds of this process's CPU, and of the clock.
        self.cpu_ms: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.clock_ms: dict[tuple[str, str], list[float]] = defaultdict(list)
        #: Size -> bytes of Redis for an ended task's keys.
        self.stored: dict[str, int] = {}

    async def live(self, size: str) -> None:
        """One task was made and has ended."""
        store, text, task_id = self._store, "x" * SIZES[size], new_task_id()
        call = Submission(tool="bench", arguments={"text": text}, protocol_version="2026-07-28", meta=META)
        await self._timed(size, "create", lambda: store.create(task_id, call, owner="", policy=Policy()))
        claim = await self._timed(size, "claim", lambda: store.claim(Hint(task_id=task_id, run=1), "w"))
        assert isinstance(claim, Claim)
        await self._timed(size, "step", lambda: store.step(claim, "one#1", json.dumps({"at": "0.1", "result": text})))
        result = json.dumps({"content": [{"type": "text", "text": text}], "isError": False})
        ended = (claim, Status.COMPLETED, Reason.COMPLETED)
        await self._timed(size, "finish", lambda: store.finish(*ended, payload=result))
        await self._timed(size, "read", lambda: store.read(task_id, ""))
        client, keys = cast("Any", store.connection.client), store.keys
        names = (keys.task(task_id), keys.call(task_id), keys.journal(task_id))
        self.stored[size] = sum([int(await client.memory_usage(name, samples=0)) for name in names])

    async def close(self) -> None:
        """The connection is closed."""
        await self._store.aclose()

    async def _timed(self, size: str, name: str, transition: Callable[[], Awaitable[T]]) -> T:
        cpu, clock = time.process_time(), time.perf_counter()
        answer = await transition()
        self.cpu_ms[size, name].append((time.process_time() - cpu) * 1000)
        self.clock_ms[size, name].append((time.perf_counter() - clock) * 1000)
        return answer


async def measure(url: str, rounds: int) -> tuple[Lives, Lives]:
    """So many tasks of each size lived, plain and sealed by turns, after a few that do not count."""
    keys = tuple(SecretStr(Fernet.generate_key().decode()) for _ in range(2))
    both = Lives(url, ()), Lives(url, keys)
    for number in range(-5, rounds):
        for size in SIZES:
            for lives in both:
                await lives.live(size)
        if number == -1:
            for lives in both:
                lives.cpu_ms.clear()
                lives.clock_ms.clear()
    for lives in both:
        await lives.close()
    return both


def document(plain: Lives, sealed: Lives) -> list[dict[str, Any]]:
    """A row per size and transition: medians in milliseconds."""
    rows: list[dict[str, Any]] = []
    for size, name in plain.cpu_ms:
        pairs = [(one.cpu_ms[size, name], one.clock_ms[size, name]) for one in (plain, sealed)]
        (cpu, clock), (cpu_sealed, clock_sealed) = [tuple(map(statistics.median, pair)) for pair in pairs]
        row = {"cpu_ms": cpu, "cpu_ms_sealed": cpu_sealed, "ms": clock, "ms_sealed": clock_sealed}
        rows.append({"size": size, "transition": name, **{key: round(value, 3) for key, value in row.items()}})
    return rows


def main(rounds: Annotated[int, typer.Option(min=1, help="Tasks of each size and kind.")] = 300) -> None:
    """Measure, print a table, write out/sealing.json."""
    with valkey() as url:
        plain, sealed = asyncio.run(measure(url, rounds))
    rows = document(plain, sealed)
    table = Table("size", "transition", "CPU ms", "sealed", "ratio", "clock ms", "sealed")
    for row in rows:
        cpu, clock = (row["cpu_ms"], row["cpu_ms_sealed"]), (row["ms"], row["ms_sealed"])
        shown = (*cpu, cpu[1] / cpu[0], *clock)
        table.add_row(row["size"], row["transition"], *(f"{number:.2f}" for number in shown))
    console = Console()
    console.print(table)
    for size in SIZES:
        before, after = plain.stored[size], sealed.stored[size]
        console.print(f"An ended {size} task: {before:,} bytes of Redis plain, {after:,} sealed ({after / before:.2f})")
    OUT.mkdir(exist_ok=True)
    stored = {"plain": plain.stored, "sealed": sealed.stored}
    (OUT / "sealing.json").write_text(json.dumps({"transitions": rows, "bytes": stored}, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
