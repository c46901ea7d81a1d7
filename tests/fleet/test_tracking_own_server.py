"""End to end: a tracker on an MCP server of this project's own, with workers, over HTTP, and kills in between."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from mcptasks.cli.worker import worker_argv
from mcptasks.settings import Settings
from mcptasks.tracker.model import Tracked, TrackStatus
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.tracker import Tracker
from tests.fleet.system import Fleet, Proc
from tests.requirements import covers
from tests.support.waiting import wait_until

TASKS: Final = 10


@covers("D1", "D6", "D06")
def test_all_that_is_submitted_ends_and_is_told_although_trackers_and_workers_are_killed(fleet: Fleet) -> None:
    """Calls that answer late, and one that asks: each end is told under one id, each tool ran once."""
    server, worker = fleet.start_server(), fleet.start_worker()
    url = fleet.ready(server, worker)
    ours = {"driver": "tasks", "honours_key": True, "max_concurrency": 32}
    servers = {"mcpServers": {"own": {"url": url, "mcptasks": ours}}}
    told = fleet.ledger.path.with_name("told.jsonl")
    file = fleet.ledger.path.with_name("servers.json")
    file.write_text(json.dumps(servers))
    env = {
        "MCPTASKS_TRACK_SERVERS": str(file),
        "MCPTASKS_TRACK_CALL_MS": "1500",
        "MCPTASKS_TRACK_LEASE_MS": "5000",
        "MCPTASKS_TRACK_LOOK_MS": "100",
        # Of the news that the killed one was just telling.
        "MCPTASKS_TRACK_DELIVERY_MS": "1000",
        "TRACKING_TOLD": str(told),
    }

    def tracking(name: str) -> Proc:
        argv = worker_argv("tests.fleet.tracking_app:celery", pool="solo", concurrency=1, name=name, log_level="INFO")
        return fleet.start_other(name, [*argv, "--without-mingle"], **env)

    settings = Settings(redis_url=fleet.store.url, prefix=fleet.prefix)
    first = tracking("first")
    first.await_output(r"\sready\.")
    tasks, asking = asyncio.run(_submit(settings, servers))
    wait_until(lambda: _lines(told), description="the first end is told")
    first.kill()
    second = tracking("second")
    second.await_output(r"\sready\.")
    asyncio.run(_answer(settings, servers, asking.task_id))
    everyone = {task.task_id for task in (*tasks, asking)}

    def ends() -> list[dict[str, Any]]:
        return [line for line in _lines(told) if line["kind"] in ("completed", "failed", "cancelled")]

    wait_until(lambda: {line["task_id"] for line in ends()} == everyone, description="every end is told", within_s=60)
    assert len({(line["task_id"], line["event_id"]) for line in ends()}) == len(everyone)
    assert {line["kind"] for line in ends()} == {"completed"}
    for n in range(TASKS):
        assert fleet.ledger.count(f"k{n}") == 1
    assert second.stop() == 0


def _lines(path: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def _submit(settings: Settings, servers: dict[str, Any]) -> tuple[list[Tracked], Tracked]:
    async with Tracker(servers, settings=settings, options=TrackOptions()) as tracker:
        asking = await tracker.submit("own", "ask1", {"key": "asks", "x": 1}, notify=["book"])
        calls = [
            await tracker.submit("own", "ledger", {"key": f"k{n}"}, key=f"k{n}", notify=["book"]) for n in range(TASKS)
        ]
        # A caller that crashed and comes again sends nothing.
        assert (await tracker.submit("own", "ledger", {"key": "k0"}, key="k0", notify=["book"])).task_id == (
            calls[0].task_id
        )
        return calls, asking


async def _answer(settings: Settings, servers: dict[str, Any], task_id: str) -> None:
    async with Tracker(servers, settings=settings, options=TrackOptions()) as tracker:
        asked = await tracker.wait(task_id, 30, question=True)
        assert asked.status is TrackStatus.INPUT_REQUIRED
        ((key, question),) = asked.questions.items()
        names = question["params"]["requestedSchema"]["properties"]
        await tracker.answer(task_id, {key: {"action": "accept", "content": dict.fromkeys(names, "Ann")}})
