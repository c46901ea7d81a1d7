"""Metrics of real processes, as Prometheus scrapes them: a server, and workers of both pools."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mcptasks.client import TaskFailed
from tests.fleet.system import Fleet, Proc, answer, client, free_port, outcome, questions, start
from tests.support.waiting import eventually, wait_until

pytestmark = pytest.mark.anyio

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(url: str) -> Samples:
    """Every sample, by its name and labels."""
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    """The sum of the samples that have these labels."""
    wanted = labels.items()
    return sum(v for (one, theirs), v in samples.items() if one == f"mcptasks_{name}" and wanted <= theirs)


def address(proc: Proc) -> str:
    """Where the process serves its metrics."""
    return proc.await_output(r"Metrics are at (http://\S+/metrics)").group(1)


@pytest.fixture
def measured(tmp_path: Path) -> Generator[Fleet]:
    """A fleet that measures; its processes share a range of ports."""
    first = free_port() % 50_000 + 10_000
    with Fleet(tmp_path, MCPTASKS_METRICS_PORT=f"{first}-{first + 99}") as fleet:
        yield fleet


@pytest.mark.parametrize("pool", ["threads", "prefork"])
async def test_every_task_is_counted_once_whichever_process_ends_it(measured: Fleet, pool: str) -> None:
    """Created and cancelled at the server, run and ended by a child, or waited for by a person."""
    worker, server = measured.start_worker(pool, concurrency=2), measured.start_server()
    url = measured.ready(worker, server)
    async with client(url) as connection:
        done = [await start(connection, "ledger", key=f"k{n}") for n in range(3)]
        for handle in done:
            await outcome(handle)
        asking = [await start(connection, "ask1", key=f"a{n}", x=n) for n in range(2)]
        for handle in asking:
            await questions(handle)
        await asking[0].cancel()
        here, there = await _both(server, worker)
        assert value(here, "created_total", tool="ledger") == 3
        assert value(here, "created_total", tool="ask1") == 2
        assert value(here, "ended_total", tool="ask1", status="cancelled", reason="cancelled") == 1
        assert value(there, "ended_total", tool="ledger", status="completed", reason="completed") == 3
        assert value(there, "claims_total", tool="ledger", attempt="first") == 3
        assert value(there, "queue_wait_seconds_count", tool="ledger") == 3
        assert value(there, "duration_seconds_count", tool="ledger", status="completed") == 3
        assert value(there, "store_seconds_count", transition="finish") == 3
        assert value(there, "worker_slots") == 2
        for samples in (here, there):
            assert value(samples, "tasks", status="parked") == 1
            assert value(samples, "store_up") == value(samples, "admission_open") == value(samples, "workers") == 1
        await answer(asking[1], "yes")
        await outcome(asking[1])

        async def resumed() -> bool:
            _, there = await _both(server, worker)
            return value(there, "claims_total", tool="ask1", attempt="resumed") == 1

        await eventually(resumed, description="the answered run was counted")


@pytest.mark.parametrize(
    ("tool", "more"),
    [("ledger", {}), ("leave_slowly", {"seconds": 2.0}), ("kill_self", {"signum": int(signal.SIGKILL)})],
    ids=["in time", "slowly", "by a kill"],
)
async def test_the_end_of_a_run_in_a_process_of_its_own_is_counted_by_its_worker(
    measured: Fleet, tool: str, more: dict[str, Any]
) -> None:
    """Its last attempt, in threads. That process serves no metrics; what it ended counts, what its death ended, too.

    One that leaves slowly is found without a claim, because it has ended its task; nobody takes it for lost.
    """
    dies = tool == "kill_self"
    server = measured.start_server()
    async with client(measured.ready(server)) as connection:
        handle = await start(connection, tool, key="k", **more)
        # As if two workers had been lost.
        measured.raw.hset(measured.keys.task(handle.task_id), "attempt", "2")
        worker = measured.worker("threads", concurrency=2)
        if dies:
            with pytest.raises(TaskFailed):
                await handle.result(60)
        else:
            await outcome(handle)

        async def heard() -> bool:
            return value((await _both(server, worker))[1], "ended_total") > 0

        await eventually(heard, description="its process has gone, and the worker has read what it wrote")
        here, there = await _both(server, worker)
    assert "attempt 3 runs in a process of its own" in worker.output
    worker.await_output(rf"{tool}: {'failed' if dies else 'completed'} \(run 1, attempt 3\)")
    ended = {"status": "failed", "reason": "worker_lost"} if dies else {"status": "completed", "reason": "completed"}
    assert value(there, "ended_total", tool=tool, **ended) == 1
    assert value(there, "ended_total") + value(here, "ended_total") == 1
    assert value(there, "transitions_total", transition="finish", answer="finished") == 1
    assert value(there, "duration_seconds_count", tool=tool) == 1


async def _both(server: Proc, worker: Proc) -> tuple[Samples, Samples]:
    one, two = (address(proc) for proc in (server, worker))
    return await anyio.to_thread.run_sync(scraped, one), await anyio.to_thread.run_sync(scraped, two)


async def test_a_port_that_is_taken_stops_nobody(measured: Fleet) -> None:
    """It is told with the setting's name; the worker works."""
    first = measured.start_server()
    measured.ready(first)
    port = address(first).rpartition(":")[2].removesuffix("/metrics")
    other = measured.start_server(MCPTASKS_METRICS_PORT=port)
    measured.ready(other)
    assert "No metrics: cannot listen" in other.output and "MCPTASKS_METRICS_PORT may be a range" in other.output


async def test_a_worker_that_was_killed_leaves_its_port_to_the_next(measured: Fleet) -> None:
    """Although its forked children may live a little longer."""
    worker = measured.worker("prefork", concurrency=1)
    port = address(worker)
    os.kill(worker.pid, signal.SIGKILL)
    worker.stop()
    again = measured.worker("prefork", concurrency=1)
    assert address(again) == port
    wait_until(lambda: scraped(address(again)), description="it is served")
