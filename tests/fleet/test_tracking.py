"""Tracking with real processes: workers and submitters that are killed at any moment, and no task or handle is lost."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from asyncio import StreamWriter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast

import pytest
import redis

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.cli.worker import worker_argv
from mcptasks.model import new_task_id
from mcptasks.settings import Settings
from mcptasks.tracker.model import Tracked, TrackStatus
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.tracker import Tracker
from tests.fleet.system import ROOT, Proc
from tests.requirements import covers
from tests.support.stub_faults import Seen
from tests.support.stub_server import StubServer
from tests.support.stub_steps import completed, working
from tests.support.tracker_desk import stub_desk
from tests.support.tracking import TrackPeek
from tests.support.waiting import wait_until

KILLS: Final = 30


def environment(settings: Settings, stub: StubServer, folder: Path) -> dict[str, str]:
    """What a process needs to track on this store and server; everything that waits is short."""
    ours = {"driver": "tasks", "honours_key": True, "timeout": 10, "max_concurrency": 64}
    servers = folder / "servers.json"
    servers.write_text(json.dumps({"mcpServers": {"stub": {"url": stub.url, "mcptasks": ours}}}))
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "MCPTASKS_REDIS_URL": settings.redis_url,
        "MCPTASKS_PREFIX": settings.prefix,
        "MCPTASKS_TRACK_SERVERS": str(servers),
        "MCPTASKS_TRACK_CALL_MS": "1500",
        "MCPTASKS_TRACK_LEASE_MS": "5000",
        "MCPTASKS_TRACK_INTENT_MS": "3500",
        "MCPTASKS_TRACK_LOOK_MS": "100",
        # Of the news that a killed one was just telling.
        "MCPTASKS_TRACK_DELIVERY_MS": "1000",
        "TRACKING_TOLD": str(folder / "told.jsonl"),
    }


def told(folder: Path) -> list[dict[str, Any]]:
    """What the consumer was told, oldest first."""
    file = folder / "told.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def worker(name: str, env: dict[str, str], folder: Path) -> Proc:
    """A Celery worker of the tracking app."""
    argv = worker_argv("tests.fleet.tracking_app:celery", pool="solo", concurrency=1, name=name, log_level="INFO")
    return Proc(name, argv, env=env, cwd=folder)


@covers("D2", "D6", "D09", "D7")
def test_workers_that_are_killed_lose_no_end_and_no_news(
    settings: Settings, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    """Twenty tasks, two workers, one of them killed in the midst: every end is told, under one id each."""
    with StubServer() as stub:
        stub.hint = 1_000
        stub.script = lambda tool, arguments: [working(), working(), working(), completed(f"result {arguments['n']}")]
        env = environment(settings, stub, tmp_path)
        workers = [worker(name, env, tmp_path) for name in ("one", "two")]
        try:
            for one in workers:
                one.await_output(r"celery@\S+ ready|\S+ ready\.")
            tasks = asyncio.run(_submit(settings, stub, 20))
            wait_until(lambda: len(stub.asked("tasks/get")) > 20, description="the tasks are polled")
            workers[0].kill()

            def all_told() -> bool:
                return {line["task_id"] for line in told(tmp_path)} == {task.task_id for task in tasks}

            wait_until(all_told, description="every end is told", within_s=60)
            assert workers[1].stop() == 0
        finally:
            for one in workers:
                one.kill()
    lines = told(tmp_path)
    assert len({(line["task_id"], line["event_id"]) for line in lines}) == 20
    texts = {line["task_id"]: line["result"]["content"][0]["text"] for line in lines}
    assert texts == {task.task_id: f"result {n}" for n, task in enumerate(tasks)}
    assert len(stub.asked("tools/call")) == 20


async def _submit(settings: Settings, stub: StubServer, count: int) -> list[Tracked]:
    ours = {"driver": "tasks", "honours_key": True, "max_concurrency": 64}
    servers = {"mcpServers": {"stub": {"url": stub.url, "mcptasks": ours}}}
    async with Tracker(servers, settings=settings, options=TrackOptions()) as tracker:
        return [await tracker.submit("stub", "export", {"n": n}, notify=["book"]) for n in range(count)]


class Nursery:
    """Submitters, each a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def submit(self, task_id: str) -> int:
        """A process that submits it has begun; its number."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{task_id}\n")
        self._process.stdin.flush()
        return int(self._line())


@contextmanager
def nursery(env: dict[str, str]) -> Generator[Nursery]:
    """A nursery, which ends with the block."""
    argv = [sys.executable, "-m", "tests.fleet.submit_nursery"]
    with subprocess.Popen(argv, env=env, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Nursery(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)


def kill(pid: int) -> None:
    """`kill -9`; it may have ended already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def recovered(settings: Settings, raw: redis.Redis, stub: StubServer, task_id: str) -> Tracked | None:
    """The task, once the fleet has looked at what the killed submitter left; None: it had stored no intent."""
    async with stub_desk(settings, raw, stub) as front:
        task = await front.store.read(task_id)
        if task is not None and task.status is TrackStatus.INTENDED:
            (task,) = await front.poll(task_id)
        return task


def remote_tasks(stub: StubServer, task_id: str) -> int:
    """How many tasks the server has for the intent."""
    keys = {seen.params.get("_meta", {}).get("mcptasks/idempotencyKey") for seen in stub.asked("tools/call")}
    return int(task_id in keys)


@covers("D1", "D01")
@pytest.mark.parametrize("point", ["before the answer", "after the answer"])
def test_a_submitter_that_is_killed_during_its_call_leaves_one_task_that_is_tracked(
    settings: Settings, valkey: EmbeddedValkey, raw: redis.Redis, tmp_path: Path, point: str
) -> None:
    """The server has the call; its answer is lost, or the handle is not stored. The same key finds the same task."""
    peek = TrackPeek(raw, settings.prefix)
    with StubServer() as stub:
        env = environment(settings, stub, tmp_path)
        task_id = new_task_id()

        async def held(writer: StreamWriter, seen: Seen) -> bool:
            """The server takes the call, and its answer stays with it."""
            await cast("Any", stub)._result(seen)
            await asyncio.sleep(30)
            return False

        with nursery(env) as born:
            if point == "before the answer":
                stub.fault("tools/call", held)
            pid = born.submit(task_id)
            wait_until(lambda: stub.asked("tools/call"), description="the call is out")
            if point == "before the answer":
                wait_until(lambda: len(stub.tasks) == 1, description="the server has the task")
            kill(pid)
            task = asyncio.run(recovered(settings, raw, stub, task_id))
        assert task is not None
        assert (task.status, task.handle) == (TrackStatus.WORKING, "remote-1")
        assert len(stub.tasks) == 1
        assert peek.due(task_id) is not None


@pytest.mark.slow
@covers("D1", "D01")
def test_submitters_killed_at_thirty_random_points_lose_nothing(
    settings: Settings, valkey: EmbeddedValkey, raw: redis.Redis, tmp_path: Path
) -> None:
    """Never two remote tasks for one intent, never a handle that nobody knows, every intent resolved."""
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    with StubServer() as stub:
        env = environment(settings, stub, tmp_path)
        with nursery(env) as born:
            # What a whole submit takes here, so that the kills fall into all of it.
            began, task_id = time.monotonic(), new_task_id()
            born.submit(task_id)
            wait_until(lambda: _handle(settings, raw, task_id), description="a submit is through")
            whole_s = time.monotonic() - began
            found: list[tuple[str, Tracked | None]] = []
            for _ in range(KILLS):
                task_id = new_task_id()
                pid = born.submit(task_id)
                time.sleep(chance.uniform(0, 1.2 * whole_s))  # the point itself, not a wait for something
                kill(pid)
                found.append((task_id, asyncio.run(recovered(settings, raw, stub, task_id))))
        handles = [task.handle for _, task in found if task is not None]
        assert all(handles) and len(set(handles)) == len(handles), seed
        for task_id, task in found:
            assert task is None or task.status is TrackStatus.WORKING, seed
            # Without an intent there was no call.
            assert (task is None) <= (remote_tasks(stub, task_id) == 0), seed
        # One more: the submit that was measured.
        assert len(stub.tasks) == len(handles) + 1, seed


def _handle(settings: Settings, raw: redis.Redis, task_id: str) -> bool:
    return "handle" in TrackPeek(raw, settings.prefix).fields(task_id)
