"""How soon a waiting client hears of its task's end: `python -m benchmarks.push` (`make bench-push`).

Two servers and a worker on one store. One server makes each task, our own client waits for it on the other, once told
by push and once polling alone, with a `pollIntervalMs` of 5 s. Measured from the worker's write (the ended task's
`lastUpdatedAt`, by the store's clock, which is this machine's) until the client's wait returns.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from mcp.client import Client
from rich.console import Console
from rich.table import Table

from benchmarks.services import ROOT, running
from benchmarks.systems import MCPTASKS, SLOTS, TARGET, our_server, store_info, valkey
from mcptasks.client import TasksClient
from mcptasks.wire import DetailedTask

OUT: Final = ROOT / "benchmarks" / "out"

POLL_MS: Final = 5_000
NAP_S: Final = 0.5
GOAL_MS: Final = 60.0


@dataclass
class Waits:
    """What the waits of one kind took."""

    kind: str
    at_once: int
    ms: list[float] = field(default_factory=list[float])
    #: Requests about tasks, besides those that made them.
    asked: int = 0

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        ordered = sorted(self.ms)
        return {
            "kind": self.kind,
            "at_once": self.at_once,
            "tasks": len(ordered),
            "median_ms": round(statistics.median(ordered), 1),
            "p99_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 1),
            "max_ms": round(ordered[-1], 1),
            "gets_per_task": round(self.asked / len(ordered), 2),
        }


def main(
    tasks: Annotated[
        int, typer.Option(min=2, help="Tasks one after the other; eight times as many side by side.")
    ] = 40,
    at_once: Annotated[int, typer.Option(min=2, max=SLOTS, help="Tasks side by side.")] = SLOTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON document instead of a table.")] = False,
) -> None:
    """Measure how soon a client hears of its task's end; exit 1 if push takes over 60 ms (median of single tasks)."""
    for name in [name for name in os.environ if name.startswith("MCPTASKS_")]:
        del os.environ[name]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit runs the context managers that stop the servers
    started, load = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"), os.getloadavg()
    logs = OUT / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    version, measured = _measure(tasks, at_once, logs)
    rows = [waits.document() for waits in measured]
    met = rows[0]["median_ms"] <= GOAL_MS
    run = {
        "started": started,
        "load": list(load),
        "cores": os.cpu_count(),
        "valkey": version,
        "poll_ms": POLL_MS,
        "nap_s": NAP_S,
        "waits": rows,
        "goal": {"median_ms": GOAL_MS, "met": met},
    }
    text = json.dumps(run, indent=2) + "\n"
    (OUT / "push.json").write_text(text)
    if as_json:
        print(text, end="")
    else:
        Console().print(_table(rows))
        Console(stderr=True).print(f"Written to {OUT / 'push.json'}", soft_wrap=True)
    if not met:
        raise typer.Exit(1)


def _measure(count: int, at_once: int, logs: Path) -> tuple[str, list[Waits]]:
    with ExitStack() as stack:
        store = stack.enter_context(valkey())
        env = {"MCPTASKS_REDIS_URL": f"{store}/1", "MCPTASKS_PREFIX": "bench:", "MCPTASKS_POLL_MS": str(POLL_MS)}
        work = [*MCPTASKS, "worker", TARGET, "--pool", "threads", "--concurrency", str(SLOTS), "--log-level", "WARNING"]
        _, maker = stack.enter_context(our_server(env, logs, "making server"))
        _, teller = stack.enter_context(our_server(env, logs, "telling server"))
        stack.enter_context(running("our worker", work, env, logs))
        return str(store_info(store)["valkey_version"]), asyncio.run(_all(maker, teller, count, at_once))


async def _all(maker: int, teller: int, count: int, at_once: int) -> list[Waits]:
    measured = [Waits("push", 1), Waits("poll", 1), Waits("push", at_once), Waits("poll", at_once)]
    async with _clients(maker, teller) as (make, told, asks):
        for client in (told, asks):
            await _wait(make, client, Waits("warm-up", 1))
        for waits in measured:
            client = told if waits.kind == "push" else asks
            todo = count if waits.at_once == 1 else 8 * count
            left = iter(range(todo))

            async def one_after_the_other(client: Client = client, waits: Waits = waits, left: Any = left) -> None:
                for _ in left:
                    await _wait(make, client, waits)

            await asyncio.gather(*(one_after_the_other() for _ in range(waits.at_once)))
    return measured


@asynccontextmanager
async def _clients(maker: int, teller: int) -> AsyncGenerator[tuple[Client, Client, Client]]:
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(
                Client(f"http://127.0.0.1:{port}/mcp", extensions=[TasksClient(listen=listen)])
            )
            for port, listen in ((maker, False), (teller, True), (teller, False))
        ]
        yield opened[0], opened[1], opened[2]


async def _wait(make: Client, client: Client, waits: Waits) -> None:
    made = await TasksClient.start(make, "nap", {"seconds": NAP_S})
    handle = TasksClient.attach(client, made.task_id)
    get = handle.get

    async def counted() -> DetailedTask:
        waits.asked += 1
        return await get()

    handle.get = counted  # every request of a wait goes through it
    task = await handle.wait(60)
    seen_ms = time.time() * 1000
    if task.status != "completed":
        raise RuntimeError(f"the task is {task.status}: {task.error}")
    waits.ms.append(seen_ms - datetime.fromisoformat(task.last_updated_at).timestamp() * 1000)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"From the worker's write to the client, ms ({NAP_S:g} s tool, pollIntervalMs {POLL_MS})")
    for name in ("", "at once", "tasks", "median", "p99", "max", "tasks/get per task"):
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        table.add_row(
            *(row["kind"], str(row["at_once"]), str(row["tasks"])),
            *(f"{row[name]:.1f}" for name in ("median_ms", "p99_ms", "max_ms")),
            f"{row['gets_per_task']:.2f}",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
