"""The tracker as an MCP server: an agent submits, waits, answers and cancels, and sees nobody else's tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client

from mcptasks.settings import Settings
from mcptasks.tracker import Tracker, agents_server
from mcptasks.tracker.options import TrackOptions
from tests.requirements import covers
from tests.support.stub_server import StubServer
from tests.support.stub_steps import asking, completed, working
from tests.support.tracker_desk import stub_servers
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


class Agent:
    """One caller of the server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """What the tool returned; it was no error."""
        done = await self._client.call_tool(tool, arguments)
        assert not done.is_error, done.content
        assert isinstance(done.structured_content, dict)
        return done.structured_content

    async def error(self, tool: str, /, **arguments: Any) -> str:
        """The text of the tool's error."""
        done = await self._client.call_tool(tool, arguments)
        assert done.is_error
        return str(done.content)


@asynccontextmanager
async def tracking(settings: Settings, stub: StubServer, **options: Any) -> AsyncGenerator[Tracker]:
    """A tracker of the stub whose loop runs."""
    servers = {"mcpServers": {"stub": {"url": stub.url, "mcptasks": {"driver": "tasks", "honours_key": True}}}}
    async with Tracker(servers, settings=settings, options=TrackOptions(look_ms=50, **options)) as tracker:
        running = asyncio.create_task(tracker.run())
        try:
            yield tracker
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def agent(tracker: Tracker, name: str = "") -> AsyncGenerator[Agent]:
    """A caller of that name, in process."""
    async with Client(agents_server(tracker, owner=lambda _: name)) as client:
        yield Agent(client)


@covers("D5")
async def test_an_agent_follows_a_call_from_its_submit_to_its_result(settings: Settings) -> None:
    """A second submit under its key sends nothing; the question is asked, answered, and the result read."""
    with StubServer() as stub:
        stub.hint = 1_000
        stub.script = [working(), asking("k", text="Which year?"), completed("42")]
        async with tracking(settings, stub) as tracker, agent(tracker) as call:
            task = await call("submit", server="stub", tool="export", arguments={"n": 1}, key="mine")
            assert (task["status"], task["tool"]) == ("working", "export")
            again = await call("submit", server="stub", tool="export", arguments={"n": 1}, key="mine")
            assert again["task_id"] == task["task_id"]
            seen = await call("wait", task_id=task["task_id"], seconds=30)
            assert seen["questions"]["k"]["params"]["message"] == "Which year?"
            answer = {"action": "accept", "content": {"reply": "2026"}}
            assert await call("answer", task_id=task["task_id"], answers={"k": answer}) == {"answered": ["k"]}

            async def end() -> dict[str, Any] | None:
                shown = await call("wait", task_id=task["task_id"], seconds=30)
                return shown if shown["status"] == "completed" else None

            done = await eventually(end, description="the task has ended")
            assert done["result"]["content"][0]["text"] == "42"
            assert [one["task_id"] for one in (await call("list"))["tasks"]] == [task["task_id"]]
            assert (await call("cancel", task_id=task["task_id"]))["outcome"] == "finished"
        assert len(stub.asked("tools/call")) == 1


async def test_what_is_not_yours_is_not_there(settings: Settings) -> None:
    """To another caller a task is the same as none, whatever he does; a key is his own, too."""
    with StubServer() as stub:
        stub.script = [working()]
        async with tracking(settings, stub) as tracker, agent(tracker, "ann") as ann, agent(tracker, "bob") as bob:
            task_id = (await ann("submit", server="stub", tool="export", key="k"))["task_id"]
            for tool, more in (
                ("get", {}),
                ("wait", {"seconds": 1}),
                ("cancel", {}),
                ("answer", {"answers": {"k": {}}}),
            ):
                assert await bob.error(tool, task_id=task_id, **more) == await bob.error(tool, task_id=task_id, **more)
                assert "There is no tracked task" in await bob.error(tool, task_id=task_id, **more)
            assert (await bob("list"))["tasks"] == []
            assert (await bob("submit", server="stub", tool="export", key="k"))["task_id"] != task_id
            assert (await ann("cancel", task_id=task_id))["outcome"] == "requested"


async def test_a_wait_ends_with_its_time_and_shows_the_task_as_it_is(settings: Settings) -> None:
    """An agent's call never hangs for longer than it asked for."""
    with StubServer() as stub:
        stub.script = [working("at it")]
        async with tracking(settings, stub) as tracker, agent(tracker) as call:
            task_id = (await call("submit", server="stub", tool="export"))["task_id"]
            assert (await call("wait", task_id=task_id, seconds=1))["status"] == "working"


@covers("D08")
async def test_a_cancel_that_nobody_is_there_to_deliver_says_so(settings: Settings) -> None:
    """D08: success means that somebody will do it."""
    with StubServer() as stub:
        stub.script = [working()]
        async with (
            Tracker(lambda: stub_servers(stub), settings=settings, options=TrackOptions()) as tracker,
            agent(tracker) as call,
        ):
            task_id = (await call("submit", server="stub", tool="export"))["task_id"]
            said = await call("cancel", task_id=task_id)
            assert said["outcome"] == "requested" and "no active tracker" in said["note"]


async def test_errors_say_what_to_do(settings: Settings) -> None:
    """In the tool's own answer; the server's names are in its instructions."""
    with StubServer() as stub:
        async with tracking(settings, stub) as tracker, agent(tracker) as call:
            assert "stub" in (agents_server(tracker).instructions or "")
            assert "no server 'crm'" in await call.error("submit", server="crm", tool="export")
            await call("submit", server="stub", tool="export", key="k")
            assert "used before" in await call.error("submit", server="stub", tool="import", key="k")
