"""`subscriptions/listen` with `taskIds` (SEP-2663, Task Status Notifications), on the wire of a server over HTTP."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError

from mcptasks import Tasks
from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.settings import Settings
from mcptasks.store.keys import Keys
from tests.requirements import covers
from tests.support.house import Gate, House, house
from tests.support.listening import SUBSCRIPTION, Listener
from tests.support.peek import Peek
from tests.support.raw_client import TASKS, LegacyClient, RawClient
from tests.support.tasks import queued
from tests.support.tools import ask_first
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

NOBODYS: Final = "n" * 32
ACCEPT: Final = {"action": "accept", "content": {"word": "x"}}


class Tools:
    """One tool per way to go; those that stand at a gate go on when the test says so."""

    def __init__(self) -> None:
        self.gate, self.second = Gate(), Gate()

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        @mcp.tool()
        async def more_tools(ctx: Context) -> str:
            await ctx.notify_tools_changed()
            return "told"

        @mcp.tool()
        @tasks.durable()
        async def wait() -> str:
            await self.gate.wait()
            return "done"

        @mcp.tool()
        @tasks.durable()
        async def chat(ctx: Context) -> str:
            await ctx.report_progress(1, 3, "first")
            await ctx.info("a line of its log")  # pyright: ignore[reportDeprecated] - tools still do
            await self.gate.wait()
            for step in range(100):
                await ctx.report_progress(1 + step / 100, 3, f"{step}")
            await ctx.report_progress(2, 3, "last")
            await self.second.wait()
            return "done"

        @mcp.tool()
        @tasks.durable()
        async def wrong() -> str:
            raise ToolError("no such file")

        @mcp.tool()
        @tasks.durable()
        async def broken() -> str:
            raise MCPError(-32050, "quota", {"left": 0})

        @mcp.tool()
        @tasks.durable(unlimited=True)
        async def for_ever() -> str:
            return "done"

        mcp.tool()(tasks.durable()(ask_first))


@pytest.fixture
def peek(raw: redis.Redis, settings: Settings) -> Peek:
    """What is really stored."""
    return Peek(raw, settings.prefix)


def as_got(state: dict[str, Any]) -> dict[str, Any]:
    """What a notification carries of what `tasks/get` answered."""
    return {name: value for name, value in state.items() if name != "resultType"}


@asynccontextmanager
async def listened(home: House, client: RawClient, *task_ids: str, **more: Any) -> AsyncGenerator[Listener]:
    """A stream of these tasks, all of which were acknowledged."""
    async with home.listen(client, *task_ids, **more) as listener:
        assert await listener.acknowledged() == list(task_ids)
        yield listener


# ------------------------------------------------------------------------------------------------ what is told


@covers("P70", "P72", "B01", "C05")
async def test_a_listener_is_told_of_every_change_on_whatever_server_it_listens(settings: Settings) -> None:
    """SEP-2663: each notification carries the full task, identical to what tasks/get would have returned."""
    async with house(settings, Tools()) as (home, client):
        elsewhere = await home.open()
        task_id = await client.start("ask_first")
        async with listened(home, elsewhere, task_id) as listener:
            assert await listener.task() == as_got(await client.state(task_id))
            await home.fleet.settle()
            [asked] = await listener.until("input_required")
            assert asked == as_got(await client.state(task_id))
            await client.update(task_id, dict.fromkeys(asked["inputRequests"], ACCEPT))
            [again] = await listener.until("working")
            assert again == as_got(await client.state(task_id))
            await home.fleet.settle()
            [ended] = await listener.until("completed")
            assert ended == as_got(await client.state(task_id))
            assert listener.status == 200


@covers("P70", "P72", "C05")
@pytest.mark.parametrize(
    ("tool", "status"),
    [
        *(("wait", "working"), ("ask_first", "input_required"), ("wrong", "completed"), ("broken", "failed")),
        *(("ask_first", "cancelled"), pytest.param("for_ever", "completed", marks=pytest.mark.unlimited)),
    ],
)
async def test_the_state_at_the_time_of_listening_is_told_once(settings: Settings, tool: str, status: str) -> None:
    """Ours: nothing is missed between the client's last look and its listening, whatever the task is by then."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start(tool)
        if tool != "wait":
            await home.fleet.settle()
        if status == "cancelled":
            await client.cancel(task_id)
        async with listened(home, client, task_id) as listener:
            told = await listener.task()
            assert told["status"] == status
            assert told == as_got(await client.state(task_id))
            marker = await client.start("wait")
            async with listened(home, client, marker) as other:
                await other.task()
            assert listener.silent()


@covers("P71")
async def test_progress_comes_as_a_status_and_no_other_notification_comes(settings: Settings) -> None:
    """SEP-2663: no notifications/progress and no notifications/message on a listener's stream, even if asked for."""
    tools = Tools()
    wishes = {"progressToken": "p", "io.modelcontextprotocol/logLevel": "debug"}
    async with house(settings, tools) as (home, client):
        task_id = await client.start("chat", meta=wishes)
        async with listened(home, client, task_id, meta=wishes) as listener, home.fleet.delivering():
            seen = await listener.task()
            while seen.get("statusMessage") != "first: 1 of 3 (33 %)":
                seen = await listener.task()
            tools.gate.opened.set()
            tools.second.opened.set()
            # `task` refuses whatever is no task.
            told = await listener.until("completed")
            assert {state["status"] for state in told} <= {"working", "completed"}


@covers("P70", "R4")
async def test_the_last_of_many_status_messages_is_told_and_an_end_does_not_wait(settings: Settings) -> None:
    """A tool that reports every row neither floods its listeners nor hides its end behind what may wait."""
    tools = Tools()
    slow = settings.model_copy(update={"push_progress_ms": 3_600_000})
    async with house(slow, tools) as (home, client):
        task_id = await client.start("chat")
        async with AsyncExitStack() as stack:
            listener = await stack.enter_async_context(listened(home, client, task_id))
            await listener.task()
            await stack.enter_async_context(home.fleet.delivering())
            await tools.gate.arrival()
            tools.gate.opened.set()
            await tools.second.arrival()
            await client.until(task_id, lambda state: state.get("statusMessage") == "last: 2 of 3 (66 %)")
            assert listener.silent(), "it was told of the task a moment ago, and may wait for an hour"
            tools.second.opened.set()
            [ended] = await listener.until("completed")
            assert ended["statusMessage"] == "last: 2 of 3 (66 %)"
    quick = settings.model_copy(update={"push_progress_ms": 1})
    async with house(quick, Tools()) as (home, client), home.fleet.delivering():
        task_id = await client.start("chat")
        async with listened(home, client, task_id) as listener:
            while (await listener.task()).get("statusMessage") != "first: 1 of 3 (33 %)":
                pass


# ------------------------------------------------------------------------------------------------ whose tasks


@covers("P70", "P80", "P60")
async def test_only_the_callers_own_tasks_are_acknowledged(settings: Settings, raw: redis.Redis) -> None:
    """SEP-2663: unknown, expired and foreign ids are left out of the acknowledgement, and nothing tells them apart."""
    async with house(settings, Tools(), auth=True, token="ann@app") as (home, ann):
        bob = ann.with_(token="bob@app")
        mine, second, theirs = await ann.start("wait"), await ann.start("wait"), await bob.start("wait")
        expired = await ann.start("wait")
        raw.delete(Keys(settings.prefix).task(expired))
        junk = ["", "x", "\ud83d", "*", mine + " ", "x" * 100_000]
        async with home.listen(ann, second, theirs, NOBODYS, expired, mine, mine, *junk) as listener:
            assert await listener.acknowledged() == [second, mine]
            assert {(await listener.task())["taskId"] for _ in range(2)} == {mine, second}
            await bob.cancel(theirs)
            await ann.cancel(mine)
            assert (await listener.task())["taskId"] == mine
            assert listener.silent()


@covers("P70")
async def test_a_stream_of_nobodys_tasks_is_acknowledged_as_empty_and_stays_silent(settings: Settings) -> None:
    """SEP-2663: the acknowledgement names what the server agreed to, "if any"; it is no error."""
    async with (
        house(settings, Tools()) as (home, client),
        listened(home, client) as nothing,
        home.listen(client, NOBODYS) as nobodys,
    ):
        assert await nobodys.acknowledged() == []
        assert nothing.silent() and nobodys.silent()


@covers("P70")
async def test_one_stream_takes_so_many_tasks_and_no_more(settings: Settings) -> None:
    """What a listener costs is bounded; the acknowledgement says which tasks have to be polled."""
    async with house(settings.model_copy(update={"listen_max": 2}), Tools()) as (home, client):
        ids = [await client.start("wait") for _ in range(3)]
        async with home.listen(client, *ids) as listener:
            assert await listener.acknowledged() == ids[:2]


@covers("P70")
async def test_one_server_takes_so_many_streams_and_no_more(settings: Settings) -> None:
    """Each costs a connection and a little memory; whoever is refused polls. A stream that ends makes room."""
    async with house(settings.model_copy(update={"listeners_max": 2}), Tools()) as (home, client):
        task_id = await client.start("wait")
        async with listened(home, client, task_id) as first, AsyncExitStack() as stack:
            await stack.enter_async_context(listened(home, client, task_id))
            async with home.listen(client, task_id) as refused:
                error = (await refused.message())["error"]
                assert error["code"] == -32603 and "2 listeners" in error["message"]
            await stack.aclose()
            async with listened(home, client, task_id) as next_one:
                assert await first.task() == await next_one.task()


@covers("P04", "C01")
async def test_listening_to_tasks_without_the_declaration_is_refused(settings: Settings) -> None:
    """SEP-2663: -32021 naming the extension, as for every other task method."""
    missing = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("wait")
        async with home.listen(client.undeclared(), task_id) as listener:
            error = (await listener.message())["error"]
            assert (listener.status, error["code"], error["data"]) == (400, -32021, missing)


@covers("P06")
async def test_older_clients_cannot_listen(settings: Settings) -> None:
    """The method does not exist in their protocol."""
    async with house(settings, Tools()) as (_, client):
        legacy = await LegacyClient(client.http).connect({"extensions": {TASKS: {}}})
        reply = await legacy.send("subscriptions/listen", {"notifications": {"taskIds": [NOBODYS]}})
        assert reply.error["code"] == -32601


@covers("P70")
@pytest.mark.parametrize("junk", [None, {}, "x", 7, [7], [[NOBODYS]], [None]])
async def test_task_ids_that_are_no_list_of_texts_are_invalid(settings: Settings, junk: Any) -> None:
    """-32602, as for any other parameter of the wrong kind."""
    async with house(settings, Tools()) as (_, client):
        reply = await client.send("subscriptions/listen", {"notifications": {"taskIds": junk}})
        assert (reply.status, reply.error["code"]) == (400, -32602)
        reply = await client.send(
            "subscriptions/listen", {"notifications": {"taskIds": [NOBODYS], "toolsListChanged": [7]}}
        )
        assert reply.error["code"] == -32602


# ------------------------------------------------------------------------------------------------ beside other kinds


@covers("P70")
async def test_tasks_and_the_kinds_of_the_core_share_a_stream(settings: Settings) -> None:
    """One acknowledgement for both; each kind is told."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("wait")
        async with home.listen(client, task_id, toolsListChanged=True) as listener:
            acknowledgement = await listener.message()
            assert acknowledgement["params"] == {
                "notifications": {"toolsListChanged": True, "taskIds": [task_id]},
                "_meta": {SUBSCRIPTION: 1},
            }
            assert (await listener.task())["status"] == "working"
            await client.call("more_tools")
            assert (await listener.message())["method"] == "notifications/tools/list_changed"
            await client.cancel(task_id)
            assert (await listener.task())["status"] == "cancelled"


async def test_a_server_without_subscriptions_of_its_own_still_tells_of_tasks(settings: Settings) -> None:
    """`MCPServer(subscriptions=False)`: what the SDK refuses stays refused."""
    async with house(settings, Tools()) as (home, _):
        tasks = Tasks(settings)
        mcp = MCPServer("bare", extensions=[tasks], subscriptions=False)
        Tools()(mcp, tasks)
        tasks.serve(mcp, home.fleet)
        client = await home.open_server(mcp, tasks)
        task_id = await client.start("wait")
        async with listened(home, client, task_id) as listener:
            assert (await listener.task())["taskId"] == task_id
        async with home.listen(client, task_id, toolsListChanged=True) as refused:
            assert (await refused.message())["error"]["code"] == -32601


# ------------------------------------------------------------------------------------------------ slow, broken, ended


@covers("P70")
async def test_a_listener_that_does_not_read_gets_the_newest_state_and_the_end(settings: Settings) -> None:
    """What it missed is not kept for it: the server holds ids of tasks, never a queue of states."""
    tools = Tools()
    quick = settings.model_copy(update={"push_progress_ms": 1})
    async with house(quick, tools) as (home, client):
        task_id = await client.start("chat")
        async with listened(home, client, task_id) as listener:
            await listener.task()
            listener.reading.clear()
            async with home.fleet.delivering():
                await tools.gate.arrival()
                tools.gate.opened.set()
                await tools.second.arrival()
                await client.until(task_id, lambda state: state.get("statusMessage") == "last: 2 of 3 (66 %)")
                tools.second.opened.set()
                await client.until(task_id, lambda state: state["status"] == "completed")
            listener.reading.set()
            told = await listener.until("completed")
            # One was on its way when it stopped reading; one more may have been in the server's hands.
            assert len(told) <= 3
            assert told[-1] == as_got(await client.state(task_id))
            assert listener.silent()


@covers("P70", "P72")
async def test_a_broken_subscription_to_the_store_costs_no_change(settings: Settings, peek: Peek) -> None:
    """What happened while the connection was broken is read from the record."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        first, second = await client.start("wait"), await client.start("wait")
        async with listened(home, client, first, second) as listener:
            await listener.task()
            await listener.task()
            for _ in range(5):
                peek.raw.client_kill_filter(_type="pubsub")
            await client.cancel(first)
            assert (await listener.until("cancelled"))[-1]["taskId"] == first
            await client.cancel(second)
            assert (await listener.until("cancelled"))[-1]["taskId"] == second


@covers("P70", "W10")
async def test_a_store_that_was_away_is_caught_up_with(tmp_path: Path) -> None:
    """The listeners' streams stay open over a restart of the store, and end up with the newest state."""
    with EmbeddedValkey(tmp_path) as valkey:
        settings = Settings(redis_url=valkey.url)
        async with house(settings, Tools()) as (home, client):
            task_id = await client.start("wait")
            async with listened(home, client, task_id) as listener:
                await listener.task()
                port = valkey.port
                valkey.stop()
                async with home.listen(client, task_id) as refused:
                    error = (await refused.message())["error"]
                    assert error["code"] == -32603 and "task store" in error["message"]
                with EmbeddedValkey(tmp_path, port):
                    await client.cancel(task_id)
                    assert (await listener.until("cancelled"))[-1] == as_got(await client.state(task_id))


@covers("P70")
async def test_a_task_that_cannot_be_read_stops_none_of_the_others(settings: Settings, peek: Peek) -> None:
    """W9: a record of a newer version is never misread; it is as silent as it would be an error in tasks/get."""
    async with house(settings, Tools()) as (home, client):
        newer, mine = await client.start("wait"), await client.start("wait")
        peek.put(newer, v="99")
        async with home.listen(client, newer, mine) as listener:
            assert await listener.acknowledged() == [newer, mine]
            assert (await listener.task())["taskId"] == mine
            await client.cancel(mine)
            assert (await listener.task())["status"] == "cancelled"


async def test_a_stream_on_which_nothing_more_can_be_told_ends(
    settings: Settings, peek: Peek, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of ours, or a damaged record: the client is to poll, where it gets an error it can see."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("wait")
        async with listened(home, client, task_id) as listener:
            await listener.task()
            peek.put(task_id, status="nonsense")
            peek.raw.publish(peek.keys.task(task_id), "999")
            assert (await listener.message())["result"]["resultType"] == "complete"
        assert "told no more" in caplog.text and task_id not in caplog.text


@covers("P80")
async def test_a_stream_ends_with_the_token_that_opened_it(settings: Settings) -> None:
    """Who was let in until then is let in no longer; the client asks again with a fresh one."""
    until = int(time.time()) + 2
    async with house(settings, Tools(), auth=True, token=f"ann#until={until}") as (home, client):
        task_id = await client.with_(token="ann").start("wait")
        async with listened(home, client, task_id) as listener:
            await listener.task()
            final = await listener.message()
            assert time.time() >= until
            assert final["result"] == {"resultType": "complete", "_meta": {SUBSCRIPTION: 1}}


async def test_a_server_that_goes_down_ends_its_streams_in_order(settings: Settings) -> None:
    """SEP-2575: the result of the request is the graceful end. None that comes later keeps the server up."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("wait")
        async with (
            listened(home, client, task_id) as alone,
            home.listen(client, task_id, toolsListChanged=True) as both,
        ):
            await alone.task()
            await both.message()
            await both.task()
            home.tasks.closing.begin()
            finals = [await alone.message(), await both.message()]
            async with home.listen(client, task_id) as late:
                finals.append(await late.message())
            assert [final["result"]["_meta"] for final in finals] == [{SUBSCRIPTION: 1}] * 3


async def test_a_listener_that_left_leaves_nothing_behind(settings: Settings, peek: Peek) -> None:
    """Its channels are given back, and with the last one the connection."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("wait")

        async def worker_hears() -> bool:
            return peek.raw.pubsub_numsub(peek.keys.wakes)[0][1] == 1

        await eventually(worker_hears, description="the worker's own subscription is there")
        async with listened(home, client, task_id) as listener:
            await listener.task()
            assert len(peek.raw.client_list(_type="pubsub")) == 2

        async def gone() -> bool:
            return len(peek.raw.client_list(_type="pubsub")) == 1

        await eventually(gone, description="the subscription is given back")


# ------------------------------------------------------------------------------------------------ many


@covers("P70")
async def test_two_thousand_listeners_cost_the_store_a_handful_of_connections(settings: Settings, peek: Peek) -> None:
    """Issue 4: 2,000 listened tasks on one server process: connections to the store grow by at most 5."""
    async with house(settings, Tools()) as (home, client), AsyncExitStack() as stack:
        store = home.tasks._store  # pyright: ignore[reportPrivateUsage]
        ids = [await queued(store, owner="") for _ in range(2_000)]
        await client.state(ids[0])
        before = len(peek.raw.client_list())
        listeners = [await stack.enter_async_context(listened(home, client, task_id)) for task_id in ids[:1_000]]
        many = await stack.enter_async_context(listened(home, client, *ids[1_000:]))
        assert [(await listener.task())["taskId"] for listener in listeners] == ids[:1_000]
        assert {(await many.task())["taskId"] for _ in range(1_000)} == set(ids[1_000:])
        assert len(peek.raw.client_list()) - before <= 5
        for task_id in ids[::100]:
            await store.cancel(task_id, "", "No")
        for listener in listeners[::100]:
            assert (await listener.task())["status"] == "cancelled"
        assert {(await many.task())["taskId"] for _ in range(10)} == set(ids[1_000::100])
        assert len(peek.raw.client_list()) - before <= 5
