"""50,000 tracked tasks at ten-minute intervals on one worker: `python -m benchmarks.tracking` (`make bench-tracker`).

The tasks are copies of one that was submitted, due spread evenly over their interval, as they are once a fleet has run
for a while. A Celery worker (solo) polls them over real HTTP at a stub server in a process of its own. Printed: how
late polls were (by the store's clock: from when a task was due until it was claimed), the store's round trips per poll,
CPU, connections, and the worker's memory after a minute and at the end. Exit 1 over a bound.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import psutil
import redis
import typer

from benchmarks.services import ROOT
from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.cli.worker import worker_argv
from mcptasks.model import new_task_id
from mcptasks.settings import Settings
from mcptasks.tracker.limits import judged
from mcptasks.tracker.model import Intent
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.remote import RemoteStatus, Snapshot
from mcptasks.tracker.store.store import TrackStore

OUT: Final = ROOT / "benchmarks" / "out"
INTERVAL_MS: Final = 600_000
#: The first task is due so long after the store was filled: the worker is up by then, and nothing is late from before.
LEAD_MS: Final = 40_000
#: The bounds of issue and docs.
LAG_P99_MS: Final = 10_000
ROUND_TRIPS: Final = 4.0
#: Growth of the worker's memory from its first minute to the end: what polls leave behind shows within minutes.
GROWTH_MB: Final = 20.0
#: Open files of the worker, connections among them: at most 16 to the server, 32 to the store, and some 25 of Python
#: and Celery. They are opened as they are needed, so their number grows until then, and no further.
FILES: Final = 90


def main(
    tasks: Annotated[int, typer.Option(help="How many are tracked.")] = 50_000,
    minutes: Annotated[float, typer.Option(help="How long it is measured.")] = 5.0,
) -> None:
    """Measure, print, write benchmarks/out/tracking.json; exit 1 over a bound."""
    found = measure(tasks, minutes)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "tracking.json").write_text(json.dumps(found, indent=2))
    for name, value in found.items():
        print(f"{name:28} {value}")
    bad = [
        what
        for what, over in (
            ("due lag p99", found["lag_p99_ms"] > LAG_P99_MS),
            ("round trips per poll", found["round_trips_per_poll"] > ROUND_TRIPS),
            ("memory", found["worker_growth_mb"] > GROWTH_MB),
            ("open files", found["worker_files"] > FILES),
        )
        if over
    ]
    if bad:
        print(f"over the bound: {', '.join(bad)}")
        sys.exit(1)


def measure(tasks: int, minutes: float) -> dict[str, Any]:
    """What the run came to."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        valkey = stack.enter_context(EmbeddedValkey(folder / "valkey"))
        raw: Any = stack.enter_context(redis.Redis.from_url(valkey.url, decode_responses=True))
        url = _stub(stack)
        settings = Settings(redis_url=valkey.url, prefix="bench:")
        asyncio.run(_fill(settings, tasks))
        filled = time.monotonic()
        log = folder / "worker.log"
        worker = _worker(stack, settings, url, folder, log)
        _await(log, r"ready\.")
        if (left := filled + LEAD_MS / 1_000 - time.monotonic()) <= 0:
            raise RuntimeError("the worker was not up before the first task was due")
        time.sleep(left)
        trips, polls = _trips(raw), _polls(raw, settings)
        cpu = _cpu_s(worker)
        began, early_mb, early_files, worst = time.monotonic(), 0.0, 0, 0
        while time.monotonic() - began < minutes * 60:
            time.sleep(1)
            worst = max(worst, _overdue_ms(raw, settings))
            if not early_mb and time.monotonic() - began > min(60, minutes * 15):
                early_mb, early_files = _mb(worker), worker.num_fds()
        took = time.monotonic() - began
        trips, polls = _trips(raw) - trips, _polls(raw, settings) - polls
        cpu = _cpu_s(worker) - cpu
        late_mb, late_files = _mb(worker), worker.num_fds()
        worker.terminate()
        worker.wait(60)
        lags = re.search(r"last (\d+) polls, due lag p50 (\d+) ms, p99 (\d+) ms", log.read_text())
        assert lags, log.read_text()[-2_000:]
        return {
            "tasks": tasks,
            "interval_ms": INTERVAL_MS,
            "minutes": round(took / 60, 1),
            "polls": polls,
            "polls_per_s": round(polls / took, 1),
            "lag_p50_ms": int(lags[2]),
            "lag_p99_ms": int(lags[3]),
            "longest_overdue_ms": worst,
            "round_trips_per_poll": round(trips / max(polls, 1), 2),
            "worker_cpu_ms_per_poll": round(cpu * 1_000 / max(polls, 1), 2),
            "worker_cpu_share": round(cpu / took, 2),
            # Of whatever else runs here: with more than the cores, the share above is all the worker got.
            "machine_load": round(os.getloadavg()[1], 1),
            "worker_mb": round(late_mb, 1),
            "worker_growth_mb": round(late_mb - early_mb, 1),
            "worker_files": late_files,
            "worker_files_growth": late_files - early_files,
            "store_mb": round(int(raw.info("memory")["used_memory"]) / 1e6, 1),
        }


def _stub(stack: ExitStack) -> str:
    argv = [sys.executable, "-m", "benchmarks.tracking_stub"]
    process = stack.enter_context(subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True))
    stack.callback(process.kill)
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _worker(stack: ExitStack, settings: Settings, url: str, folder: Path, log: Path) -> psutil.Process:
    servers = folder / "servers.json"
    ours = {"driver": "tasks", "honours_key": True, "max_concurrency": 16}
    servers.write_text(json.dumps({"mcpServers": {"stub": {"url": url, "mcptasks": ours}}}))
    env = {
        **os.environ,
        "MCPTASKS_REDIS_URL": settings.redis_url,
        "MCPTASKS_PREFIX": settings.prefix,
        "MCPTASKS_TRACK_SERVERS": str(servers),
    }
    argv = worker_argv("benchmarks.tracking_app:celery", pool="solo", concurrency=1, name="bench", log_level="INFO")
    out = stack.enter_context(log.open("wb"))
    process = stack.enter_context(subprocess.Popen(argv, cwd=ROOT, env=env, stdout=out, stderr=out))
    stack.callback(process.kill)
    return psutil.Process(process.pid)


async def _fill(settings: Settings, tasks: int) -> None:
    """One task is submitted in the tracker's own way, and the others are copies of it under ids of their own."""
    async with _store(settings.model_copy(update={"store_timeout_ms": 60_000})) as store:
        seen = judged(Snapshot(status=RemoteStatus.WORKING, hint=INTERVAL_MS), result_max=1_000)
        task_id = new_task_id()
        intent = Intent(task_id=task_id, server="stub", tool="export", arguments={}, key=task_id)
        await store.intend(intent, "bench")
        await store.track(task_id, "stub", "remote-0", seen)
        async with store.connection.turn() as client:
            for start in range(0, tasks, _COPIES):
                count = min(_COPIES, tasks - start)
                # From now on, evenly over the interval.
                await client.eval(
                    _COPY,
                    3,
                    store.keys.task(task_id),
                    store.keys.due,
                    store.keys.ids,
                    start,
                    count,
                    INTERVAL_MS / tasks,
                    LEAD_MS,
                )
            await client.zrem(store.keys.due, task_id)


#: Copies that one script makes.
_COPIES: Final = 1_000
_COPY: Final = """
local record, clock = redis.call('HGETALL', KEYS[1]), redis.call('TIME')
local now = clock[1] * 1000 + ARGV[4]
local prefix = string.match(KEYS[1], '^(.*)task:')
local gone = redis.call('HGET', KEYS[1], 'gone')
for n = ARGV[1] + 0, ARGV[1] + ARGV[2] - 1 do
  local id = string.format('bench%027d', n)
  local task = prefix .. 'task:{' .. id .. '}'
  redis.call('HSET', task, unpack(record))
  redis.call('HSET', task, 'id', id, 'handle', 'remote-' .. n)
  redis.call('PEXPIREAT', task, gone)
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + n * ARGV[3]), id)
  redis.call('ZADD', KEYS[3], 0, id .. ' ' .. redis.call('HGET', task, 'owner_digest') .. ' stub')
end
return 'OK'
"""


@asynccontextmanager
async def _store(settings: Settings) -> AsyncGenerator[TrackStore]:
    store = TrackStore(settings, TrackOptions())
    try:
        yield store
    finally:
        await store.aclose()


def _await(log: Path, pattern: str) -> None:
    deadline = time.monotonic() + 120
    while not re.search(pattern, log.read_text(errors="replace")):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the worker does not start:\n{log.read_text()[-2_000:]}")
        time.sleep(0.1)


def _trips(raw: Any) -> int:
    """Scripts that were called: every transition of the tracker is one, and Celery's own commands are none."""
    return int(raw.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


def _polls(raw: Any, settings: Settings) -> int:
    """How many polls were recorded: each has moved its task ten minutes on."""
    return sum(int(count) for count in _poll_counts(raw, settings))


def _poll_counts(raw: Any, settings: Settings) -> list[str]:
    prefix = f"{settings.prefix}track:"
    task_ids = raw.zrange(f"{prefix}due", 0, -1)
    with raw.pipeline(transaction=False) as pipe:
        for task_id in task_ids:
            pipe.hget(f"{prefix}task:{{{task_id}}}", "polls")
        return pipe.execute()


def _overdue_ms(raw: Any, settings: Settings) -> int:
    """How late the most overdue task is that nobody has claimed."""
    first = raw.zrange(f"{settings.prefix}track:due", 0, 0, withscores=True)
    seconds, micros = raw.time()
    return max(0, int(seconds * 1000 + micros / 1000 - first[0][1])) if first else 0


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _mb(process: psutil.Process) -> float:
    return process.memory_info().rss / 1e6


if __name__ == "__main__":
    typer.run(main)
