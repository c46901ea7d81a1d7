"""A client of an older protocol calls a durable tool: its questions come live on its connection, as they always did.

Over JSON responses there is nothing a question could travel on; there the tool hears what it hears in a live call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult, ErrorData, LoggingMessageNotificationParams

from mcptasks import Operations, Tasks
from mcptasks.errors import StoreUnavailable
from mcptasks.server import refusals
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.house import Gate, house, ordinary
from tests.support.person import person
from tests.support.raw_client import LegacyClient, RawClient
from tests.support.tools import Word, ask_both, ask_by_resolver, ask_by_returning, ask_first
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:The (roots|sampling|logging) capability is deprecated"),
]


class Tools:
    """Tools that ask, and one that stands still until the test lets it go on."""

    def __init__(self) -> None:
        self.gate = Gate()

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        for asks in (ask_first, ask_both, ask_by_resolver, ask_by_returning):
            mcp.tool(name=asks.__name__)(tasks.durable()(asks))

        @mcp.tool()
        @tasks.durable()
        async def stands(ctx: Context) -> str:
            await ctx.report_progress(1, 3, "stands")
            await self.gate.wait()
            return "stood"

        @mcp.tool()
        @tasks.durable()
        async def talks(ctx: Context) -> str:
            await ctx.info("a log line")  # pyright: ignore[reportDeprecated] - tools still do
            return "said"

        @mcp.tool()
        @tasks.durable()
        async def asks_if_it_can(ctx: Context) -> str:
            try:
                return (await ctx.elicit("Which word?", Word)).action
            except MCPError as exc:
                return f"went on without: {exc.error.message}"


class Desk:
    """A person in front of the client: questions pile up until they are answered."""

    def __init__(self) -> None:
        self.open: dict[str, asyncio.Future[ElicitResult | ErrorData]] = {}
        #: Texts of questions that were taken back.
        self.withdrawn: list[str] = []

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """The question lies here."""
        self.open[params.message] = asyncio.get_running_loop().create_future()
        try:
            return await self.open[params.message]
        except asyncio.CancelledError:
            self.withdrawn.append(params.message)
            raise

    async def asked(self, *messages: str) -> None:
        """These are the questions that lie here."""
        await _until(lambda: self.open.keys() == set(messages), f"{messages} are asked")

    def answer(self, message: str, answer: ElicitResult | ErrorData) -> None:
        """The person has answered."""
        self.open[message].set_result(answer)


async def _until(holds: Callable[[], bool], description: str) -> None:
    async def look() -> bool:
        return holds()

    await eventually(look, description=description)


def accept(word: str) -> ElicitResult:
    """An accepted answer."""
    return ElicitResult(action="accept", content={"word": word})


def the_task(raw: redis.Redis, settings: Settings) -> str:
    """The id of the one task there is."""
    [key] = raw.scan_iter(f"{settings.prefix}task:*}}")
    return str(key).partition("{")[2].rstrip("}")


@asynccontextmanager
async def older(settings: Settings, tools: Tools, **answers: Any) -> AsyncGenerator[tuple[Client, RawClient]]:
    """A client of 2025-11-25 with a duplex connection, and one that knows tasks, of one server with an idle fleet."""
    async with (
        house(settings, tools) as (home, other),
        home.fleet.delivering(),
        person(home.mcp, mode="legacy", **answers) as client,
    ):
        yield client, other


async def parked(client: RawClient, raw: redis.Redis, settings: Settings) -> tuple[str, dict[str, Any]]:
    """The one task, which waits for answers, and its questions."""
    task_id = the_task(raw, settings)
    state = await client.until(task_id, lambda state: state["status"] == "input_required")
    return task_id, state["inputRequests"]


# ------------------------------------------------------------------------------------------------ questions


@covers("R3", "C09")
async def test_questions_of_one_moment_are_with_the_client_together(settings: Settings) -> None:
    """As in a live call: the client may answer them in any order, and the tool gets each answer where it asked."""
    desk = Desk()
    async with older(settings, Tools(), elicitation_callback=desk) as (client, _):
        call = asyncio.create_task(client.call_tool("ask_both"))
        await desk.asked("Left?", "Right?")
        desk.answer("Right?", accept("b"))
        desk.answer("Left?", accept("a"))
        assert (await call).structured_content == {"result": "a b"}


@covers("R3")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_refusing_person_is_heard_by_the_tool(settings: Settings, action: Any) -> None:
    """Also by tools that ask otherwise: the SDK words what becomes of a declined resolver."""

    async def refuse(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action=action)

    async with older(settings, Tools(), elicitation_callback=refuse) as (client, _):
        assert (await client.call_tool("ask_first")).structured_content == {"result": action}
        resolved = await client.call_tool("ask_by_resolver", {"suffix": "!"})
        assert resolved.is_error and f"elicitation was {action}" in str(resolved.content)


@covers("P41", "P43")
async def test_a_question_that_is_answered_elsewhere_is_taken_back(settings: Settings, raw: redis.Redis) -> None:
    """Ours: whoever comes first answers, an operator too; the person must not be left with a dead question."""
    desk = Desk()
    async with older(settings, Tools(), elicitation_callback=desk) as (client, other):
        call = asyncio.create_task(client.call_tool("ask_first"))
        await desk.asked("Which word?")
        task_id, questions = await parked(other, raw, settings)
        await other.update(task_id, {key: {"action": "accept", "content": {"word": "mine"}} for key in questions})
        assert (await call).structured_content == {"result": "accept: mine"}
        await _until(lambda: desk.withdrawn == ["Which word?"], "the question is taken back")


@covers("R6", "T3")
async def test_a_cancel_while_a_person_thinks_ends_the_call(settings: Settings, raw: redis.Redis) -> None:
    """R6: the call does not wait for an answer that nobody needs."""
    desk = Desk()
    async with older(settings, Tools(), elicitation_callback=desk) as (client, other), Operations(settings) as fleet:
        call = asyncio.create_task(client.call_tool("ask_first"))
        await desk.asked("Which word?")
        await parked(other, raw, settings)
        assert await fleet.cancel_all("moving house") == 1
        with pytest.raises(MCPError, match="cancelled: moving house"):
            await call


@covers("P42")
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ErrorData(code=-32099, message="nobody is in"), -32099),
        (ElicitResult(action="accept", content={"word": ""}), -32602),
    ],
    ids=["an error", "does not fit"],
)
async def test_an_answer_that_is_none_ends_the_call_and_leaves_the_task_waiting(
    settings: Settings, raw: redis.Redis, answer: Any, code: int
) -> None:
    """Ours: what the tool has done so far is not thrown away; the error names the task, others can answer it."""
    desk = Desk()
    async with older(settings, Tools(), elicitation_callback=desk) as (client, other):
        call = asyncio.create_task(client.call_tool("ask_first"))
        await desk.asked("Which word?")
        desk.answer("Which word?", answer)
        with pytest.raises(MCPError) as refused:
            await call
        task_id, questions = await parked(other, raw, settings)
        assert (refused.value.error.code, refused.value.error.data) == (code, {"mcptasks/taskId": task_id})
        assert f"The task {task_id} goes on" in refused.value.error.message
        assert len(questions) == 1


@covers("P23", "C12")
async def test_a_call_with_its_key_is_asked_again_where_it_left_off(settings: Settings, raw: redis.Redis) -> None:
    """C12: the client came back after a lost connection; it gets the same task, and the question that is still open."""
    first, second = Desk(), Desk()
    key: Any = {"mcptasks/idempotencyKey": "k"}
    async with house(settings, Tools()) as (home, _), home.fleet.delivering():
        async with person(home.mcp, mode="legacy", elicitation_callback=first) as client:
            call = asyncio.create_task(client.call_tool("ask_first", meta=key))
            await first.asked("Which word?")
            call.cancel()
        async with person(home.mcp, mode="legacy", elicitation_callback=second) as client:
            call = asyncio.create_task(client.call_tool("ask_first", meta=key))
            await second.asked("Which word?")
            second.answer("Which word?", accept("hi"))
            assert (await call).structured_content == {"result": "accept: hi"}
        assert the_task(raw, settings)


@covers("W10", "C09")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_answer_that_finds_the_store_away_is_stored_when_it_is_back(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    """Ours: a person is not asked twice, and a call does not fail, because the store was restarted just then."""
    stored, failures = TaskStore.answer, iter([StoreUnavailable("away")] * 2)

    async def flaky(self: TaskStore, *args: Any) -> Any:
        for failure in failures:
            raise failure
        return await stored(self, *args)

    monkeypatch.setattr(refusals, "_AWAY_S", 0.01)
    monkeypatch.setattr(TaskStore, "answer", flaky)
    async with (
        house(settings, Tools()) as (home, _),
        home.fleet.delivering(),
        person(home.mcp, mode=mode) as client,
    ):
        assert (await client.call_tool("ask_first")).structured_content == {"result": "accept: which"}
    assert list(failures) == []


# ------------------------------------------------------------------------------------------------ while it runs


async def test_progress_is_told_live(settings: Settings) -> None:
    """As the tool reported it."""
    tools, told = Tools(), list[tuple[float, float | None, str | None]]()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))
        tools.gate.opened.set()

    async with older(settings, tools) as (client, _):
        result = await client.call_tool("stands", progress_callback=on_progress)
    assert result.structured_content == {"result": "stood"}
    assert told == [(1, 3, "stands")]


async def test_log_messages_are_not_told(settings: Settings) -> None:
    """docs/compatibility.md: a difference. Live an older client gets them all."""
    heard = list[str]()

    async def on_log(params: LoggingMessageNotificationParams) -> None:
        heard.append(str(params.data))

    async with house(settings, Tools()) as (home, _), home.fleet.delivering():
        for mcp in (ordinary(Tools()), home.mcp):
            async with person(mcp, mode="legacy", logging_callback=on_log) as client:
                assert (await client.call_tool("talks")).structured_content == {"result": "said"}
                heard.append("the result")
    assert heard == ["a log line", "the result", "the result"]


@covers("P53")
async def test_a_client_that_goes_away_leaves_its_task_running(settings: Settings, raw: redis.Redis) -> None:
    """Ours: durable means that a dropped connection loses nothing; `notifications/cancelled` cancels no task."""
    tools = Tools()
    async with house(settings, tools) as (home, other), home.fleet.delivering():
        async with person(home.mcp, mode="legacy") as client:
            call = asyncio.create_task(client.call_tool("stands"))
            await tools.gate.arrival()
            call.cancel()
        tools.gate.opened.set()
        state = await other.until(the_task(raw, settings), lambda state: state["status"] == "completed")
        assert state["result"]["structuredContent"] == {"result": "stood"}


# ------------------------------------------------------------------------------------------------ nobody to ask


@covers("P32", "C14")
@pytest.mark.parametrize(
    ("tool", "arguments"), [("ask_first", {}), ("ask_by_resolver", {"suffix": "!"}), ("asks_if_it_can", {})]
)
async def test_where_nothing_can_be_relayed_the_tool_hears_what_it_hears_live(
    settings: Settings, raw: redis.Redis, tool: str, arguments: dict[str, Any]
) -> None:
    """C14: no task is left waiting for an answer that cannot come, and a tool that minds the error goes on."""
    async with house(settings, Tools()) as (home, client), home.fleet.delivering():
        ordinary = await LegacyClient((await home.open_ordinary()).http).connect({"elicitation": {}})
        durable = await LegacyClient(client.http).connect({"elicitation": {}})
        params = {"name": tool, "arguments": arguments}
        answer = await durable.send("tools/call", params)
        assert answer == await ordinary.send("tools/call", params)
        assert "no back-channel" in str(answer.body)
        assert (await client.state(the_task(raw, settings)))["status"] in ("completed", "failed")


@covers("C14")
async def test_a_guard_that_cannot_ask_says_so(settings: Settings) -> None:
    """Live, the SDK can only call such a result invalid."""
    async with house(settings, Tools()) as (home, client), home.fleet.delivering():
        older = await LegacyClient(client.http).connect({"elicitation": {}})
        error = (await older.send("tools/call", {"name": "ask_by_returning", "arguments": {"suffix": "!"}})).error
        assert error["code"] == -32600 and "no back-channel" in error["message"]


@covers("C12")
async def test_a_call_that_cannot_be_asked_says_so_of_a_task_that_waits_for_somebody_else(
    settings: Settings, raw: redis.Redis
) -> None:
    """Ours: the same call came before over a connection that could carry the question, under the same key."""
    key = {"mcptasks/idempotencyKey": "k"}
    async with house(settings, Tools()) as (home, client), home.fleet.delivering():
        await client.start("ask_first", meta=key)
        task_id, _ = await parked(client, raw, settings)
        older = await LegacyClient(client.http).connect({"elicitation": {}})
        error = (await older.send("tools/call", {"name": "ask_first", "arguments": {}, "_meta": key})).error
        assert (error["code"], error["data"]) == (-32600, {"mcptasks/taskId": task_id})
