"""Questions that are settled on the request itself, over several rounds, before there is a task (SEP-2663, P21)."""

from __future__ import annotations

from typing import Annotated, Any, Final

import pytest
import redis
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitRequest, ElicitRequestFormParams, InputRequiredResult, TextContent

from mcptasks import Tasks, seams
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import Gate, house
from tests.support.person import person
from tests.support.raw_client import RawClient, Reply
from tests.support.tools import Word, ask_first

pytestmark = pytest.mark.anyio

CALL: Final = {"suffix": "!"}


def accept(word: str) -> dict[str, Any]:
    """An accepted answer."""
    return {"action": "accept", "content": {"word": word}}


def asking(message: str, state: str) -> InputRequiredResult:
    """A guard's question."""
    form = ElicitRequestFormParams(message=message, requested_schema=Word.model_json_schema())
    return InputRequiredResult(input_requests={"word": ElicitRequest(params=form)}, request_state=state)


def first() -> Elicit[Word]:
    """The first question."""
    return Elicit("First?", Word)


def second(one: Annotated[Word, Resolve(first)]) -> Elicit[Word]:
    """A question that knows the answer before it."""
    return Elicit(f"Second, after {one.word}?", Word)


def third(two: Annotated[Word, Resolve(second)]) -> Elicit[Word]:
    """One more."""
    return Elicit(f"Third, after {two.word}?", Word)


def objects(suffix: str) -> Elicit[Word]:
    """A resolver that will not have it."""
    raise MCPError(-32050, "not for you", {"suffix": suffix})


def knows() -> Word:
    """A resolver that need not ask."""
    return Word(word="known")


class Tools:
    """Tools that ask by resolvers and by returning, and write down where their bodies ran."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.gate = Gate()

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        def note() -> None:
            self.bodies.append("fleet" if seams.running.get() else "server")

        @mcp.tool()
        @tasks.durable(prelude=True)
        async def by_resolvers(
            suffix: str,
            one: Annotated[Word, Resolve(first)],
            two: Annotated[Word, Resolve(second)],
            three: Annotated[Word, Resolve(third)],
        ) -> str:
            note()
            if self.gate.arrivals == 0:
                await self.gate.wait()
            return f"{one.word} {two.word} {three.word}{suffix}"

        async def guard(suffix: str, ctx: Context) -> CallToolResult | InputRequiredResult:
            note()
            given = (ctx.input_responses or {}).get("word")
            word = (getattr(given, "content", None) or {}).get("word")
            match ctx.request_state:
                case None:
                    return asking("First?", "")
                case "":
                    return asking("Second?", f"{word} ")
                case state:
                    return CallToolResult(content=[TextContent(type="text", text=f"{state}{word}{suffix}")])

        async def guard_of_one(suffix: str, ctx: Context) -> CallToolResult | InputRequiredResult:
            return await guard(suffix, ctx)

        async def guard_of_five(suffix: str, ctx: Context) -> CallToolResult | InputRequiredResult:
            return await guard(suffix, ctx)

        mcp.tool()(tasks.durable(prelude=2)(guard))
        mcp.tool()(tasks.durable(prelude=True)(guard_of_one))
        mcp.tool()(tasks.durable(prelude=5)(guard_of_five))

        @mcp.tool()
        @tasks.durable(prelude=True)
        async def objecting(suffix: str, word: Annotated[Word, Resolve(objects)]) -> str:
            raise NotImplementedError

        @mcp.tool()
        @tasks.durable(prelude=True)
        async def knowing(suffix: str, word: Annotated[Word, Resolve(knows)]) -> str:
            note()
            return word.word + suffix

        mcp.tool()(tasks.durable(prelude=True)(ask_first))


class Rounds:
    """One call of a tool, round by round."""

    def __init__(self, client: RawClient, tool: str) -> None:
        self.client, self.tool = client, tool
        #: What the last round was answered with.
        self.last: dict[str, Any] = {}

    async def begin(self, **more: Any) -> str:
        """The first question's text."""
        self.last = (await self.client.call(self.tool, CALL, **more)).result
        return self.question

    @property
    def question(self) -> str:
        """The question of the last round."""
        assert self.last["resultType"] == "input_required", self.last
        [request] = self.last["inputRequests"].values()
        return str(request["params"]["message"])

    async def send(self, word: str, **changed: Any) -> Reply:
        """The next round, with this answer."""
        params: dict[str, Any] = {
            "arguments": CALL,
            "inputResponses": {key: accept(word) for key in self.last["inputRequests"]},
            "requestState": self.last["requestState"],
        }
        return await self.client.call(self.tool, **{**params, **changed})

    async def answer(self, word: str, **more: Any) -> dict[str, Any]:
        """What the next round is answered with."""
        self.last = (await self.send(word, **more)).result
        return self.last


def stored(raw: redis.Redis, settings: Settings) -> list[str]:
    """Everything under the test's prefix."""
    return sorted(raw.scan_iter(f"{settings.prefix}*"))


def tasks_of(raw: redis.Redis, settings: Settings) -> int:
    """How many tasks are stored."""
    return len(list(raw.scan_iter(f"{settings.prefix}task:*}}")))


def text(result: dict[str, Any]) -> str:
    """What the tool returned."""
    return str(result["content"][0]["text"])


# ------------------------------------------------------------------------------------------------ rounds


@covers("P21")
async def test_resolvers_ask_in_as_many_rounds_as_they_need_and_the_body_never_runs_in_the_server(
    settings: Settings, raw: redis.Redis
) -> None:
    """SEP-2663: the task is created on the final round, and its result reflects the answers. Until then: nothing."""
    tools = Tools()
    tools.gate.opened.set()
    async with house(settings, tools) as (home, client):
        rounds = Rounds(client, "by_resolvers")
        assert await rounds.begin() == "First?"
        await rounds.answer("a")
        assert rounds.question == "Second, after a?"
        await rounds.answer("b")
        assert rounds.question == "Third, after b?"
        assert (stored(raw, settings), home.fleet.messages, tools.bodies) == ([], [], [])

        created = await rounds.answer("c")
        assert created["resultType"] == "task"
        assert await home.fleet.deliver() == "completed", "it asks nothing again"
        assert text((await client.state(created["taskId"]))["result"]) == "a b c!"
        assert tools.bodies == ["fleet"]


@covers("P21")
async def test_a_guard_asks_in_as_many_rounds_as_its_author_says(settings: Settings, raw: redis.Redis) -> None:
    """Ours: a guard cannot be asked without running it, so how often it may run in the server is the author's word."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        rounds = Rounds(client, "guard")
        assert await rounds.begin() == "First?"
        await rounds.answer("a")
        assert rounds.question == "Second?"
        assert (stored(raw, settings), tools.bodies) == ([], ["server", "server"])

        created = await rounds.answer("b")
        assert await home.fleet.deliver() == "completed"
        assert text((await client.state(created["taskId"]))["result"]) == "a b!"
        assert tools.bodies == ["server", "server", "fleet"]


@covers("P21", "P40")
async def test_what_a_guard_asks_after_its_rounds_is_asked_by_the_task(settings: Settings) -> None:
    """Ours: under a key that no round had."""
    async with house(settings, Tools()) as (home, client):
        rounds = Rounds(client, "guard_of_one")
        assert await rounds.begin() == "First?"
        task_id = (await rounds.answer("a"))["taskId"]
        await home.fleet.settle()
        [(key, question)] = (await client.state(task_id))["inputRequests"].items()
        assert question["params"]["message"] == "Second?"
        await client.update(task_id, {key: accept("b")})
        await home.fleet.settle()
        assert text((await client.state(task_id))["result"]) == "a b!"


@covers("P21")
async def test_a_guard_that_returns_a_result_in_its_rounds_needs_no_task(settings: Settings, raw: redis.Redis) -> None:
    """Ours: what is done already must not be done again."""
    tools = Tools()
    async with house(settings, tools) as (_, client):
        rounds = Rounds(client, "guard_of_five")
        await rounds.begin()
        await rounds.answer("a")
        assert text(await rounds.answer("b")) == "a b!"
        assert (rounds.last["resultType"], stored(raw, settings)) == ("complete", [])
        assert tools.bodies == ["server"] * 3


@covers("P21", "P22")
async def test_where_nothing_is_to_be_settled_the_first_round_makes_the_task(settings: Settings) -> None:
    """Ours: resolvers that know the answer, and questions in line, which only a task can ask."""
    async with house(settings, Tools()) as (home, client):
        knowing, asking_in_line = await client.start("knowing", CALL), await client.start("ask_first")
        await home.fleet.settle()
        assert text((await client.state(knowing))["result"]) == "known!"
        assert (await client.state(asking_in_line))["status"] == "input_required"


@covers("P21", "P31")
async def test_a_resolver_that_breaks_the_protocol_ends_the_request(settings: Settings, raw: redis.Redis) -> None:
    """Ours: it is settled; there is nothing left to run."""
    async with house(settings, Tools()) as (_, client):
        error = (await client.call("objecting", CALL)).error
        assert error == {"code": -32050, "message": "not for you", "data": {"suffix": "!"}}
        assert stored(raw, settings) == []


# ------------------------------------------------------------------------------------------------ replayed and forged


@covers("P21", "P23", "C12")
@pytest.mark.parametrize("tool", ["by_resolvers", "guard"])
async def test_the_last_round_sent_again_is_the_same_task_and_with_other_answers_it_is_refused(
    settings: Settings, raw: redis.Redis, tool: str
) -> None:
    """C12: its answer was lost, or somebody kept it. One consent must not start the work twice, nor another one."""
    tools = Tools()
    tools.gate.opened.set()
    async with house(settings, tools) as (home, client):
        rounds = Rounds(client, tool)
        await rounds.begin()
        await rounds.answer("a")
        if tool == "by_resolvers":
            await rounds.answer("b")
        created = (await rounds.send("c")).result
        await home.fleet.settle()

        again = (await rounds.send("c")).result
        assert (again["taskId"], again["status"]) == (created["taskId"], "completed")
        refused = (await rounds.send("d")).error
        assert refused["code"] == -32602 and "with other answers" in refused["message"]
        assert tools.bodies.count("fleet") == tasks_of(raw, settings) == 1 and home.fleet.messages == []


@covers("P21", "P80")
async def test_a_state_that_is_not_of_this_call_is_refused_and_makes_nothing(
    settings: Settings, raw: redis.Redis
) -> None:
    """SEP-2322: touched, carried to other arguments or another tool, or shown by somebody else."""
    async with house(settings, Tools(), auth=True, token="ann") as (_, client):
        rounds = Rounds(client, "guard")
        await rounds.begin()
        for reply in (
            await rounds.send("a", requestState=rounds.last["requestState"][:-4] + "AAAA"),
            await rounds.send("a", requestState="mcptasks:{}"),
            await rounds.send("a", arguments={"suffix": "?"}),
        ):
            assert (reply.error["code"], reply.error["message"]) == (-32602, "Invalid or expired requestState")
        elsewhere = Rounds(client, "guard_of_five"), Rounds(client.with_(token="bob"), "guard")
        for other in elsewhere:
            other.last = rounds.last
            assert (await other.send("a")).error["code"] == -32602
        assert stored(raw, settings) == []


@covers("P23", "W2")
async def test_a_call_with_a_key_is_one_call_whichever_rounds_it_came_by(settings: Settings) -> None:
    """Ours: the client's key goes before what we know of the rounds: asked anew, it is the task of before."""
    async with house(settings, Tools()) as (_, client):
        made: list[str] = []
        for word in ("b", "c"):
            rounds = Rounds(client, "guard")
            key: dict[str, Any] = {"meta": {"mcptasks/idempotencyKey": "k"}}
            await rounds.begin(**key)
            await rounds.answer("a", **key)
            made.append((await rounds.answer(word, **key))["taskId"])
        assert made[0] == made[1]


@covers("P21", "E10")
async def test_a_worker_that_is_lost_does_not_bring_the_settled_questions_back(settings: Settings) -> None:
    """E10: the answers are the task's own; whoever runs it has them."""
    tools = Tools()
    quick = settings.model_copy(update={"lease_ms": 100, "renew_ms": 50})
    async with house(quick, tools) as (home, client):
        rounds = Rounds(client, "by_resolvers")
        await rounds.begin()
        for word in ("a", "b"):
            await rounds.answer(word)
        task_id = (await rounds.answer("c"))["taskId"]
        lost = home.fleet.begin()
        await tools.gate.arrival()
        lost.cancel()

        tools.gate.opened.set()
        await home.fleet.settle()
        state = await client.state(task_id)
        while state["status"] == "working":
            await home.fleet.sweep()
            await home.fleet.settle()
            state = await client.state(task_id)
        assert text(state["result"]) == "a b c!"
        assert tools.bodies == ["fleet", "fleet"]


# ------------------------------------------------------------------------------------------------ other clients


@covers("P21", "P02")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(("tool", "result"), [("by_resolvers", "first secon third!"), ("guard", "first secon!")])
async def test_a_client_that_knows_no_tasks_notices_nothing(
    settings: Settings, mode: Any, tool: str, result: str
) -> None:
    """Ourrs: a modern one goes from rounds before the task into rounds that wait for it; an older one is asked live."""
    tools = Tools()
    tools.gate.opened.set()
    async with (
        house(settings, tools) as (home, _),
        home.fleet.delivering(),
        person(home.mcp, mode=mode) as client,
    ):
        got = await client.call_tool(tool, CALL)
    [content] = got.content
    assert isinstance(content, TextContent) and content.text == result
