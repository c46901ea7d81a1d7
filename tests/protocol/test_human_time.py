"""Questions and time: how long they stay open, who may answer them, and a deploy in between."""

from __future__ import annotations

from typing import Any, Final, cast

import pytest
import redis
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import SamplingMessage, TextContent

import mcptasks
from mcptasks import Operations, Tasks
from mcptasks.errors import BadAnswer, UnknownTask
from mcptasks.model import new_task_id
from mcptasks.settings import Settings
from mcptasks.store.keys import Keys
from tests.requirements import covers
from tests.support.house import House, house
from tests.support.raw_client import RawClient
from tests.support.tools import Word, ask_both, ask_by_resolver, ask_by_returning, ask_first

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:The (roots|sampling) capability is deprecated"),
]

YES: Final = {"action": "accept", "content": {"word": "yes"}}
TIMES: Final[dict[str, Any]] = {"ttl": "7d", "input_timeout": "2d"}


def tools(mcp: MCPServer, tasks: Tasks) -> None:
    """Tools whose questions have limits, and one whose have none."""
    mcp.tool()(tasks.durable(**TIMES)(ask_first))
    mcp.tool()(tasks.durable(**TIMES, on_input_timeout="cancel")(ask_both))
    mcp.tool(name="ask_by_resolver")(tasks.durable(**TIMES, mode="required")(ask_by_resolver))
    mcp.tool(name="ask_by_returning")(tasks.durable(**TIMES, mode="required")(ask_by_returning))

    @mcp.tool()
    @tasks.durable(**TIMES, on_input_timeout="cancel")
    async def offered(ctx: Context) -> str:
        return (await ctx.elicit("Want it?", Word)).action

    @mcp.tool()
    @tasks.durable(**TIMES, on_input_timeout="cancel", hold="30s")
    async def held(ctx: Context) -> str:
        return (await ctx.elicit("Now?", Word)).action

    @mcp.tool()
    @tasks.durable(**TIMES, on_input_timeout="cancel")
    async def ask_model(ctx: Context) -> str:
        message = SamplingMessage(role="user", content=TextContent(type="text", text="Say hi"))
        return str(await ctx.session.create_message([message], max_tokens=10))  # pyright: ignore[reportDeprecated]

    @mcp.tool()
    @tasks.durable()
    async def one_of_two(ctx: Context) -> str:
        with mcptasks.input_timeout("1h", then="cancel"):
            first = await ctx.elicit("Soon?", Word)
        second = await ctx.elicit("Some day?", Word)
        return f"{first.action} {second.action}"

    @mcp.tool()
    @tasks.durable()
    async def visit(ctx: Context) -> str:
        return (await ctx.elicit_url("Sign in", "https://id.example/", "e-1")).action


async def asked(home: House, client: RawClient, tool: str, arguments: dict[str, Any] | None = None) -> str:
    """A task of the tool that waits for a person."""
    task_id = await client.start(tool, arguments)
    await home.fleet.settle()
    home.fleet.rechecks.clear()
    assert (await client.state(task_id))["status"] == "input_required"
    return task_id


async def time_up(home: House, raw: redis.Redis, task_id: str) -> None:
    """The time of all open questions is up, and the sweeper has been."""
    keys, client = Keys(home.settings.prefix), cast("Any", raw)
    record: dict[str, str] = client.hgetall(keys.task(task_id))
    limits = {name: f"1 {text.partition(' ')[2]}" for name, text in record.items() if name.startswith("d:")}
    assert limits, "no question has a limit"
    client.hset(keys.task(task_id), mapping=limits)
    client.zadd(keys.expiry, {task_id: 1}, xx=True)
    await home.fleet.sweep()


def text(state: dict[str, Any]) -> str:
    """What the tool returned."""
    return str(state["result"]["content"][0]["text"])


# ------------------------------------------------------------------------------------------------ time


@covers("W4", "P31")
@pytest.mark.parametrize(
    ("tool", "arguments", "names"),
    [
        ("ask_first", None, "the question '"),
        ("ask_by_resolver", {"suffix": "!"}, "the question '"),
        ("ask_by_returning", {"suffix": "!"}, "the question '"),
        ("ask_model", None, "a sampling/createMessage request"),
    ],
)
async def test_a_question_that_nobody_answers_fails_its_task_and_is_named(
    settings: Settings, raw: redis.Redis, tool: str, arguments: dict[str, Any] | None, names: str
) -> None:
    """In every style of asking; a model cannot cancel, so a request to one always fails."""
    async with house(settings, tools) as (home, client):
        task_id = await asked(home, client, tool, arguments)
        await home.fleet.sweep()
        assert (await client.state(task_id))["status"] == "input_required", "never early"
        await time_up(home, raw, task_id)
        state = await client.state(task_id)
        assert state["status"] == "failed"
        assert names in state["error"]["message"]
        assert "172800 s, its input timeout" in state["error"]["message"]
        await client.update(task_id, {"whatever": YES})
        assert await client.state(task_id) == state


@covers("W4")
async def test_the_tool_hears_that_nobody_answered_as_a_cancel(settings: Settings, raw: redis.Redis) -> None:
    """And goes on; an answer in time counts as ever."""
    async with house(settings, tools) as (home, client):
        task_id = await asked(home, client, "offered")
        await time_up(home, raw, task_id)
        await home.fleet.settle()
        assert text(await client.state(task_id)) == "cancel"
        task_id = await asked(home, client, "offered")
        [key] = (await client.state(task_id))["inputRequests"]
        await client.update(task_id, {key: YES})
        await home.fleet.settle()
        assert text(await client.state(task_id)) == "accept"


@covers("W4")
async def test_a_held_tool_hears_it_on_its_worker(settings: Settings, raw: redis.Redis) -> None:
    """Without a second run."""
    async with house(settings, tools) as (home, client):
        task_id = await client.start("held")
        run = home.fleet.begin()
        await client.until(task_id, lambda state: state["status"] == "input_required")
        await time_up(home, raw, task_id)
        assert await run == "completed"
        assert text(await client.state(task_id)) == "cancel"


@covers("W4")
async def test_a_tool_limits_a_single_question(settings: Settings, raw: redis.Redis) -> None:
    """What it asks outside the block has all the time."""
    async with house(settings, tools) as (home, client), Operations(settings) as fleet:
        task_id = await asked(home, client, "one_of_two")
        record = await fleet.read(task_id)
        [due] = record.answer_by_ms.values()
        assert 3_500_000 < due - record.created_ms < 3_700_000
        await time_up(home, raw, task_id)
        await home.fleet.settle()
        record = await fleet.read(task_id)
        assert len(record.questions) == 1 and not record.answer_by_ms
        await fleet.answer(task_id, {key: {"action": "decline"} for key in record.questions})
        await home.fleet.sweep()
        await home.fleet.settle()
        assert text(await client.state(task_id)) == "cancel decline"


@covers("P44", "P41")
@pytest.mark.parametrize("action", ["accept", "decline", "cancel"])
async def test_a_person_is_sent_to_a_url(settings: Settings, action: str) -> None:
    """URL mode: no form, so no schema; the answer says only that the person went, or did not."""
    async with house(settings, tools) as (home, client):
        task_id = await asked(home, client, "visit")
        [(key, request)] = (await client.state(task_id))["inputRequests"].items()
        assert request["method"] == "elicitation/create"
        assert (request["params"]["mode"], request["params"]["url"]) == ("url", "https://id.example/")
        await client.update(task_id, {key: {"action": action}})
        await home.fleet.settle()
        assert text(await client.state(task_id)) == action


# ------------------------------------------------------------------------------------------------ operators


@covers("P42", "P80")
async def test_an_operator_answers_by_the_callers_rules(settings: Settings) -> None:
    """A bad answer would poison the task, whoever gives it; one to a closed question is an error to a person."""
    async with house(settings, tools, auth=True, token="alice") as (home, alice), Operations(settings) as fleet:
        task_id = await asked(home, alice, "ask_both")
        first, second = (await fleet.read(task_id)).questions
        for bad, says in (
            ({first: {"action": "accept", "content": {"word": 5}}}, "does not satisfy 'type'"),
            ({first: YES, second: {"action": "S3CRET"}}, "no result of elicitation/create"),
            ({first: YES, "made up": YES}, "'made up': no open question"),
            ({}, "no open question"),
        ):
            with pytest.raises(BadAnswer, match=says) as caught:
                await fleet.answer(task_id, bad)
            assert "S3CRET" not in str(caught.value)
        bob = await home.open(token="bob")
        assert (await bob.update(task_id, {first: YES})).error["code"] == -32602
        assert len((await fleet.read(task_id)).questions) == 2
        assert await fleet.answer(task_id, {first: YES}) is False
        assert await fleet.answer(task_id, {second: YES}) is True
        with pytest.raises(BadAnswer, match="no open question"):
            await fleet.answer(task_id, {first: YES})
        await home.fleet.sweep()
        await home.fleet.settle()
        assert text(await alice.state(task_id)) == "yes yes"


async def test_an_operator_is_told_that_there_is_no_such_task(settings: Settings) -> None:
    """Whatever was typed; without the whole of it in the message."""
    async with house(settings, tools), Operations(settings) as fleet:
        for task_id in (new_task_id(), "", "x" * 100_000, "\ud800"):
            with pytest.raises(UnknownTask) as caught:
                await fleet.answer(task_id, {"k": YES})
            assert len(str(caught.value)) < 100


# ------------------------------------------------------------------------------------------------ deploys


def asks(question: str) -> Any:
    """A server in the version whose tool asks this."""

    def tools(mcp: MCPServer, tasks: Tasks) -> None:
        @mcp.tool()
        @tasks.durable()
        async def ask(ctx: Context) -> str:
            return (await ctx.elicit(question, Word)).action

    return tools


@covers("E08", "E03")
@pytest.mark.parametrize(("here", "told"), [("2.0", True), ("1.0", False), ("", False)])
async def test_a_task_that_a_deploy_stopped_says_from_what_to_what(settings: Settings, here: str, told: bool) -> None:
    """E08: the record has the version of the code that took the call, and the error both, where they differ."""
    before, after = (settings.model_copy(update={"version": version}) for version in ("1.0", here))
    async with house(before, asks("Which word?")) as (home, client):
        task_id = await asked(home, client, "ask")
    async with house(after, asks("Which colour?")) as (home, client), Operations(settings) as fleet:
        assert (await fleet.read(task_id)).version == "1.0"
        [key] = (await client.state(task_id))["inputRequests"]
        await client.update(task_id, {key: YES})
        assert await home.fleet.deliver() == "failed"
        message = (await client.state(task_id))["error"]["message"]
        assert ("The task began with version 1.0, this worker has 2.0." in message) is told


async def test_the_version_is_the_servers_unless_the_operator_says(settings: Settings) -> None:
    """An MCP server has a version anyway."""

    def versioned(mcp: MCPServer, tasks: Tasks) -> None:
        tools(mcp, tasks)
        home_versions.append(mcp.version)

    home_versions: list[str] = []
    async with house(settings, versioned) as (home, client), Operations(settings) as fleet:
        task_id = await asked(home, client, "visit")
        assert (await fleet.read(task_id)).version == home_versions[0]
