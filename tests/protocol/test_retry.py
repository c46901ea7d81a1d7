"""A tool that asks to be run again later (N4): what its client sees meanwhile and in the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated, Any, Final

import pytest
import redis
from mcp.server.mcpserver import Context, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitRequest, ElicitRequestFormParams, InputRequiredResult, TextContent

from mcptasks import Retry, Tasks, cancelled, step
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import Gate, House, house
from tests.support.tools import Word, which_word
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

ACCEPT: Final = {"action": "accept", "content": {"word": "yes"}}
#: Longer than any test, so that only moved time passes.
DELAYS: Final = (3_000, 5_000)
SHUT: Final[dict[str, Any]] = {"code": -32050, "message": "The shop is shut", "data": {"until": ["noon", 12]}}


class Tools:
    """Tools that count their runs, and ask for another one until `good` of them have failed."""

    def __init__(self, good: int = 2) -> None:
        self.good = good
        self.runs: Counter[str] = Counter()
        self.charges = 0
        self.gate = Gate()

    def busy(self, name: str, error: MCPError | None = None) -> None:
        """Raises, unless it was called often enough."""
        self.runs[name] += 1
        if self.runs[name] <= self.good:
            raise Retry(f"Busy for the {self.runs[name]}. time", error=error)

    async def charge(self) -> int:
        """Must happen once."""
        self.charges += 1
        return self.charges

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        durable = tasks.durable(retry=[delay / 1000 for delay in DELAYS], max_attempts=2)

        @mcp.tool()
        @durable
        async def in_async() -> str:
            await asyncio.sleep(0)
            self.busy("in_async")
            return "done"

        @mcp.tool()
        @durable
        def in_sync() -> str:
            self.busy("in_sync")
            return "done"

        @mcp.tool()
        @durable
        async def shut() -> str:
            self.busy("shut", MCPError(SHUT["code"], SHUT["message"], SHUT["data"]))
            return "done"

        @mcp.tool()
        @tasks.durable()
        async def no_list() -> str:
            self.busy("no_list")
            return "done"

        @mcp.tool(structured_output=False)
        @durable
        async def caught(then: str) -> Any:
            try:
                self.busy("caught")
            except Retry as exc:
                match then:
                    case "fine":
                        return "fine"
                    case "error":
                        raise ToolError(f"gave up: {exc}") from exc
                    case "result":
                        text = TextContent(type="text", text=f"gave up: {exc}")
                        return CallToolResult(content=[text], is_error=True)
                    case _:
                        raise LookupError(then) from exc

        @mcp.tool()
        @durable
        async def odd() -> str:
            self.runs["odd"] += 1
            raise Retry("half a \ud83d", error=None)

        @mcp.tool()
        @durable
        async def by_asking(ctx: Context) -> str:
            receipt = await step("charge", self.charge)
            answer = await ctx.elicit("Which word?", Word)
            assert answer.action == "accept"
            self.busy("by_asking")
            return f"{answer.data.word} for {receipt}"

        @mcp.tool()
        @durable
        async def by_resolver(word: Annotated[Word, Resolve(which_word)]) -> str:
            receipt = await step("charge", self.charge)
            self.busy("by_resolver")
            return f"{word.word} for {receipt}"

        @mcp.tool(structured_output=False)
        @durable
        async def by_returning(ctx: Context) -> CallToolResult | InputRequiredResult:
            receipt = await step("charge", self.charge)
            responses = ctx.input_responses or {}
            if "word" not in responses:
                form = ElicitRequestFormParams(message="Which word?", requested_schema=Word.model_json_schema())
                return InputRequiredResult(input_requests={"word": ElicitRequest(params=form)}, request_state="s")
            self.busy("by_returning")
            word = (getattr(responses["word"], "content", None) or {})["word"]
            return CallToolResult(content=[TextContent(type="text", text=f"{word} for {receipt}")])

        @mcp.tool()
        @durable
        async def stands(ctx: Context) -> str:
            self.runs["stands"] += 1
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                raise Retry("Not now") from None
            raise Retry("Busy")

        @mcp.tool()
        @durable
        def looks() -> str:
            self.runs["looks"] += 1
            self.gate.reached.set()
            while not cancelled():
                pass
            raise Retry("Not now")


def key(settings: Settings, task_id: str) -> str:
    """The record's key."""
    return f"{settings.prefix}task:{{{task_id}}}"


async def again(home: House, raw: redis.Redis, task_id: str) -> str:
    """The retry is due and its message is delivered; the word of the run."""
    [message] = home.fleet.rechecks
    home.fleet.rechecks.clear()
    raw.hset(key(home.settings, task_id), "due", "1")
    return await home.fleet.deliver(message)


def text(state: dict[str, Any]) -> str:
    """The text of a completed task's result."""
    return state["result"]["content"][0]["text"]


@covers("N4", "P12")
@pytest.mark.parametrize("tool", ["in_async", "in_sync"])
async def test_a_task_that_waits_for_its_retry_is_working_and_says_why(
    settings: Settings, raw: redis.Redis, tool: str
) -> None:
    """N4: on the wire there is no status for it; the tool's message is the status message, in sync tools, too."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start(tool)
        assert await home.fleet.deliver() == "retrying"
        for run in (1, 2):
            state = await client.state(task_id)
            assert (state["status"], state["statusMessage"]) == ("working", f"Busy for the {run}. time")
            assert not {"result", "error", "inputRequests"} & state.keys()
            assert [message.countdown_ms for message in home.fleet.rechecks] == [DELAYS[run - 1]]
            assert await again(home, raw, task_id) == ("retrying" if run == 1 else "completed")
        state = await client.state(task_id)
        assert (state["status"], text(state), tools.runs[tool]) == ("completed", "done", 3)
        assert raw.hget(key(settings, task_id), "attempt") == "1"


@covers("N4")
async def test_a_message_that_comes_too_early_runs_nothing(settings: Settings, raw: redis.Redis) -> None:
    """N4: never early, whoever's clock counted it down; it is sent again for the rest of the time."""
    tools = Tools(good=1)
    async with house(settings, tools) as (home, client):
        task_id = await client.start("in_async")
        await home.fleet.deliver()
        before = raw.hgetall(key(settings, task_id))
        early = home.fleet.rechecks.pop()
        assert await home.fleet.deliver(early) == "retrying"
        assert (tools.runs["in_async"], raw.hgetall(key(settings, task_id))) == (1, before)
        assert 0 < home.fleet.rechecks[0].countdown_ms <= early.countdown_ms
        assert await again(home, raw, task_id) == "completed"


@covers("N4", "A03")
async def test_a_retry_whose_message_was_lost_comes_from_the_sweeper(settings: Settings, raw: redis.Redis) -> None:
    """N4: a scheduled retry survives restarts, because the store has its time."""
    async with house(settings, Tools(good=1)) as (home, client):
        task_id = await client.start("in_async")
        await home.fleet.deliver()
        home.fleet.rechecks.clear()
        await home.fleet.sweep()
        assert home.fleet.messages == []
        raw.hset(key(settings, task_id), "due", "1")
        raw.zadd(f"{settings.prefix}unsent", {task_id: 1})
        await home.fleet.sweep()
        await home.fleet.settle()
        assert (await client.state(task_id))["status"] == "completed"


# ------------------------------------------------------------------------------------------------ the end


@covers("N4", "P31")
@pytest.mark.parametrize(
    ("tool", "error"),
    [("shut", SHUT), ("in_async", {"code": -32603, "message": "Busy for the 3. time"})],
)
async def test_when_no_retry_is_left_the_task_fails_with_the_tools_error(
    settings: Settings, raw: redis.Redis, tool: str, error: dict[str, Any]
) -> None:
    """N4: code, message and data as the tool gave them, or its message as an internal error."""
    tools = Tools(good=9)
    async with house(settings, tools) as (home, client):
        task_id = await client.start(tool)
        words = [await home.fleet.deliver(), await again(home, raw, task_id), await again(home, raw, task_id)]
        assert words == ["retrying", "retrying", "failed"]
        state = await client.state(task_id)
        assert (state["status"], state["error"]) == ("failed", error)
        assert state["statusMessage"] == "Busy for the 3. time"
        assert (home.fleet.messages, home.fleet.rechecks, tools.runs[tool]) == ([], [], 3)
        assert raw.hget(key(settings, task_id), "reason") == "retries_exhausted"


@covers("N4")
async def test_without_a_list_the_first_wish_fails_the_task(settings: Settings) -> None:
    """N4: there is nothing to wait for."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("no_list")
        assert await home.fleet.deliver() == "failed"
        state = await client.state(task_id)
        assert state["error"] == {"code": -32603, "message": "Busy for the 1. time"}


@covers("F03")
async def test_half_an_emoji_in_the_wish_costs_one_character(settings: Settings, raw: redis.Redis) -> None:
    """F03: exceptions name files that no encoding fits; neither the waiting nor the failed task is unreadable."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("odd")
        assert await home.fleet.deliver() == "retrying"
        assert (await client.state(task_id))["statusMessage"] == "half a \ufffd"
        assert [await again(home, raw, task_id) for _ in DELAYS] == ["retrying", "failed"]
        assert (await client.state(task_id))["error"]["message"] == "half a \ufffd"


# ------------------------------------------------------------------------------------------------ no wish


@covers("N4", "P31")
async def test_in_a_live_call_it_is_an_ordinary_tool_error(settings: Settings) -> None:
    """N4: nobody could run it again."""
    async with house(settings, Tools()) as (home, _):
        result = (await (await home.open_ordinary()).call("in_async")).result
        assert (result["resultType"], result["isError"]) == ("complete", True)
        assert result["content"] == [{"type": "text", "text": "Error executing tool in_async: Busy for the 1. time"}]


@covers("N4", "P31")
@pytest.mark.parametrize(
    ("then", "is_error", "says"),
    [
        ("fine", False, "fine"),
        ("error", True, "Error executing tool caught: gave up: Busy for the 1. time"),
        ("result", True, "gave up: Busy for the 1. time"),
        ("crash", True, "Error executing tool caught"),
    ],
)
async def test_a_wish_that_the_tool_caught_itself_changes_nothing(
    settings: Settings, then: str, is_error: bool, says: str
) -> None:
    """Only what leaves the tool counts; what it says afterwards is its result."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("caught", {"then": then})
        assert await home.fleet.deliver() == "completed"
        state = await client.state(task_id)
        assert (text(state), state["result"]["isError"], state["status"]) == (says, is_error, "completed")


# ------------------------------------------------------------------------------------------------ what is kept


@covers("N4", "E10", "N8")
@pytest.mark.parametrize("tool", ["by_asking", "by_resolver", "by_returning"])
async def test_a_person_who_answered_once_is_not_asked_again(settings: Settings, raw: redis.Redis, tool: str) -> None:
    """E10: the answer and the step belong to the task until it ends, in each of the ways to ask."""
    tools = Tools(good=2)
    async with house(settings, tools) as (home, client):
        task_id = await client.start(tool)
        await home.fleet.settle()
        questions = (await client.state(task_id))["inputRequests"]
        await client.update(task_id, dict.fromkeys(questions, ACCEPT))
        home.fleet.rechecks.clear()
        assert await home.fleet.deliver() == "retrying"
        for word in ("retrying", "completed"):
            state = await client.state(task_id)
            assert (state["status"], "inputRequests" in state) == ("working", False)
            assert await again(home, raw, task_id) == word
        assert text(await client.state(task_id)) == "yes for 1"
        assert (tools.runs[tool], tools.charges, len(questions)) == (3, 1, 1)


async def lose(home: House, raw: redis.Redis, task_id: str) -> None:
    """The worker that runs the task is taken for dead."""
    raw.zadd(f"{home.settings.prefix}leases", {task_id: 1})
    await home.fleet.sweep()
    assert len(home.fleet.messages) == 1


@covers("N4", "W3")
async def test_a_lost_worker_uses_up_no_retry_and_a_retry_no_attempt(settings: Settings, raw: redis.Redis) -> None:
    """N4: crashes do not consume the list: after one, both delays are still there, and the attempt is the second."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("stands")
        run = home.fleet.begin()
        await tools.gate.arrival()
        await lose(home, raw, task_id)
        assert await run == "lost"
        tools.gate.opened.set()
        assert await home.fleet.deliver() == "retrying"
        assert [await again(home, raw, task_id) for _ in DELAYS] == ["retrying", "failed"]
        assert raw.hmget(key(settings, task_id), "attempt", "retries", "reason") == ["2", "2", "retries_exhausted"]
        assert tools.runs["stands"] == 4


@covers("N4", "P50", "P52")
async def test_a_cancel_ends_a_task_that_waits_for_its_retry_at_once(settings: Settings) -> None:
    """P52: it has no worker; the message that is still under way finds the end."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("in_async")
        await home.fleet.deliver()
        assert (await client.cancel(task_id)).result == {"resultType": "complete"}
        state = await client.state(task_id)
        assert (state["status"], state["statusMessage"]) == ("cancelled", "Cancelled by the client")
        assert await home.fleet.deliver(home.fleet.rechecks.pop()) == "terminal"
        assert tools.runs["in_async"] == 1


@covers("N4", "P50", "P51")
@pytest.mark.parametrize("tool", ["stands", "looks"])
async def test_a_tool_that_answers_its_cancel_with_a_wish_is_cancelled(settings: Settings, tool: str) -> None:
    """Invariant 6: an acknowledged cancel is not put off; the list is not asked."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start(tool)
        run = home.fleet.begin()
        await tools.gate.arrival()
        await client.cancel(task_id)
        assert await run == "cancelled"
        assert (await client.state(task_id))["status"] == "cancelled"
        assert (home.fleet.rechecks, tools.runs[tool]) == ([], 1)


@covers("N4", "P20")
async def test_a_waiting_retry_is_seen_through_any_server_and_outlives_its_own(
    settings: Settings, raw: redis.Redis
) -> None:
    """N4: persisted with the task."""
    async with house(settings, Tools(good=1)) as (home, client):
        task_id = await client.start("in_async")
        await home.fleet.deliver()
        before = await client.get(task_id)
        await home.kill(client)
        other = await home.open()
        assert await other.get(task_id) == before
        assert await again(home, raw, task_id) == "completed"

        async def done() -> bool:
            return (await other.state(task_id))["status"] == "completed"

        await eventually(done, description="the other server has the end")
