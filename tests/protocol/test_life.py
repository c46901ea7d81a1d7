"""A task from its creation to its removal (SEP-2663: statuses, results, time to live), driven message by message."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any, Final

import anyio
import pytest
import redis
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel

import mcptasks
from mcptasks import Tasks
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import Gate, house
from tests.support.tools import ask_both, ask_first
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

ACCEPT: Final = {"action": "accept", "content": {"word": "x"}}

#: What connecting costs at the store; the lease keeper may do it at any time.
HANDSHAKE: Final = {"cmdstat_hello", "cmdstat_client|setinfo", "cmdstat_subscribe"}


class Weather(BaseModel):
    """A structured result."""

    city: str
    degrees: float
    notes: list[str | None] = []


class Tools:
    """Tools of several kinds, and one that stands at a gate twice."""

    def __init__(self) -> None:
        self.first, self.second = Gate(), Gate()
        self.cancelled = asyncio.Event()

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        @mcp.tool()
        @tasks.durable()
        async def steps(ctx: Context) -> str:
            await self.first.wait()
            await ctx.report_progress(1, 2, "half")
            await self.second.wait()
            return "done"

        @mcp.tool()
        @tasks.durable()
        async def interruptible() -> str:
            try:
                await self.first.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "done"

        @mcp.tool()
        @tasks.durable(unlimited=True)
        async def unlimited() -> str:
            return "done"

        @mcp.tool()
        @tasks.durable()
        async def weather(city: str) -> Weather:
            return Weather(city=city, degrees=21.5, notes=["dry", None])

        @mcp.tool()
        @tasks.durable()
        def in_a_thread(n: int) -> list[int]:
            return list(range(n))

        @mcp.tool()
        @tasks.durable()
        async def raw_result() -> CallToolResult:
            return CallToolResult(
                content=[TextContent(type="text", text="no")],
                structured_content={"why": {"deep": None}},
                is_error=True,
                _meta={"vendor/key": 1},
            )

        @mcp.tool()
        @tasks.durable()
        async def refuses() -> str:
            raise ToolError("not today")

        @mcp.tool()
        @tasks.durable()
        async def crashes() -> str:
            raise LookupError("secret of the crash")

        @mcp.tool()
        @tasks.durable()
        async def breaks_protocol() -> str:
            raise MCPError(-32050, "not like this", {"field": "x", "empty": None})

        @mcp.tool()
        @tasks.durable()
        async def who(ctx: Context) -> dict[str, Any]:
            token = get_access_token()
            return {
                "request": ctx.request_id,
                "subject": None if token is None else token.subject,
                "token": None if token is None else token.token,
                "tenant": (ctx.headers or {}).get("x-tenant"),
                "authorization": (ctx.headers or {}).get("authorization"),
            }

        for asks in (ask_first, ask_both):
            mcp.tool()(tasks.durable()(asks))


def redis_key(settings: Settings, task_id: str) -> str:
    """The record's key."""
    return f"{settings.prefix}task:{{{task_id}}}"


def moment(text: str) -> int:
    """Unix milliseconds of a time on the wire."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


async def a_millisecond_later(raw: redis.Redis, state: dict[str, Any]) -> None:
    """The store's clock has gone past the task's last update, so that another one would be seen."""

    async def passed() -> bool:
        seconds, micros = raw.time()
        return seconds * 1000 + micros // 1000 > moment(state["lastUpdatedAt"])

    await eventually(passed, description="the clock moved on")


@covers("P30", "P35", "R4")
async def test_last_updated_moves_exactly_when_a_client_could_see_a_difference(
    settings: Settings, raw: redis.Redis
) -> None:
    """SEP-2663: working stays working when a worker takes the task, and reading is no update; progress and end are."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("steps")
        created = await client.state(task_id)
        await a_millisecond_later(raw, created)
        run = home.fleet.begin()
        await tools.first.arrival()
        assert created == await client.state(task_id)

        tools.first.opened.set()
        half = await client.until(task_id, lambda state: state.get("statusMessage") == "half: 1 of 2 (50 %)")
        assert half["status"] == "working" and half["lastUpdatedAt"] > created["lastUpdatedAt"]
        await a_millisecond_later(raw, half)
        assert half == await client.state(task_id)

        tools.second.opened.set()
        await run
        assert (await client.state(task_id))["lastUpdatedAt"] > half["lastUpdatedAt"]


@covers("P35", "P33")
async def test_reading_writes_nothing(settings: Settings, raw: redis.Redis) -> None:
    """Ours: one script that only reads, in every phase; no time to live is refreshed by whoever polls most."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("ask_first")
        for _ in range(2):
            await client.state(task_id)  # connected
            record, gone = raw.hgetall(redis_key(settings, task_id)), raw.pexpiretime(redis_key(settings, task_id))
            raw.config_resetstat()
            for _ in range(3):
                await client.state(task_id)
            used = raw.info("commandstats").keys() - {"cmdstat_config|resetstat", "cmdstat_info", "cmdstat_ping"}
            assert used <= {f"cmdstat_{name}" for name in ("evalsha", "time", "hget", "hgetall", "get")} | {*HANDSHAKE}
            assert raw.hgetall(redis_key(settings, task_id)) == record
            assert raw.pexpiretime(redis_key(settings, task_id)) == gone
            await home.fleet.settle()


@covers("P30", "P34", "P35")
async def test_a_task_goes_to_its_client_and_back_to_work(settings: Settings, raw: redis.Redis) -> None:
    """SEP-2663: working, input_required, working, and an end; a partial answer is a difference, an ignored one is not.

    The poll interval is longer while a person is waited for.
    """
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("ask_both")
        states = [await client.state(task_id)]

        async def next_state() -> dict[str, Any]:
            await a_millisecond_later(raw, states[-1])
            return states[-1]

        await next_state()
        await home.fleet.settle()
        states.append(await client.state(task_id))
        left, right = states[-1]["inputRequests"]

        await next_state()
        await client.update(task_id, {"unknown": ACCEPT})
        assert states[-1] == await client.state(task_id)
        await client.update(task_id, {left: ACCEPT})
        states.append(await client.state(task_id))

        await next_state()
        await client.update(task_id, {right: ACCEPT})
        states.append(await client.state(task_id))

        await next_state()
        await home.fleet.settle()
        states.append(await client.state(task_id))

        statuses = [state["status"] for state in states]
        assert statuses == ["working", "input_required", "input_required", "working", "completed"]
        updates = [state["lastUpdatedAt"] for state in states]
        assert updates == sorted(set(updates))
        polls = [state["pollIntervalMs"] for state in states]
        assert polls == [
            settings.poll_ms,
            settings.poll_parked_ms,
            settings.poll_parked_ms,
            settings.poll_ms,
            polls[-1],
        ]
        assert settings.poll_parked_ms > settings.poll_ms


@covers("P31", "P32", "C03")
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("weather", {"city": "Ulm"}),
        ("in_a_thread", {"n": 3}),
        ("in_a_thread", {"n": 0}),
        ("raw_result", {}),
        ("refuses", {}),
        ("crashes", {}),
    ],
)
async def test_the_result_is_what_the_live_call_would_have_returned(
    settings: Settings, tool: str, arguments: dict[str, Any]
) -> None:
    """SEP-2663: byte for byte, errors of the tool included: those are results, and their task is completed."""
    async with house(settings, Tools()) as (home, client):
        live = (await (await home.open_ordinary()).call(tool, arguments)).raw
        task_id = await client.start(tool, arguments)
        await home.fleet.settle()
        reply = await client.get(task_id)

        assert reply.result["status"] == "completed"
        stamp = b'"io.modelcontextprotocol/serverInfo":{"name":"house","version":""}'
        bare = live.replace(b"," + stamp, b"").replace(b',"_meta":{' + stamp + b"}", b"")
        assert bare.removeprefix(b'{"jsonrpc":"2.0","id":1,"result":').removesuffix(b"}") in reply.raw
        assert b"secret" not in reply.raw


@covers("P31", "C03")
async def test_a_protocol_error_fails_the_task_with_its_own_code(settings: Settings) -> None:
    """SEP-2663: `failed` is for JSON-RPC errors: code, message and data as the live call's, and no result."""
    async with house(settings, Tools()) as (home, client):
        live = (await (await home.open_ordinary()).call("breaks_protocol")).error
        task_id = await client.start("breaks_protocol")
        await home.fleet.settle()
        state = await client.state(task_id)

        assert (state["status"], state["error"], state["statusMessage"]) == ("failed", live, "not like this")
        assert live == {"code": -32050, "message": "not like this", "data": {"field": "x", "empty": None}}
        assert "result" not in state


@covers("P30", "N5", "C06")
@pytest.mark.parametrize(
    ("tool", "end"), [("weather", "completed"), ("breaks_protocol", "failed"), ("weather", "cancelled")]
)
async def test_nothing_leaves_a_terminal_status(settings: Settings, raw: redis.Redis, tool: str, end: str) -> None:
    """SEP-2663: cancels, answers, a message delivered again and the sweep are acknowledged and change no byte."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start(tool, {"city": "Ulm"} if tool == "weather" else {})
        [message] = home.fleet.messages
        if end == "cancelled":
            await client.cancel(task_id)
        await home.fleet.settle()
        before = await client.get(task_id)
        assert before.result["status"] == end
        await a_millisecond_later(raw, before.result)

        for _ in range(3):
            assert (await client.cancel(task_id)).result == {"resultType": "complete"}
            assert (await client.update(task_id, {"key": ACCEPT})).result == {"resultType": "complete"}
            assert await home.fleet.deliver(message) == "terminal"
            await home.fleet.sweep()
            assert before == await client.get(task_id)


@covers("N5", "N6", "A01")
async def test_a_message_delivered_twice_runs_the_tool_once(settings: Settings) -> None:
    """Ours: a broker delivers at least once; the store lets one run, and drops late ones by their run number."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("steps")
        [message] = home.fleet.messages
        run = home.fleet.begin()
        await tools.first.arrival()

        assert [await home.fleet.deliver(message) for _ in range(3)] == ["held"] * 3
        tools.first.opened.set()
        tools.second.opened.set()
        assert await run == "completed"
        assert tools.first.arrivals == 1
        assert (await client.state(task_id))["status"] == "completed"


@covers("A03")
async def test_a_message_that_vanished_is_sent_again(settings: Settings) -> None:
    """Ours: the record says that nobody claimed it, and the sweeper sends another message."""
    quick = settings.model_copy(update={"resend_ms": 20})
    async with house(quick, Tools()) as (home, client):
        task_id = await client.start("weather", {"city": "Ulm"})
        home.fleet.messages.clear()

        async def sent_again() -> bool:
            await home.fleet.sweep()
            return bool(home.fleet.messages)

        await eventually(sent_again, description="the sweeper has sent it")
        await home.fleet.settle()
        assert (await client.state(task_id))["status"] == "completed"


@covers("P33", "R7", "C13")
async def test_a_task_is_kept_for_its_ttl_and_after_its_end_for_another_one(
    settings: Settings, raw: redis.Redis
) -> None:
    """SEP-2663: readable for its ttlMs counted from creation. Ours: an ended task for one more ttl from its end."""
    async with house(settings, Tools()) as (home, client):
        created = (await client.call("weather", {"city": "Ulm"})).result
        key = redis_key(settings, created["taskId"])
        assert raw.pexpiretime(key) > moment(created["createdAt"]) + 2 * created["ttlMs"]

        await home.fleet.settle()
        ended = await client.state(created["taskId"])
        assert raw.pexpiretime(key) == moment(ended["lastUpdatedAt"]) + ended["ttlMs"]
        assert timedelta(milliseconds=ended["ttlMs"]) == timedelta(hours=24)


@covers("P33", "R7", "P60", "A16", "C13")
@pytest.mark.parametrize("phase", ["queued", "running", "parked"])
async def test_an_overdue_task_fails_as_expired_and_is_gone_a_ttl_later(
    settings: Settings, raw: redis.Redis, phase: str
) -> None:
    """Ours: past its ttl an unfinished task is failed, its run is told to stop; a ttl later nothing is left of it."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("ask_first" if phase == "parked" else "interruptible")
        run = None if phase == "queued" else home.fleet.begin()
        if run is not None and phase == "running":
            await tools.first.arrival()
        elif run is not None:
            await run
        before = await client.get(task_id)
        await home.fleet.sweep()
        assert before == await client.get(task_id)

        raw.hset(redis_key(settings, task_id), "expires", "1")  # its time is up, without waiting for it
        raw.zadd(f"{settings.prefix}expiry", {task_id: 1})
        await home.fleet.sweep()
        state = await client.state(task_id)
        assert (state["status"], state["error"]["code"]) == ("failed", -32603)
        assert "expired" in state["error"]["message"] and "expired" in state["statusMessage"]
        assert "inputRequests" not in state
        assert raw.hget(redis_key(settings, task_id), "reason") == "expired"
        if run is not None and phase == "running":
            assert await run == "lost"
            assert tools.cancelled.is_set()

        gone = moment(state["lastUpdatedAt"]) + state["ttlMs"]
        keys = [key for key in raw.scan_iter(f"{settings.prefix}*") if task_id in key]
        assert keys and {raw.pexpiretime(key) for key in keys} == {gone}
        raw.delete(*keys)
        for reply in (await client.get(task_id), await client.update(task_id, {}), await client.cancel(task_id)):
            assert reply.error["code"] == -32602


@covers("P33", "R1")
@pytest.mark.unlimited
async def test_an_unlimited_task_is_never_removed_by_time(settings: Settings, raw: redis.Redis) -> None:
    """SEP-2663: ttlMs null is for ever; no key of it has an expiry, before or after its end."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("unlimited")
        for _ in range(2):
            keys = list(raw.scan_iter(f"{redis_key(settings, task_id)}*"))
            assert keys and {raw.pttl(key) for key in keys} == {-1}
            await home.fleet.settle()
            await home.fleet.sweep()
        assert (await client.state(task_id))["status"] == "completed"


@covers("W1", "P20")
async def test_a_task_outlives_the_server_that_made_it(settings: Settings) -> None:
    """Ours: what a client reads of an ended task does not depend on who answers, to the byte."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("weather", {"city": "Ulm"})
        await home.fleet.settle()
        before = await client.get(task_id)
        await home.kill(client)

        assert before == await (await home.open()).get(task_id)


@covers("R8", "N3", "N9", "B08")
async def test_the_tool_knows_who_called_although_the_request_is_gone(settings: Settings) -> None:
    """Ours: request id, caller and the listed headers are kept for the run; the token and other headers are not."""
    keeping = settings.model_copy(update={"headers": ("x-tenant",)})
    async with house(keeping, Tools(), auth=True, token="alice") as (home, client):
        task_id = await client.start("who", headers={"X-Tenant": "north"})
        await home.kill(client)
        await home.fleet.settle()

        state = await (await home.open(token="alice")).state(task_id)
        assert state["result"]["structuredContent"] == {
            "request": "1",
            "subject": "alice",
            "token": "",
            "tenant": "north",
            "authorization": None,
        }


@covers("W9")
async def test_a_record_of_a_newer_version_is_refused_and_left_alone(settings: Settings, raw: redis.Redis) -> None:
    """Ours: an older server or worker says that it must be upgraded, and neither misreads nor rewrites the record."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("weather", {"city": "Ulm"})
        key = redis_key(settings, task_id)
        raw.hset(key, "v", "99")
        record = raw.hgetall(key)

        for reply in (await client.get(task_id), await client.update(task_id, {"k": ACCEPT})):
            assert reply.error["code"] == -32603 and "newer" in reply.error["message"]
            assert task_id.encode() not in reply.raw
        assert await home.fleet.deliver() == "newer"
        assert record == raw.hgetall(key)


@covers("N7", "R9")
async def test_a_worker_that_goes_down_in_the_middle_gives_its_task_back(settings: Settings) -> None:
    """Ours: the run is released, another worker starts it again from the top; what a step recorded is not repeated."""
    gate, runs = Gate(), list[str]()

    def tools(mcp: MCPServer, tasks: Tasks) -> None:
        @mcp.tool()
        @tasks.durable()
        async def two_parts() -> str:
            runs.append("start")
            await mcptasks.step("first", lambda: runs.append("first"))
            await gate.wait()
            return "done"

    async with house(settings, tools) as (home, client):
        task_id = await client.start("two_parts")
        run = home.fleet.begin()
        await gate.arrival()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

        assert (await client.state(task_id))["status"] == "working"
        gate.opened.set()
        with anyio.fail_after(30):
            await home.fleet.settle()
        assert (await client.state(task_id))["status"] == "completed"
        assert runs == ["start", "first", "start"]
