"""What a record costs: bytes of Redis per task, and the time of calls beside a million ended tasks and beside few.

`python -m benchmarks.record [COUNT]` fills a Valkey of its own with COUNT ended tasks (default 1,000,000), by the very
scripts of the store, pipelined (half an hour), and calls it in turns with another that has 1,000. Exit 1 over a bound.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.model import Claim, Hint, Journal, Question, Reason, Record, Status, Submission, new_task_id
from mcptasks.policy import Policy
from mcptasks.settings import Settings
from mcptasks.store.scripts import SCRIPTS
from mcptasks.store.store import TaskStore

COUNT: Final = 1_000_000
SMALL: Final = 1_000
#: Tasks over which the bytes of one are measured.
SAMPLE: Final = 10_000
BATCH: Final = 500
PROBES: Final = 1_000
SLOWER_MAX: Final = 1.3
ENDED_MAX, PARKED_MAX = 1_536, 3_072

OWNER: Final = '["client-7f3a","https://issuer.example/","user-1234"]'
RESULT: Final = (
    '{"content":[{"type":"text","text":"The report on otters is ready: 12 pages, 3 tables"}],'
    '"structuredContent":{"result":"The report on otters is ready: 12 pages, 3 tables"},"isError":false}'
)
CALL: Final = Submission(tool="build_report", arguments={"topic": "otters"}, protocol_version="2026-07-28")
QUESTION: Final = Question(
    key="a1b2c3#1",
    method="elicitation/create",
    params={
        "mode": "form",
        "message": "Publish the report?",
        "requestedSchema": {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]},
    },
)


class Filler(TaskStore):
    """Sends the scripts of many tasks at once; believes that each did what it must, until `flush` looks."""

    _BELIEVED: Final[dict[str, list[Any]]] = {
        "create": ["CREATED", "1"],
        "claim": ["TERMINAL", "not looked at"],
        "finish": ["FINISHED"],
        "ask": ["HELD"],
    }
    _DONE: Final = frozenset({"CREATED", "CLAIMED", "FINISHED", "PARKED"})

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = []

    async def run_script(self, name: str, keys: dict[str, Any], args: dict[str, Any]) -> list[Any]:
        """It is noted."""
        self._calls.append((name, keys, args))
        return self._BELIEVED[name]

    async def flush(self) -> None:
        """Everything that was noted has happened."""
        client: Any = self.connection.client
        calls, self._calls = self._calls, []
        digests = {name: await client.script_load(SCRIPTS[name].source) for name in {call[0] for call in calls}}
        async with client.pipeline(transaction=False) as pipe:
            for name, keys, args in calls:
                positional_keys, positional_args = SCRIPTS[name].bind(keys, args)
                pipe.evalsha(digests[name], len(positional_keys), *positional_keys, *positional_args)
            words = {reply[0] for reply in await pipe.execute()}
        assert words <= self._DONE, words

    async def ended(self) -> None:
        """A task that a worker has done."""
        claim = await self._begun()
        await self.finish(claim, Status.COMPLETED, Reason.COMPLETED, payload=RESULT)

    async def parked(self) -> None:
        """A task that asks its person something."""
        await self.ask(await self._begun(), [(QUESTION, "d1g35t 0.1")], guard=None, hold=False)

    async def _begun(self) -> Claim:
        task_id = new_task_id()
        await self.create(task_id, CALL, owner=OWNER, policy=Policy())
        await self.claim(Hint(task_id=task_id, run=1), "celery@host-12")
        times: dict[str, Any] = {"created_ms": 0, "updated_ms": 0, "ttl_ms": None, "poll_ms": 0, "revision": 0}
        record = Record(
            task_id=task_id, tool=CALL.tool, owner=OWNER, status=Status.RUNNING, token=1, attempt=1, **times
        )
        return Claim(record=record, submission=CALL, journal=Journal(), progress=None, at_ms=0)


async def fill(filler: Filler, make: Callable[[], Awaitable[None]], count: int) -> float:
    """So many more tasks are there. Returns the bytes of Redis that one took."""
    client: Any = filler.connection.client
    before = (await client.info("memory"))["used_memory"]
    for start in range(0, count, BATCH):
        for _ in range(min(BATCH, count - start)):
            await make()
        await filler.flush()
    return ((await client.info("memory"))["used_memory"] - before) / max(count, 1)


async def calls_of(store: TaskStore) -> dict[str, Callable[[], Awaitable[object]]]:
    """What callers do, by name."""
    task_id = (await store.page(OWNER, limit=1)).tasks[0].task_id
    return {
        "create": lambda: store.create(new_task_id(), CALL, owner=OWNER, policy=Policy()),
        "get": lambda: store.read(task_id, OWNER),
        "list mine": lambda: store.page(OWNER, limit=50, statuses=[Status.COMPLETED]),
    }


async def medians_us(*works: Callable[[], Awaitable[object]]) -> list[float]:
    """Of many calls of each, in turns, in microseconds."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(PROBES):
        for work, took in zip(works, times, strict=True):
            began = time.perf_counter()
            await work()
            took.append(time.perf_counter() - began)
    return [statistics.median(took) * 1e6 for took in times]


async def measured(url: str, small_url: str, count: int) -> bool:
    """It is printed; True: within all bounds."""
    large, small = (Filler(Settings(redis_url=each)) for each in (url, small_url))
    for filler in (large, small):
        client: Any = filler.connection.client
        await client.config_set("appendonly", "no")
    await fill(small, small.ended, SMALL)
    ended = await fill(large, large.ended, min(SAMPLE, count))
    parked = await fill(large, large.parked, min(SAMPLE, count))
    began = time.monotonic()
    await fill(large, large.ended, max(count - SAMPLE, 0))
    print(f"{count:,} ended tasks, filled in {time.monotonic() - began:.0f} s")
    stores = [TaskStore(filler.settings) for filler in (small, large)]
    few, many = [await calls_of(store) for store in stores]
    slowest = 0.0
    for name in few:
        await medians_us(few[name], many[name])  # everything is warm
        few_us, many_us = await medians_us(few[name], many[name])
        slowest = max(slowest, many_us / few_us)
        print(f"{name:10} {few_us:6.0f} us with {SMALL:,}, {many_us:6.0f} us with all: x {many_us / few_us:.2f}")
    print(f"bytes: {ended:,.0f} per ended small task, {parked:,.0f} per parked one")
    for each in (large, small, *stores):
        await each.aclose()
    return slowest <= SLOWER_MAX and ended < ENDED_MAX and parked < PARKED_MAX


def main() -> int:
    """The exit code."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedValkey(Path(folder, "large")) as large,
        EmbeddedValkey(Path(folder, "small")) as small,
    ):
        return 0 if asyncio.run(measured(large.url, small.url, count)) else 1


if __name__ == "__main__":
    sys.exit(main())
