"""A modern client that knows no tasks calls a durable tool: it is answered in rounds (SEP-2322), like any tool's.

Its task is an ordinary one, which a client that knows tasks can see meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import pytest
import redis
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError

from mcptasks import Operations, Tasks
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import Gate, House, house
from tests.support.person import person
from tests.support.raw_client import RawClient, Reply
from tests.support.tools import Word, ask_both, ask_by_returning, ask_first, ask_twice
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

KEYS: Final = ("first-secret-of-at-least-thirty-two-bytes", "second-secret-of-at-least-thirty-two-bytes")


def accept(word: str) -> dict[str, Any]:
    """An accepted answer."""
    return {"action": "accept", "content": {"word": word}}


class Tools:
    """Tools that ask, and one that stands still until the test lets it go on."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.runs = 0

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        for asks in (ask_first, ask_both, ask_twice):
            mcp.tool()(tasks.durable()(asks))
        mcp.tool(name="ask_by_returning")(tasks.durable()(ask_by_returning))

        @mcp.tool()
        @tasks.durable()
        async def stands(n: int, ctx: Context) -> str:
            self.runs += 1
            await ctx.report_progress(1, 3, "stands")
            await self.gate.wait()
            return f"stood {n}"

        @mcp.tool()
        @tasks.durable()
        async def stands_then_asks(ctx: Context) -> str:
            await self.gate.wait()
            return (await ctx.elicit("Which word?", Word)).action


async def first_round(client: RawClient, tool: str, **more: Any) -> dict[str, Any]:
    """What the first round is answered with; it asks."""
    asked = (await client.call(tool, **more)).result
    assert asked["resultType"] == "input_required"
    return asked


async def next_round(
    client: RawClient, tool: str, asked: dict[str, Any], *answers: dict[str, Any], **more: Any
) -> Reply:
    """The round after it, with answers to its questions in their order."""
    responses = dict(zip(asked.get("inputRequests", {}), answers, strict=False))
    given = {"inputResponses": responses} if responses else {}
    return await client.call(tool, requestState=asked["requestState"], **given, **more)


def the_task(raw: redis.Redis, settings: Settings) -> str:
    """The id of the one task there is."""
    [key] = raw.scan_iter(f"{settings.prefix}task:*}}")
    return str(key).partition("{")[2].rstrip("}")


def text(result: dict[str, Any]) -> str:
    """What the tool returned."""
    return str(result["content"][0]["text"])


# ------------------------------------------------------------------------------------------------ questions


@covers("P02", "C05", "C09")
async def test_a_task_that_asks_is_a_round_and_the_answer_of_the_next_round_is_the_tools(
    settings: Settings, raw: redis.Redis
) -> None:
    """SEP-2322: `input_required` with the questions and an opaque state. No field of it is null or of a task."""
    async with house(settings, Tools()) as (home, client), home.fleet.delivering():
        asked = await first_round(client.undeclared(), "ask_first")
        task_id = the_task(raw, settings)
        assert asked.keys() == {"resultType", "inputRequests", "requestState"}
        assert task_id not in str(asked)
        [(key, question)] = asked["inputRequests"].items()
        assert list((await client.state(task_id))["inputRequests"]) == [key]
        assert question["params"].keys() == {"message", "mode", "requestedSchema"}

        answered = await next_round(client.undeclared(), "ask_first", asked, accept("hi"))
        assert text(answered.result) == "accept: hi"
        assert (await client.state(task_id))["result"] == answered.result


@covers("P40", "P41", "C08", "C09")
async def test_each_round_answers_its_own_questions_and_no_others(settings: Settings) -> None:
    """C08, C09: a subset is kept and the rest asked again; a round that is sent again answers nothing else."""
    async with house(settings, Tools()) as (home, client), home.fleet.delivering():
        unaware = client.undeclared()
        both = await first_round(unaware, "ask_both")
        words = {key: ask["params"]["message"].lower().rstrip("?") for key, ask in both["inputRequests"].items()}
        [one, other] = words
        rest = (await next_round(unaware, "ask_both", both, accept(words[one]))).result
        assert list(rest["inputRequests"]) == [other]
        assert text((await next_round(unaware, "ask_both", rest, accept(words[other]))).result) == "left right"

        once = await first_round(unaware, "ask_twice")
        twice = (await next_round(unaware, "ask_twice", once, accept("one"))).result
        again = (await next_round(unaware, "ask_twice", once, accept("stray"))).result
        assert again["inputRequests"] == twice["inputRequests"]
        assert again["inputRequests"].keys().isdisjoint(once["inputRequests"])
        assert text((await next_round(unaware, "ask_twice", again, accept("two"))).result) == "one two"


@covers("P42")
async def test_a_bad_answer_is_refused_and_can_be_given_again(settings: Settings) -> None:
    """Ours: the question stays open, and the state of its round stays good."""
    async with house(settings, Tools()) as (home, client), home.fleet.delivering():
        unaware = client.undeclared()
        asked = await first_round(unaware, "ask_first")
        refused = await next_round(unaware, "ask_first", asked, accept("longer than twenty characters"))
        assert refused.error["code"] == -32602
        assert text((await next_round(unaware, "ask_first", asked, accept("hi"))).result) == "accept: hi"


@covers("P44", "C14")
async def test_a_client_is_not_asked_for_what_it_did_not_declare(settings: Settings) -> None:
    """C14: the tool hears at once that it cannot ask; the call ends with the error that names the capability."""
    async with house(settings, Tools(), capabilities={}) as (home, client), home.fleet.delivering():
        error = (await client.undeclared().call("ask_first")).error
        assert (error["code"], error["data"]) == (-32021, {"requiredCapabilities": {"elicitation": {"form": {}}}})


# ------------------------------------------------------------------------------------------------ long tasks


@covers("P32")
async def test_a_long_task_is_waited_for_round_by_round(settings: Settings) -> None:
    """SEP-2322: a state without questions means "come back". The tool runs once, however often the client does."""
    tools, short = Tools(), settings.model_copy(update={"bridge_wait_ms": 50})
    async with house(short, tools) as (home, client), home.fleet.delivering():
        unaware = client.undeclared()
        waiting = (await unaware.call("stands", {"n": 1})).result
        for _ in range(3):
            assert waiting.keys() == {"resultType", "requestState"}
            waiting = (await next_round(unaware, "stands", waiting, arguments={"n": 1})).result
        tools.gate.opened.set()

        async def ended() -> dict[str, Any] | None:
            result = (await next_round(unaware, "stands", waiting, arguments={"n": 1})).result
            return result if result["resultType"] == "complete" else None

        assert text(await eventually(ended, description="the last round has the result")) == "stood 1"
        assert tools.runs == 1


async def out_of_rounds(client: RawClient, tool: str, **more: Any) -> dict[str, Any]:
    """The error at the end of a call whose task is not done."""
    reply = await client.call(tool, **more)
    while "result" in reply.body:
        reply = await next_round(client, tool, reply.result, **more)
    return reply.error


@covers("P23", "P81", "C12")
async def test_when_the_clients_rounds_are_used_up_the_task_is_named_and_goes_on(
    settings: Settings, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours: the SDK's clients give up by themselves after ten rounds, and their error names nothing to go back to."""
    tools, short = Tools(), settings.model_copy(update={"bridge_wait_ms": 20, "bridge_rounds": 2})
    async with house(short, tools) as (home, client), home.fleet.delivering():
        caplog.set_level(logging.INFO)
        unaware, key = client.undeclared(), {"mcptasks/idempotencyKey": "k"}
        error = await out_of_rounds(unaware, "stands", arguments={"n": 1}, meta=key)
        task_id = the_task(raw, settings)
        assert (error["code"], error["data"]) == (-32001, {"mcptasks/taskId": task_id})
        assert task_id in error["message"] and "is not done" in error["message"]
        assert task_id not in caplog.text, "to its caller, and to nobody else"
        assert (await client.state(task_id))["status"] == "working"

        tools.gate.opened.set()
        await client.until(task_id, lambda state: state["status"] == "completed")
        assert text((await unaware.call("stands", {"n": 1}, meta=key)).result) == "stood 1"
        assert tools.runs == 1


@covers("C12")
async def test_the_error_comes_before_the_sdks_client_gives_up_by_itself(settings: Settings) -> None:
    """Ten rounds, as its default has it; its own error would name nothing to go back to."""
    async with (
        house(settings.model_copy(update={"bridge_wait_ms": 10}), Tools()) as (home, _),
        home.fleet.delivering(),
        person(home.mcp) as client,
    ):
        with pytest.raises(MCPError, match="come back 10 times") as refused:
            await client.call_tool("stands", {"n": 1})
        assert refused.value.error.code == -32001


@covers("C09")
async def test_a_question_for_which_no_round_is_left_stays_with_the_task(settings: Settings, raw: redis.Redis) -> None:
    """Ours: it is not asked where the answer could not come back, and somebody else may answer it."""
    tools, short = Tools(), settings.model_copy(update={"bridge_wait_ms": 20, "bridge_rounds": 1})
    async with house(short, tools) as (home, client), home.fleet.delivering():
        waiting = await first_round(client.undeclared(), "stands_then_asks")
        task_id = the_task(raw, settings)
        tools.gate.opened.set()
        state = await client.until(task_id, lambda state: state["status"] == "input_required")
        error = (await next_round(client.undeclared(), "stands_then_asks", waiting)).error
        assert error["code"] == -32001 and task_id in error["message"] and "has a question" in error["message"]

        await client.update(task_id, dict.fromkeys(state["inputRequests"], accept("x")))
        assert text((await client.until(task_id, lambda state: "result" in state))["result"]) == "accept"


@covers("P53")
async def test_a_client_that_hangs_up_leaves_its_task_running(settings: Settings, raw: redis.Redis) -> None:
    """Ours: durable means that a dropped connection loses nothing."""
    tools = Tools()
    async with house(settings, tools) as (home, client), home.fleet.delivering():
        call = asyncio.create_task(client.undeclared().call("stands", {"n": 1}))
        await tools.gate.arrival()
        call.cancel()
        await asyncio.wait([call])
        tools.gate.opened.set()
        state = await client.until(the_task(raw, settings), lambda state: state["status"] == "completed")
        assert text(state["result"]) == "stood 1"


async def test_progress_reaches_the_waiting_client_as_the_tool_reported_it(settings: Settings) -> None:
    """Ours: number, total and message, each once, over all the rounds."""
    tools, short = Tools(), settings.model_copy(update={"bridge_wait_ms": 100})
    told: list[tuple[float, float | None, str | None]] = []
    calls = 0

    async def count(ctx: ServerRequestContext[Any, Any], call_next: Any) -> Any:
        nonlocal calls
        calls += ctx.method == "tools/call"
        return await call_next(ctx)

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async def release() -> None:
        await eventually(lambda: _true(told), description="the client was told")
        seen = calls
        await eventually(lambda: _true(calls > seen + 1), description="two more rounds go by, with nothing new to tell")
        tools.gate.opened.set()

    async with house(short, tools) as (home, _), home.fleet.delivering(), person(home.mcp) as client:
        home.mcp.middleware.append(count)
        _, result = await asyncio.gather(release(), client.call_tool("stands", {"n": 1}, progress_callback=on_progress))
        assert result.structured_content == {"result": "stood 1"}
        assert told == [(1, 3, "stands")]


async def _true(value: object) -> bool:
    return bool(value)


# ------------------------------------------------------------------------------------------------ other ends


@covers("T3")
async def test_a_task_that_an_operator_cancels_ends_its_call_with_the_reason(settings: Settings) -> None:
    """Ours: the caller must not take a cancelled task for a finished one."""
    tools = Tools()
    async with house(settings, tools) as (home, client), home.fleet.delivering(), Operations(settings) as fleet:
        call = asyncio.create_task(client.undeclared().call("stands", {"n": 1}))
        await tools.gate.arrival()
        assert await fleet.cancel_all("moving house") == 1
        error = (await call).error
        assert error["code"] == -32603 and "cancelled: moving house" in error["message"]


@covers("C13", "R7")
async def test_a_task_that_expires_ends_its_call(settings: Settings) -> None:
    """C13: the waiting call learns of it like everybody else, and the run is told to stop."""
    tools = Tools()
    async with house(settings.model_copy(update={"ttl_ms": 300}), tools) as (home, client), home.fleet.delivering():
        call = asyncio.create_task(client.undeclared().call("stands", {"n": 1}))
        await tools.gate.arrival()

        async def swept() -> bool:
            await home.fleet.sweep()
            return call.done()

        await eventually(swept, description="the sweep has failed the task")
        error = (await call).error
        assert error["code"] == -32603 and "expired" in error["message"].lower()


# ------------------------------------------------------------------------------------------------ whose round it is


def by_header(ctx: ServerRequestContext[Any, Any]) -> str:
    """The caller as some proxy in front names it; the SDK knows nothing of it."""
    return str(ctx.request.headers["x-user"]) if ctx.request else ""


@covers("P80", "B01")
async def test_a_state_in_other_hands_opens_nothing(settings: Settings, raw: redis.Redis) -> None:
    """Ours: the SDK binds a state to the token; who the owner is may be told otherwise, so it is checked again."""
    mine, theirs = {"X-User": "north"}, {"X-User": "south"}
    async with house(settings, Tools(), owner=by_header) as (home, client), home.fleet.delivering():
        unaware = client.undeclared()
        asked = await first_round(unaware, "ask_first", headers=mine)
        stolen = await next_round(unaware, "ask_first", asked, accept("x"), headers=theirs)
        assert stolen.error == (await client.get("u" * 32, headers=mine)).error
        assert text((await next_round(unaware, "ask_first", asked, accept("y"), headers=mine)).result) == "accept: y"


@covers("P80")
async def test_a_state_that_was_touched_or_belongs_elsewhere_is_refused(settings: Settings, raw: redis.Redis) -> None:
    """SEP-2322: state from a client is an attacker's until it proves otherwise. The SDK seals it; nothing is stored."""
    async with house(settings, Tools(), auth=True, token="ann") as (home, client), home.fleet.delivering():
        unaware = client.undeclared()
        asked = await first_round(unaware, "ask_first")
        before = raw.hgetall(f"{settings.prefix}task:{{{the_task(raw, settings)}}}")
        forged = {**asked, "requestState": asked["requestState"][:-4] + "AAAA"}
        for reply in (
            await next_round(unaware, "ask_first", forged, accept("x")),
            await next_round(unaware, "ask_twice", asked, accept("x")),
            await next_round(unaware, "ask_first", asked, accept("x"), arguments={"other": 1}),
            await next_round(unaware.with_(token="bob"), "ask_first", asked, accept("x")),
        ):
            assert (reply.error["code"], reply.error["message"]) == (-32602, "Invalid or expired requestState")
        assert raw.hgetall(f"{settings.prefix}task:{{{the_task(raw, settings)}}}") == before


async def two_servers(home: House, first: RawClient) -> list[tuple[RawClient, RawClient]]:
    """Clients of two server processes, in both orders."""
    one, two = first.undeclared(), (await home.open()).undeclared()
    return [(one, two), (two, one)]


@covers("P20")
async def test_servers_that_share_the_key_take_over_each_others_rounds(settings: Settings) -> None:
    """Ours: behind a load balancer any server may get the next round; one that knows the key only as old does, too."""
    shared = Settings.model_validate({**settings.model_dump(), "request_state_keys": ",".join(KEYS)})
    async with house(shared, Tools()) as (home, first), home.fleet.delivering():
        for asking, answering in await two_servers(home, first):
            for tool in ("ask_first", "ask_by_returning"):
                arguments = {} if tool == "ask_first" else {"suffix": "!"}
                asked = await first_round(asking, tool, arguments=arguments)
                reply = await next_round(answering, tool, asked, accept("hi"), arguments=arguments)
                assert reply.result["resultType"] == "complete"


@covers("P20")
async def test_servers_without_a_shared_key_refuse_each_others_rounds(settings: Settings) -> None:
    """The SDK's default; `mcptasks doctor` warns of it."""
    async with house(settings, Tools()) as (home, first), home.fleet.delivering():
        for asking, answering in await two_servers(home, first):
            asked = await first_round(asking, "ask_first")
            assert (await next_round(answering, "ask_first", asked, accept("hi"))).error["code"] == -32602
