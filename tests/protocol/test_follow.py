"""A durable tool that follows a task of another server: it parks, hands questions on, and takes its cancel along."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from mcp.server.mcpserver import Context

from mcptasks.errors import ConfigurationError
from mcptasks.settings import Settings
from mcptasks.tracker.following import waits_s
from mcptasks.tracker.model import TrackStatus
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.tracker import Tracker
from tests.requirements import covers
from tests.support.durable import one, text, woken
from tests.support.house import house
from tests.support.stub_server import StubServer
from tests.support.stub_steps import asking, completed, working
from tests.support.tracker_desk import stub_desk, stub_servers

pytestmark = pytest.mark.anyio


@covers("D06")
async def test_a_durable_tool_waits_for_a_remote_task_and_hands_its_questions_on(
    settings: Settings, raw: redis.Redis
) -> None:
    """It sleeps while the other one works, asks its own caller what that one asks, and has its result in the end."""
    with StubServer() as stub:
        stub.script = [working(), asking("k", text="Which year?"), completed("42")]
        tracker = Tracker(lambda: stub_servers(stub), settings=settings, options=TrackOptions())

        async def tool(ctx: Context) -> str:
            task = await tracker.submit("stub", "export", key="once")
            done = await tracker.follow(ctx, task.task_id)
            assert done.result is not None
            return str(done.result["content"][0]["text"])

        async with (
            tracker,
            stub_desk(settings, raw, stub) as front,
            house(settings, one(tool)) as (home, client),
        ):
            task_id = await client.start("tool")
            assert await home.fleet.deliver() == "sleeping"
            (remote,) = (await tracker.list()).tasks
            await front.poll(remote.task_id)
            assert await woken(home, raw, task_id) == "sleeping"
            await front.poll(remote.task_id)
            assert await woken(home, raw, task_id) == "parked"
            state = await client.state(task_id)
            ((key, question),) = state["inputRequests"].items()
            assert question["params"]["message"] == "Which year?"
            answer = {"action": "accept", "content": {"reply": "2026"}}
            await client.update(task_id, {key: answer})
            assert await home.fleet.deliver() == "sleeping"
            (remote,) = await front.poll(remote.task_id)
            assert remote.status is TrackStatus.COMPLETED
            assert await woken(home, raw, task_id) == "completed"
            assert text(await client.state(task_id)) == "42"
        assert len(stub.asked("tools/call")) == 1
        assert [seen.params["inputResponses"] for seen in stub.asked("tasks/update")] == [{"k": answer}]


@covers("D5")
async def test_a_cancelled_durable_task_takes_the_remote_one_along(settings: Settings, raw: redis.Redis) -> None:
    """Although no tool runs that could hear of it."""
    with StubServer() as stub:
        stub.script = [working()]
        tracker = Tracker(lambda: stub_servers(stub), settings=settings, options=TrackOptions())

        async def tool(ctx: Context) -> Any:
            task = await tracker.submit("stub", "export", key="once")
            await tracker.follow(ctx, task.task_id)

        async with (
            tracker,
            stub_desk(settings, raw, stub) as front,
            house(settings, one(tool)) as (home, client),
        ):
            task_id = await client.start("tool")
            assert await home.fleet.deliver() == "sleeping"
            assert await front.store.orphans() == 0
            await client.cancel(task_id)
            (remote,) = (await tracker.list()).tasks
            front.peek.raw.zadd(front.peek.keys.parents, {remote.task_id: 1})
            assert await front.store.orphans() == 1
            await front.poll(remote.task_id)
        assert len(stub.asked("tasks/cancel")) == 1


def test_weeks_of_looks_fit_into_the_runs_that_a_task_has() -> None:
    """A look is a run from the top. Every minute, they were used up after 17 hours, and the remote task cancelled."""
    taken_s = looks = 0
    for wait_s in waits_s():
        assert wait_s <= max(60, taken_s / 20)
        taken_s, looks = taken_s + wait_s, looks + 1
        if taken_s > 30 * 86_400:
            break
    assert looks < 0.9 * Settings().replays_max


async def test_outside_of_a_durable_task_there_is_wait(settings: Settings) -> None:
    """A plain error that says so."""
    tracker = Tracker({"mcpServers": {}}, settings=settings, options=TrackOptions())
    with pytest.raises(ConfigurationError, match=r"tracker\.wait"):
        await tracker.follow(None, "x" * 32)  # pyright: ignore[reportArgumentType]
