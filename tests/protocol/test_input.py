"""Questions of a running task and their answers (SEP-2663: input requests)."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import pytest
import redis
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import SamplingMessage, TextContent, Tool

import mcptasks
from mcptasks import Tasks
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import Gate, house
from tests.support.raw_client import EVERYTHING, RawClient, Reply
from tests.support.tools import Word, ask_both, ask_by_resolver, ask_by_returning, ask_first, ask_twice

pytestmark = [
    pytest.mark.anyio,
    # SEP-2577 retires these capabilities; clients and tools that use them exist all the same.
    pytest.mark.filterwarnings("ignore:The (roots|sampling) capability is deprecated"),
]


def accept(word: Any) -> dict[str, Any]:
    """An accepted answer."""
    return {"action": "accept", "content": {"word": word}}


class Tools:
    """Tools that ask, in every style and for everything a client can be asked for."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.runs = 0

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        for asks in (ask_first, ask_both, ask_twice):
            mcp.tool()(tasks.durable()(asks))
        mcp.tool(name="ask_by_resolver")(tasks.durable(mode="required")(ask_by_resolver))
        mcp.tool(name="ask_by_returning")(tasks.durable(mode="required")(ask_by_returning))

        @mcp.tool()
        @tasks.durable(hold="30s")
        async def ask_held(ctx: Context) -> str:
            self.runs += 1
            answer = await ctx.elicit("Held?", Word)
            return f"{answer.action} in run {self.runs}"

        @mcp.tool()
        @tasks.durable()
        async def ask_late(ctx: Context) -> str:
            await self.gate.wait()
            answer = await ctx.elicit("Late?", Word)
            return answer.action

        @mcp.tool()
        @tasks.durable()
        async def two_texts(ctx: Context) -> str:
            self.runs += 1
            await mcptasks.step("recorded", lambda: None)
            first = await ctx.elicit("First?", Word)
            second = await ctx.elicit("Second?", Word)
            return f"{first} / {second}"

        @mcp.tool()
        @tasks.durable()
        async def ask_url(ctx: Context) -> str:
            return (await ctx.elicit_url("Sign in", "https://example.org/", "e-1")).action

        @mcp.tool()
        @tasks.durable()
        async def ask_model(ctx: Context) -> str:
            message = SamplingMessage(role="user", content=TextContent(type="text", text="Say hi"))
            answer = await ctx.session.create_message([message], max_tokens=10)  # pyright: ignore[reportDeprecated]
            return str(answer.content)

        @mcp.tool()
        @tasks.durable()
        async def ask_model_with_tools(ctx: Context) -> str:
            message = SamplingMessage(role="user", content=TextContent(type="text", text="Look it up"))
            tools = [Tool(name="look", input_schema={"type": "object"})]
            answer = await ctx.session.create_message(  # pyright: ignore[reportDeprecated]
                [message], max_tokens=10, tools=tools
            )
            return " ".join(block.type for block in answer.content_as_list)

        @mcp.tool()
        @tasks.durable()
        async def ask_roots(ctx: Context) -> str:
            roots = await ctx.session.list_roots()  # pyright: ignore[reportDeprecated]
            return str(len(roots.roots))

        @mcp.tool()
        @tasks.durable()
        async def ask_number(ctx: Context) -> str:
            return str(await ctx.elicit("How much?", Amount))


class Amount(Word):
    """A question with a number in it."""

    much: float = 0


async def questions(client: RawClient, task_id: str) -> dict[str, str]:
    """The keys of the open questions by their texts."""
    requests = (await client.state(task_id)).get("inputRequests", {})
    return {request["params"]["message"]: key for key, request in requests.items()}


async def connect_all(client: RawClient, task_id: str) -> None:
    """The server has twenty connections to its store, so that as many requests really meet there."""
    await asyncio.gather(*(client.get(task_id) for _ in range(20)))


def text(state: dict[str, Any]) -> str:
    """What the tool returned."""
    return str(state["result"]["content"][0]["text"])


@covers("P41", "R3")
async def test_a_subset_of_the_answers_is_taken_and_the_rest_stays_open(settings: Settings) -> None:
    """SEP-2663: answers may come one by one, through any server; the task moves on with the last one."""
    async with house(settings, Tools()) as (home, client):
        second_server = await home.open()
        task_id = await client.start("ask_both")
        await home.fleet.settle()
        keys = await questions(client, task_id)
        await client.update(task_id, {keys["Right?"]: accept("b")})

        assert await questions(client, task_id) == {"Left?": keys["Left?"]}
        assert home.fleet.messages == []
        await second_server.update(task_id, {keys["Left?"]: accept("a")})
        assert (await client.state(task_id))["status"] == "working"
        await home.fleet.settle()
        assert text(await client.state(task_id)) == "a b"


@covers("P41", "C08")
async def test_answers_to_keys_that_are_not_open_are_acknowledged_and_ignored(settings: Settings) -> None:
    """SEP-2663: unknown, answered and superseded keys change nothing, also where they come with a good answer."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("ask_both")
        await home.fleet.settle()
        keys = await questions(client, task_id)
        await client.update(task_id, {keys["Left?"]: accept("first"), "made up": accept("x"), "": 5, "\ud800": None})
        before = await client.get(task_id)

        await client.update(task_id, {keys["Left?"]: accept("second")})
        await client.update(task_id, {keys["Left?"]: "not even an answer"})
        assert before == await client.get(task_id)
        await client.update(task_id, {keys["Left?"]: accept("third"), keys["Right?"]: accept("right")})
        await home.fleet.settle()
        assert text(await client.state(task_id)) == "first right"


@covers("P41")
async def test_an_answer_before_its_question_does_not_count(settings: Settings) -> None:
    """SEP-2663: a key that was not issued yet is unknown, even if somebody guessed it right."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        other = await client.start("ask_late")
        tools.gate.opened.set()
        await home.fleet.settle()
        [guessed] = (await questions(client, other)).values()

        tools.gate.opened.clear()
        task_id = await client.start("ask_late")
        run = home.fleet.begin()
        await tools.gate.arrival()
        await client.update(task_id, {guessed: accept("early")})
        tools.gate.opened.set()
        assert await run == "parked"
        assert await questions(client, task_id) == {"Late?": guessed}


@covers("P40", "C08", "R3")
async def test_a_question_asked_again_has_another_key(settings: Settings) -> None:
    """SEP-2663: a key is unique over the task's life, so a late copy of an old answer cannot satisfy a new question."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("ask_twice")
        await home.fleet.settle()
        [first] = (await client.state(task_id))["inputRequests"]
        await client.update(task_id, {first: accept("one")})
        await home.fleet.settle()
        [second] = (await client.state(task_id))["inputRequests"]
        assert second != first

        before = await client.get(task_id)
        await client.update(task_id, {first: accept("one")})
        await client.update(task_id, {first: accept("two"), "unknown": accept("two")})
        assert before == await client.get(task_id) and home.fleet.messages == []
        await client.update(task_id, {second: accept("two")})
        await home.fleet.settle()
        assert text(await client.state(task_id)) == "one two"


BAD_ANSWERS: Final = [
    accept(""),
    accept("x" * 21),
    accept(5),
    accept(None),
    {"action": "accept", "content": {}},
    {"action": "accept"},
    {"action": "accept", "content": {"wrong": "x"}},
    {"action": "perhaps"},
    {"content": {"word": "x"}},
    {},
    [],
    "yes",
    None,
    True,
]


@covers("P42")
@pytest.mark.parametrize("bad", BAD_ANSWERS, ids=repr)
async def test_a_bad_answer_is_refused_and_nothing_of_its_call_is_stored(settings: Settings, bad: Any) -> None:
    """Ours: the SDK would raise on it in every replay, so it must not get in. The good answer beside it waits too."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("ask_both")
        await home.fleet.settle()
        keys = await questions(client, task_id)
        before = await client.get(task_id)

        reply = await client.update(task_id, {keys["Left?"]: accept("good"), keys["Right?"]: bad})
        assert (reply.status, reply.error["code"]) == (400, -32602)
        assert keys["Right?"] in reply.error["message"]
        assert before == await client.get(task_id) and home.fleet.messages == []

        await client.update(task_id, {keys["Left?"]: accept("a"), keys["Right?"]: accept("b")})
        await home.fleet.settle()
        assert text(await client.state(task_id)) == "a b"


@covers("P42")
async def test_a_refusal_does_not_repeat_the_answer(settings: Settings) -> None:
    """Ours: an answer may be a secret; an error names the key and the rule that is broken."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("ask_first")
        await home.fleet.settle()
        [key] = (await questions(client, task_id)).values()
        for bad in (accept("S3CRET" * 9), {"action": "S3CRET"}, {"action": "accept", "content": "S3CRET"}):
            assert b"S3CRET" not in (await client.update(task_id, {key: bad})).raw


@covers("P41", "P42")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_refusing_person_need_not_fill_in_the_form(settings: Settings, action: str) -> None:
    """SEP-2663: decline and cancel are answers; only accepted content has to satisfy the schema."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("ask_first")
        await home.fleet.settle()
        [key] = (await questions(client, task_id)).values()
        await client.update(task_id, {key: {"action": action, "content": {"word": 5}}})
        await home.fleet.settle()
        assert text(await client.state(task_id)) == action


@covers("P43", "N5")
async def test_the_first_of_concurrent_answers_wins_and_starts_one_run(settings: Settings) -> None:
    """Ours: the store takes one and passes over the others; all are acknowledged and one message leaves."""
    async with house(settings, Tools()) as (home, first):
        second = await home.open()
        task_id = await first.start("ask_first")
        await home.fleet.settle()
        [key] = (await questions(first, task_id)).values()

        words = [f"word {n}" for n in range(20)]
        callers = [first, second] * 10
        await connect_all(first, task_id)
        await connect_all(second, task_id)
        replies = await asyncio.gather(
            *(client.update(task_id, {key: accept(word)}) for client, word in zip(callers, words, strict=True))
        )
        assert [reply.result for reply in replies] == [{"resultType": "complete"}] * 20
        assert len(home.fleet.messages) == 1
        await home.fleet.settle()
        assert text(await first.state(task_id)).removeprefix("accept: ") in words


@covers("P43", "P41")
async def test_concurrent_answers_to_one_question_do_not_answer_another(settings: Settings) -> None:
    """Ours: twenty answers to the left question are one answer; the right one is still open and still waited for."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("ask_both")
        await home.fleet.settle()
        keys = await questions(client, task_id)
        words = [f"word {n}" for n in range(20)]
        await connect_all(client, task_id)
        await asyncio.gather(*(client.update(task_id, {keys["Left?"]: accept(word)}) for word in words))

        assert await questions(client, task_id) == {"Right?": keys["Right?"]} and home.fleet.messages == []
        await client.update(task_id, {keys["Right?"]: accept("right")})
        await home.fleet.settle()
        assert text(await client.state(task_id)).removesuffix(" right") in words


ASKS: Final[list[tuple[str, dict[str, Any], dict[str, Any]]]] = [
    ("ask_first", {}, {"elicitation": {"form": {}}}),
    ("ask_first", {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
    ("ask_url", {"elicitation": {"form": {}}}, {"elicitation": {"url": {}}}),
    ("ask_url", {"elicitation": {}}, {"elicitation": {"url": {}}}),
    ("ask_model", {"elicitation": {}, "roots": {}}, {"sampling": {}}),
    ("ask_roots", {"elicitation": {}, "sampling": {}}, {"roots": {}}),
    ("ask_by_resolver", {"sampling": {}}, {"elicitation": {"form": {}}}),
    ("ask_by_returning", {"sampling": {}}, {"elicitation": {"form": {}}}),
]


@covers("P44")
@pytest.mark.parametrize(("tool", "declared", "missing"), ASKS)
async def test_a_client_is_not_asked_for_what_it_did_not_declare(
    settings: Settings, tool: str, declared: dict[str, Any], missing: dict[str, Any]
) -> None:
    """SEP-2663: questions keep the trust model of the live request; the task fails at once, naming the capability."""
    async with house(settings, Tools(), capabilities=declared) as (home, client):
        task_id = await client.start(tool, {"suffix": "!"})
        await home.fleet.settle()
        state = await client.state(task_id)

        assert (state["status"], state["error"]["code"]) == ("failed", -32021)
        assert state["error"]["data"] == {"requiredCapabilities": missing}


#: A model that speaks and uses a tool, as only a model can answer that was given tools.
SEVERAL: Final = {
    "role": "assistant",
    "content": [
        {"type": "text", "text": "hi"},
        {"type": "tool_use", "id": "u1", "name": "look", "input": {"at": 1}},
    ],
    "model": "m",
    "stopReason": "toolUse",
}
ONE: Final = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m", "stopReason": "endTurn"}

ANSWERS: Final[list[tuple[str, Any, str]]] = [
    ("ask_url", {"action": "accept"}, "accept"),
    ("ask_roots", {"roots": [{"uri": "file:///a"}, {"uri": "file:///b"}]}, "2"),
    ("ask_model", ONE, "hi"),
    ("ask_model_with_tools", ONE, "text"),
    ("ask_model_with_tools", SEVERAL, "text tool_use"),
    ("ask_by_resolver", accept("word"), "word!"),
    ("ask_by_returning", accept("word"), "word! after round-1"),
    ("ask_first", accept("word"), "accept: word"),
]


@covers("P44", "R3", "N8")
@pytest.mark.parametrize(("tool", "answer", "expected"), ANSWERS)
async def test_every_kind_of_question_is_asked_and_answered(
    settings: Settings, tool: str, answer: Any, expected: str
) -> None:
    """SEP-2663: elicitation by form or URL, sampling and roots; in line, by resolver, by returning the question."""
    everything = {**EVERYTHING, "sampling": {"tools": {}}}
    async with house(settings, Tools(), capabilities=everything) as (home, client):
        task_id = await client.start(tool, {"suffix": "!"})
        await home.fleet.settle()
        [key] = (await client.state(task_id))["inputRequests"]
        await client.update(task_id, {key: answer})
        await home.fleet.settle()
        assert expected in text(await client.state(task_id))


@covers("P42")
async def test_a_model_that_was_given_no_tools_answers_with_one_piece_of_content(settings: Settings) -> None:
    """Ours: the SDK would raise on a list in every replay."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("ask_model")
        await home.fleet.settle()
        [key] = (await client.state(task_id))["inputRequests"]
        assert "no result of sampling/createMessage" in (await client.update(task_id, {key: SEVERAL})).error["message"]


@covers("N8", "C08", "B03")
async def test_a_replay_gets_the_stored_answers_and_asks_only_what_is_new(settings: Settings) -> None:
    """Ours: the tool starts from the top after each answer, in any worker; nobody is asked the same thing twice."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("two_texts")
        seen: list[str] = []
        for word in ("one", "two"):
            await home.fleet.settle()
            [(question, key)] = (await questions(client, task_id)).items()
            seen.append(question)
            await client.update(task_id, {key: accept(word)})
        await home.fleet.settle()

        assert seen == ["First?", "Second?"] and tools.runs == 3
        answer = text(await client.state(task_id))
        assert "'one'" in answer and "'two'" in answer


@covers("P43", "R3")
async def test_a_held_run_takes_its_answer_without_starting_again(settings: Settings) -> None:
    """Ours: with a hold the run keeps its worker for a while, and the question is open meanwhile as any other."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("ask_held")
        run = home.fleet.begin()
        state = await client.until(task_id, lambda state: state["status"] == "input_required")
        [key] = state["inputRequests"]
        await client.update(task_id, {key: accept("x")})

        assert await run == "completed"
        assert text(await client.state(task_id)) == "accept in run 1" and tools.runs == 1
        assert home.fleet.messages == []


@covers("R3")
async def test_too_many_open_questions_fail_the_task_and_say_so(settings: Settings) -> None:
    """Ours: a tool in a loop must not fill the store; the limit is a setting and the error names it."""
    few = settings.model_copy(update={"questions_max": 1})
    async with house(few, Tools()) as (home, client):
        task_id = await client.start("ask_both")
        await home.fleet.settle()
        state = await client.state(task_id)
        assert state["status"] == "failed" and "MCPTASKS_QUESTIONS_MAX" in state["error"]["message"]


async def update_with(client: RawClient, task_id: str, key: str, content: str) -> Reply:
    """The reply to an accepted answer whose content is this JSON text, whatever Python thinks of it."""
    params = {"taskId": task_id, "inputResponses": {key: accept("CONTENT")}, "_meta": client.envelope()}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tasks/update", "params": params})
    return await client.post(body.replace('{"word": "CONTENT"}', content).encode(), "tasks/update", {})


@covers("F01", "P42")
@pytest.mark.parametrize(
    "content",
    [
        '{"word":"x","much":NaN}',
        '{"word":"x","much":-Infinity}',
        '{"word":"x","much":1e999}',
        '{"word":"x","much":1' + "0" * 5000 + "}",
        *(f'{{"word":"x","more":{"[" * depth}{"]" * depth}}}' for depth in (300, 900, 5000)),
        '{"word":' + '{"a":' * 900 + "1" + "}" * 901,
    ],
    ids=["NaN", "-Infinity", "1e999", "10^5000", "300 deep", "900 deep", "5,000 deep", "900 objects deep"],
)
async def test_an_answer_that_json_or_its_readers_cannot_carry_is_refused(settings: Settings, content: str) -> None:
    """Ours: NaN, infinities and bottomless nesting end as a clear error on the request, and the question stays open."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("ask_number")
        await home.fleet.settle()
        [key] = (await questions(client, task_id)).values()
        before = await client.get(task_id)

        reply = await update_with(client, task_id, key, content)
        assert (reply.status, reply.error["code"]) in ((400, -32602), (400, -32700))
        assert before == await client.get(task_id) and home.fleet.messages == []


@covers("F03")
async def test_half_an_emoji_in_an_answer_costs_one_character(settings: Settings) -> None:
    """Ours: a lone surrogate is legal in a JSON escape and in no UTF-8; it becomes U+FFFD and the task goes on."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("ask_first")
        await home.fleet.settle()
        [key] = (await questions(client, task_id)).values()
        await client.update(task_id, {key: accept("a\ud83db")})
        await home.fleet.settle()
        assert text(await client.state(task_id)) == "accept: a\ufffdb"


@covers("F07")
async def test_an_answer_over_its_limit_is_refused_and_names_the_limit(settings: Settings, raw: redis.Redis) -> None:
    """Ours: the setting's name is in the message, the question stays open, nothing of the call is stored."""
    small = settings.model_copy(update={"answer_max": 100})
    async with house(small, Tools()) as (home, client):
        task_id = await client.start("ask_both")
        await home.fleet.settle()
        keys = await questions(client, task_id)
        large = {"action": "accept", "content": {"word": "x", "more": "y" * 100}}
        for responses in ({keys["Left?"]: large}, {keys["Left?"]: accept("a"), keys["Right?"]: large}):
            reply = await client.update(task_id, responses)
            assert (reply.status, reply.error["code"]) == (400, -32602)
            assert "MCPTASKS_ANSWER_MAX" in reply.error["message"]
        assert await questions(client, task_id) == keys
