"""`mcptasks.testing`: a user's durable tools in memory, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, NoReturn

import anyio
import anyio.from_thread
import pytest
from mcp.client import Client, ClientRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, TextContent

from mcptasks import Retry, Tasks, artifact, cancelled, gather, input_timeout, note, sleep, step, testing
from mcptasks.client import TaskCancelled, TaskFailed, TaskHandle, TasksClient
from mcptasks.client.polling import Bell
from mcptasks.errors import BadAnswer, ConfigurationError, UnknownTask
from mcptasks.model import Reason, Status
from tests.support.house import Gate
from tests.support.tools import Word
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

Tool = Callable[..., Awaitable[Any]]
ACCEPT = {"action": "accept", "content": {"word": "blue"}}


def server(*tools: Tool, **policy: Any) -> tuple[MCPServer, Tasks]:
    """A user's module: no setting names a store, and nothing is bound."""
    tasks = Tasks()
    mcp = MCPServer("mine", extensions=[tasks])
    for tool in tools:
        mcp.tool()(tasks.durable(**policy)(tool))
    return mcp, tasks


def text(returned: CallToolResult) -> str:
    """What the tool returned."""
    assert isinstance(returned.content[0], TextContent)
    return returned.content[0].text


async def result(handle: TaskHandle) -> str:
    """What the task's tool returned, or has by now: whoever moves the time has moved it."""
    return text(await handle.result(timeout=20))


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in this module may connect to anything."""

    def refuse(*_: Any) -> NoReturn:
        raise AssertionError("a connection to somewhere")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)


# ------------------------------------------------------------------------------------------------ a whole life


async def test_a_tool_lives_its_whole_life_in_memory() -> None:
    """Steps, branches, a question, days of sleep, a retry and a lost worker, in well under a second of real time."""
    done, runs = list[str](), list[int]()

    def note(what: str) -> str:
        done.append(what)
        return what

    async def branch(name: str, days: int) -> str:
        await sleep(timedelta(days=days))
        return await step(name, note, name)

    async def tool(ctx: Context) -> str:
        runs.append(1)
        await step("first", note, "first")
        answer = await ctx.elicit("Which word?", Word)
        if "retried" not in done:
            done.append("retried")
            raise Retry("Not yet")
        both = await gather(branch("slow", 2), branch("fast", 1))
        await step("charge", note, "charge")
        word = answer.data.word if answer.action == "accept" else ""
        return " ".join([word, *both])

    mcp, tasks = server(tool, retry=["1h"], ttl="30d")
    async with testing.run(mcp, tasks) as world, world.client() as client:
        handle = await TasksClient.start(client, "tool")
        await world.idle()
        assert (await world.read(handle)).status is Status.PARKED
        await world.answer(handle, ACCEPT)
        assert (await world.read(handle)).status is Status.RETRYING
        await world.advance("1h")
        assert (await world.read(handle)).status is Status.SLEEPING
        await world.advance("1d")
        assert await world.steps(handle) == {"first#1": "first", "@g1.1@fast#1": "fast"}
        world.crash_at_step("charge")
        await world.advance("1d")
        assert (await world.read(handle)).status is Status.RUNNING, "its lease is not over"
        await world.advance("1m")
        assert await result(handle) == "blue slow fast"
        assert (await world.read(handle)).attempt == 2
    assert done == ["first", "retried", "fast", "slow", "charge", "charge"]


async def test_each_thing_happens_at_its_own_moment_not_at_the_end_of_the_leap() -> None:
    """What follows from a timer is counted from the timer."""
    seen = list[timedelta]()

    async def tool() -> str:
        for hours in (1, 24, 3):
            await sleep(timedelta(hours=hours))
            await step("look", lambda: seen.append(world.now - begun))
        return "done"

    mcp, tasks = server(tool, ttl="9d")
    async with testing.run(mcp, tasks) as world, world.client() as client:
        begun = world.now
        handle = await TasksClient.start(client, "tool")
        await world.advance(timedelta(hours=28))
        assert await result(handle) == "done"
        await world.advance("1d")
        assert world.now - begun == timedelta(hours=52)
    assert seen == [timedelta(hours=hours) for hours in (1, 25, 28)]


async def test_a_task_that_nobody_ends_expires_and_is_then_unknown() -> None:
    """Its ttl, and one more for those who read it; nothing is waited for."""

    async def tool(ctx: Context) -> str:
        return (await ctx.elicit("Which word?", Word)).action

    mcp, tasks = server(tool, ttl="1d")
    async with testing.run(mcp, tasks) as world, world.client() as client:
        handle = await TasksClient.start(client, "tool")
        await world.advance("23h")
        assert (await world.read(handle)).status is Status.PARKED
        await world.advance("1h1m")
        with pytest.raises(TaskFailed, match="expired"):
            await handle.result()
        await world.advance("25h")
        with pytest.raises(UnknownTask):
            await world.read(handle)


async def test_a_question_that_nobody_answers_in_time_ends_as_the_tool_says() -> None:
    """Cancelled for the tool that asked for that, a failure otherwise."""

    async def minds(ctx: Context) -> str:
        with input_timeout("2d", then="cancel"):
            return (await ctx.elicit("Which word?", Word)).action

    async def fails(ctx: Context) -> str:
        with input_timeout("2d"):
            return (await ctx.elicit("Which word?", Word)).action

    mcp, tasks = server(minds, fails, ttl="9d")
    async with testing.run(mcp, tasks) as world, world.client() as client:
        first, second = [await TasksClient.start(client, name) for name in ("minds", "fails")]
        await world.advance("47h")
        assert (await world.read(first)).status is (await world.read(second)).status is Status.PARKED
        await world.advance("1h")
        assert await result(first) == "cancel"
        assert (await world.read(second)).reason is Reason.INPUT_TIMEOUT


async def test_the_time_limit_of_a_tool_that_hangs_can_be_moved_over() -> None:
    """It is the run's own alarm that rings, not the sweeper's."""
    gate, ends = Gate(), list[str]()

    async def tool() -> None:
        try:
            await gate.wait()
        finally:
            ends.append("cleaned up")

    mcp, tasks = server(tool, time_limit="15m")
    async with testing.run(mcp, tasks) as world, world.client() as client:
        handle = await TasksClient.start(client, "tool")
        await gate.arrival()
        await world.advance("14m", leave_running=True)
        assert (await world.read(handle)).status is Status.RUNNING, "a run that goes on keeps its lease"
        await world.advance("2m", leave_running=True)
        await world.idle()
        assert (await world.read(handle)).reason is Reason.WALL_TIMEOUT
    assert ends == ["cleaned up"]


async def test_a_held_run_is_at_rest_and_lets_go_when_its_hold_is_over() -> None:
    """Answered within it goes on live, without a replay; later it runs from the top."""
    runs = list[str]()

    async def tool(name: str, ctx: Context) -> str:
        runs.append(name)
        return (await ctx.elicit(f"Which word, {name}?", Word)).action

    mcp, tasks = server(tool, hold="10m")
    async with testing.run(mcp, tasks) as world, world.client() as client:
        quick = await TasksClient.start(client, "tool", {"name": "quick"})
        await world.answer(quick, ACCEPT)
        late = await TasksClient.start(client, "tool", {"name": "late"})
        await world.advance("11m")
        await world.answer(late, ACCEPT)
        assert [await result(handle) for handle in (quick, late)] == ["accept", "accept"]
    assert runs == ["quick", "late", "late"]


# ------------------------------------------------------------------------------------------------ callers


async def test_the_clients_callbacks_answer_while_somebody_waits_for_the_result() -> None:
    """As against a real fleet: also where the client's call itself waits."""

    async def person(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="accept", content={"word": "red"})

    async def tool(ctx: Context) -> str:
        answer = await ctx.elicit("Which word?", Word)
        await sleep("1d")
        return answer.data.word if answer.action == "accept" else ""

    mcp, tasks = server(tool, ttl="9d")
    async with testing.run(mcp, tasks) as world, world.client(elicitation=person) as client:
        handle = await TasksClient.start(client, "tool")
        waiting = asyncio.create_task(handle.result())
        assert (await world.until(handle, "sleeping")).status is Status.SLEEPING
        await world.advance("1d")
        assert text(await waiting) == "red"


async def test_an_answer_of_the_test_reaches_who_waits_for_the_result() -> None:
    """A client without callbacks can be asked, and leaves the answer to the test."""

    async def tool(ctx: Context) -> str:
        return (await ctx.elicit("Which word?", Word)).action

    mcp, tasks = server(tool)
    async with testing.run(mcp, tasks) as world, world.client() as client:
        waiting = asyncio.create_task(client.call_tool("tool"))
        task_id = await eventually(lambda: first_of(world), description="it is a task")
        await world.answer(task_id, {"action": "decline"})
        assert text(await waiting) == "decline"


async def first_of(world: testing.World) -> str | None:
    """The one unfinished task."""
    return next(iter(await world.operations.active()), None)


async def test_progress_is_seen_though_time_stands_still() -> None:
    """Rates and estimates of a tool that takes no time."""

    async def tool(ctx: Context) -> str:
        for done in range(4):
            await ctx.report_progress(done, 9, f"row {done}")
        return (await ctx.elicit("Which word?", Word)).action

    mcp, tasks = server(tool)
    async with testing.run(mcp, tasks) as world, world.client() as client:
        handle = await TasksClient.start(client, "tool")
        await world.idle()
        assert "row 3" in str((await world.read(handle)).status_message)


async def test_the_timeline_is_told_by_the_clock_of_the_world() -> None:
    """Who tests what a tool notes needs no store for it."""

    async def order() -> str:
        await note("ordered")
        await sleep("2h")
        await note("arrived", data={"boxes": 2})
        return "done"

    mcp, tasks = server(order)
    async with testing.run(mcp, tasks) as world, world.client() as client:
        handle = await TasksClient.start(client, "order")
        await world.advance("3h")
        found = await handle.timeline()
        assert found == (await world.operations.timeline(handle.task_id)).for_owner()
    words = [entry.what for entry in found]
    assert words == ["create", "claim", "note", "sleep", "claim", "note", "end"]
    ordered, arrived = (entry for entry in found if entry.what == "note")
    assert arrived.about == {"text": "arrived", "data": {"boxes": 2}}
    assert arrived.at_ms - ordered.at_ms == 7_200_000


async def test_a_client_that_knows_no_tasks_calls_the_tool_like_any_other() -> None:
    """The bridge is the server's own."""

    async def person(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="accept", content={"word": "red"})

    async def tool(ctx: Context) -> str:
        return (await ctx.elicit("Which word?", Word)).action

    mcp, tasks = server(tool)
    async with testing.run(mcp, tasks) as world:
        async with Client(mcp, elicitation_callback=person) as client:
            assert text(await client.call_tool("tool")) == "accept"
        assert await world.operations.active() == []


async def test_the_same_idempotency_key_is_the_same_task() -> None:
    """And another one in the next world."""

    async def tool() -> str:
        return "done"

    mcp, tasks = server(tool)
    ids = list[str]()
    for _ in range(2):
        async with testing.run(mcp, tasks) as world, world.client() as client:
            pair = [await TasksClient.start(client, "tool", idempotency_key="once") for _ in range(2)]
            assert pair[0].task_id == pair[1].task_id
            ids.append(pair[0].task_id)
    assert ids[0] != ids[1]


@pytest.mark.parametrize("bound", [False, True])
async def test_a_listener_is_told_of_changes_without_a_poll(bound: bool) -> None:
    """`subscriptions/listen`, over the pub/sub of the store in memory, and of no store that the server was bound to."""

    async def never(delay_ms: int, bell: Bell, heard: int) -> None:
        # The shortest pauses are those before the stream stands.
        with anyio.move_on_after(math.inf if delay_ms > 40 else delay_ms / 1000):
            await bell.wait(heard)

    async def tool() -> str:
        await sleep("1d")
        return "done"

    mcp, tasks = server(tool, ttl="9d")
    if bound:
        tasks.bind(mcp)
    async with testing.run(mcp, tasks) as world, world.client(tasks=TasksClient(pause=never)) as client:
        handle = await TasksClient.start(client, "tool")
        waiting = asyncio.create_task(handle.result())
        await world.advance("1d")
        async with asyncio.timeout(20):
            assert text(await waiting) == "done"


async def test_a_cancel_reaches_tools_that_wait_and_tools_that_run() -> None:
    """From the handle and from the test, in a coroutine and in a thread."""
    gate, seen = Gate(), list[str]()

    async def waits() -> None:
        await sleep("1d")

    async def runs() -> None:
        try:
            await gate.wait()
        finally:
            seen.append("cancelled")

    def works() -> None:
        entered.set()
        while not cancelled():
            threading.Event().wait(0.005)
        seen.append("seen")

    entered = threading.Event()
    mcp, tasks = server(waits, runs, ttl="9d")
    mcp.tool()(tasks.durable()(works))
    async with testing.run(mcp, tasks) as world, world.client() as client:
        asleep, running, busy = [await TasksClient.start(client, name) for name in ("waits", "runs", "works")]
        await gate.arrival()
        await asyncio.to_thread(entered.wait)
        await world.cancel(running)
        await busy.cancel()
        await world.idle()
        await world.cancel(asleep)
        for handle in (asleep, running, busy):
            assert (await world.read(handle)).reason in (Reason.CANCELLED, Reason.COMPLETED)
        with pytest.raises(TaskCancelled):
            await asleep.result()
    assert sorted(seen) == ["cancelled", "seen"]


async def test_an_answer_that_does_not_fit_is_refused_with_the_reason() -> None:
    """A test must not go on as if it had answered."""

    async def tool(ctx: Context) -> str:
        await gather(ctx.elicit("Left?", Word), ctx.elicit("Right?", Word))
        return "done"

    mcp, tasks = server(tool)
    async with testing.run(mcp, tasks) as world, world.client() as client:
        handle = await TasksClient.start(client, "tool")
        with pytest.raises(BadAnswer, match="2 open questions"):
            await world.answer(handle, ACCEPT)
        left, right = (await world.read(handle)).questions
        with pytest.raises(BadAnswer):
            await world.answer(handle, {"action": "accept", "content": {"word": 3}}, key=left)
        await world.answer(handle, ACCEPT, key=right)
        await world.answer(handle, ACCEPT)
        assert await result(handle) == "done"


# ------------------------------------------------------------------------------------------------ lost workers


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_crash_inside_a_step_does_it_again_after_the_lease(kind: str) -> None:
    """Called from the fake of what the step uses; nothing that the dead run does is stored."""
    charged = list[int]()

    def charge() -> None:
        charged.append(1)
        if len(charged) == 1:
            world.crash()

    async def charge_async() -> None:
        charge()

    async def tool() -> str:
        await step("charge", charge if kind == "sync" else charge_async)
        await step("after", lambda: None)
        return "done"

    mcp, tasks = server(tool)
    async with testing.run(mcp, tasks) as world, world.client() as client:
        handle = await TasksClient.start(client, "tool")
        await world.idle()
        assert await world.steps(handle) == {}
        await world.advance("14s")
        assert charged == [1]
        await world.advance("2s")
        assert await result(handle) == "done"
    assert charged == [1, 1]


async def test_the_lease_of_a_crashed_tool_that_cannot_be_stopped_runs_out() -> None:
    """Its thread goes on, as no process's would; its task is another run's all the same."""
    held, entered, runs = threading.Event(), threading.Event(), list[int]()

    def tool() -> str:
        runs.append(1)
        entered.set()
        if len(runs) == 1:
            held.wait(30)
        return f"run {len(runs)}"

    mcp, tasks = server()
    mcp.tool()(tasks.durable()(tool))
    async with testing.run(mcp, tasks) as world, world.client() as client:
        handle = await TasksClient.start(client, "tool")
        await asyncio.to_thread(entered.wait)
        world.crash(handle)
        await world.advance("16s")
        assert await result(handle) == "run 2"
        held.set()


@pytest.mark.parametrize(("recorded", "times"), [(False, 2), (True, 1)])
async def test_a_crash_at_a_step_shows_what_the_record_is_worth(recorded: bool, times: int) -> None:
    """Before the record the step is done again, after it never, also inside a branch."""
    charged = list[int]()

    async def branch() -> None:
        await step("charge", lambda: charged.append(1))

    async def tool() -> str:
        await gather(branch(), sleep("1h"))
        return "done"

    mcp, tasks = server(tool)
    async with testing.run(mcp, tasks) as world, world.client() as client:
        handle = await TasksClient.start(client, "tool")
        world.crash_at_step("charge", recorded=recorded)
        await world.advance("2h")
        assert await result(handle) == "done"
        assert (await world.read(handle)).attempt == 2
    assert len(charged) == times


async def test_a_crashed_run_stores_nothing_more_and_the_others_go_on() -> None:
    """Not its progress, not its clean-up's steps, not its result; and its attempts are used up at last."""
    gate, tries = Gate(), list[int]()

    async def tool(ctx: Context) -> str:
        tries.append(1)
        world.crash(handle)
        try:
            await ctx.elicit("Which word?", Word)
        finally:
            await ctx.report_progress(1, 2, "from beyond")
            await step("refund", lambda: None)
        return "from beyond"

    async def other() -> str:
        await gate.wait()
        return "done"

    mcp, tasks = server(tool, other)
    async with testing.run(mcp, tasks) as world, world.client() as client:
        bystander = await TasksClient.start(client, "other")
        await gate.arrival()
        handle = await TasksClient.start(client, "tool")
        await world.advance("1m", leave_running=True)
        record = await world.read(handle)
        assert (record.reason, record.progress, record.questions) == (Reason.WORKER_LOST, None, {})
        assert await world.steps(handle) == {}
        gate.opened.set()
        assert await result(bystander) == "done"
        assert (await world.read(bystander)).attempt == 1
    assert len(tries) == 3


# ------------------------------------------------------------------------------------------------ worlds


@pytest.mark.parametrize("bound", [False, True])
async def test_the_users_objects_are_given_back_as_they_were(bound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound or not; each block begins with an empty store, and the store that the settings name is not touched."""
    monkeypatch.setenv("MCPTASKS_REDIS_URL", "redis://nowhere.invalid:1/0")

    async def tool(ctx: Context) -> str:
        return (await ctx.elicit("Which word?", Word)).action

    mcp, tasks = server(tool)
    app = tasks.bind(mcp) if bound else None
    before = (dict(vars(tasks)), list(mcp.middleware))
    for _ in range(2):
        async with testing.run(mcp, tasks) as world, world.client() as client:
            assert await world.operations.active() == []
            await TasksClient.start(client, "tool")
            await world.idle()
            assert len(await world.operations.active()) == 1
            with pytest.raises(ConfigurationError, match="one block at a time"):
                async with testing.run(mcp, tasks):
                    pass
    assert (dict(vars(tasks)), list(mcp.middleware), tasks.app) == (*before, app)


async def test_worlds_of_two_servers_know_nothing_of_each_other() -> None:
    """Neither tasks nor time."""

    async def tool() -> str:
        await sleep("1d")
        return "done"

    one, two = server(tool), server(tool)
    async with testing.run(*one) as first, testing.run(*two) as second, first.client() as client, second.client():
        handle = await TasksClient.start(client, "tool")
        await second.advance("2d")
        await first.idle()
        assert (await first.read(handle)).status is Status.SLEEPING
        with pytest.raises(UnknownTask):
            await second.read(handle)


async def test_a_server_without_the_extension_is_an_error_that_says_so() -> None:
    """Otherwise its tools would simply run live."""
    with pytest.raises(ConfigurationError, match="extensions="):
        async with testing.run(MCPServer("plain"), Tasks()):
            pass


async def test_a_tool_that_never_ends_is_named_instead_of_waited_for() -> None:
    """A test that hangs tells nothing."""
    gate = Gate()

    async def tool() -> None:
        await gate.wait()

    mcp, tasks = server(tool)
    async with testing.run(mcp, tasks, patience_s=0.2) as world, world.client() as client:
        handle = await TasksClient.start(client, "tool")
        with pytest.raises(TimeoutError, match=r"Still running after 0.2 s: tool \(task .*leave_running"):
            await world.idle()
        with pytest.raises(TimeoutError, match="is still running"):
            await world.until(handle, "parked")


async def test_a_run_has_nothing_of_its_callers_context() -> None:
    """It would not have it in another process either."""
    user: ContextVar[str] = ContextVar("user", default="nobody")

    async def tool() -> str:
        return user.get()

    mcp, tasks = server(tool)
    async with testing.run(mcp, tasks) as world, world.client() as client:
        user.set("somebody")
        assert await result(await TasksClient.start(client, "tool")) == "nobody"


async def test_a_sync_tool_does_durable_things_in_memory_too() -> None:
    """From its thread."""

    def tool(ctx: Context) -> str:
        anyio.from_thread.run(sleep, "1d")
        return str(anyio.from_thread.run(ctx.elicit, "Which word?", Word).action)

    mcp, tasks = server(ttl="9d")
    mcp.tool()(tasks.durable(ttl="9d")(tool))
    async with testing.run(mcp, tasks) as world, world.client() as client:
        handle = await TasksClient.start(client, "tool")
        await world.advance("1d")
        await world.answer(handle, ACCEPT)
        assert await result(handle) == "accept"


def test_a_world_can_be_a_fixture_whose_ends_are_in_different_tasks() -> None:
    """As pytest-asyncio runs them, each in a task of its own on one loop."""

    async def tool() -> str:
        await sleep("1d")
        return "done"

    @asynccontextmanager
    async def lifespan(_: MCPServer) -> AsyncGenerator[None]:
        async with anyio.create_task_group():
            yield

    loop = asyncio.new_event_loop()
    try:
        tasks = Tasks()
        mcp = MCPServer("mine", extensions=[tasks], lifespan=lifespan)
        mcp.tool()(tasks.durable(ttl="9d")(tool))
        running = testing.run(mcp, tasks)
        world = loop.run_until_complete(running.__aenter__())
        connected = world.client()
        client = loop.run_until_complete(connected.__aenter__())

        async def test() -> str:
            handle = await TasksClient.start(client, "tool")
            await world.advance("1d")
            return await result(handle)

        assert loop.run_until_complete(test()) == "done"
        loop.run_until_complete(connected.__aexit__(None, None, None))
        loop.run_until_complete(running.__aexit__(None, None, None))
        assert asyncio.all_tasks(loop) == set()
    finally:
        loop.close()


async def test_a_run_that_is_given_back_at_the_end_does_not_begin_anew() -> None:
    """Its message finds nobody: a run that began now would outlive its world, and the loop too."""
    gate = Gate()

    async def tool() -> None:
        await gate.wait()

    before = asyncio.all_tasks()
    async with testing.run(*server(tool)) as world, world.client() as client:
        await TasksClient.start(client, "tool")
        await gate.arrival()
    assert asyncio.all_tasks() == before
    assert gate.arrivals == 1


def test_a_world_leaves_nothing_behind_in_a_plain_asyncio_run() -> None:
    """No warning of an open connection, no task that is still pending, under the strictest Python."""
    program = """
import asyncio
from mcp.server.mcpserver import Context, MCPServer
from mcptasks import Tasks, sleep, testing
from mcptasks.client import TasksClient

tasks = Tasks()
mcp = MCPServer("mine", extensions=[tasks])

@mcp.tool()
@tasks.durable(hold="1h")
async def asks(ctx: Context) -> str:
    await ctx.elicit("Sure?", None)

@mcp.tool()
@tasks.durable()
async def hangs() -> str:
    await asyncio.Event().wait()

@mcp.tool()
@tasks.durable()
async def sleeps() -> str:
    await sleep("1d")

async def main():
    async with testing.run(mcp, tasks) as world, world.client() as client:
        for tool in ("asks", "hangs", "sleeps"):
            await TasksClient.start(client, tool)
        await world.advance("1h", leave_running=True)

asyncio.run(main())
print("left")
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        env={name: value for name, value in os.environ.items() if not name.startswith("MCPTASKS_")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
    assert "Warning" not in done.stderr and "never retrieved" not in done.stderr and "destroyed" not in done.stderr


@pytest.mark.parametrize("missing", ["fakeredis", "lupa"])
def test_without_its_extra_the_import_says_what_to_install(missing: str) -> None:
    """Both packages of the extra; the rest of mcptasks needs neither."""
    program = f"import sys; sys.modules[{missing!r}] = None; import mcptasks; import mcptasks.testing"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        f"ImportError: mcptasks.testing needs the extra `testing` ({missing} is missing): "
        "pip install 'mcptasks[testing]'"
    )


async def test_artifacts_and_large_results_are_read_as_from_a_server() -> None:
    """In a folder that is gone with the block."""

    async def export() -> str:
        await artifact("data.csv", b"a,b\n")
        return "x" * 400_000

    mcp, tasks = server(export)
    async with testing.run(mcp, tasks) as world, world.client() as client:
        handle = await TasksClient.start(client, "export", {})
        await world.idle()
        assert text(await handle.result()) == "x" * 400_000
        [link] = await handle.artifacts()
        assert [part async for part in handle.read(link)] == [b"a,b\n"]
        place = world.settings.artifacts_url
        assert os.listdir(place)
    assert not await anyio.Path(place).exists()
    assert tasks.config.artifacts_url == ".mcptasks/artifacts"
