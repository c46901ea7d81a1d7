"""Bad input and a bad store: each ends in a clear error, and nothing is half made."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
from collections.abc import Generator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
import redis
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, TextContent

from mcptasks import Tasks
from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import house
from tests.support.raw_client import RawClient, Reply
from tests.support.tools import Word, ask_first

pytestmark = pytest.mark.anyio

ACCEPT: Final = {"action": "accept", "content": {"word": "x"}}

#: What a tool may do that JSON, UTF-8 or a reader cannot follow.
ODD: Final[dict[str, Any]] = {
    "NaN": {"mean": float("nan"), "max": float("inf"), "list": [float("-inf")]},
    "surrogates": {"text": "a\ud83db", "\udcff": "key"},
    "object": object(),
    "set": {1},
    "integer key": {1: 2},
    "tuple": (1, 2),
    "datetime": datetime(2026, 1, 1, tzinfo=UTC),
    "decimal": Decimal("1.50"),
    "bytes": b"\xff\xfe",
}


class Unprintable(Exception):
    """An exception that breaks whoever looks at it."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def tools(mcp: MCPServer, tasks: Tasks) -> None:
    """Tools that hand on what they get, and tools that do what they should not."""

    @mcp.tool()
    async def plain(value: Any) -> str:
        return "plain"

    @mcp.tool(structured_output=False)
    @tasks.durable()
    async def echo(value: Any) -> str:
        return json.dumps(value)

    @mcp.tool(structured_output=False)
    @tasks.durable()
    async def ask_and_echo(value: Any, ctx: Context) -> CallToolResult:
        await ctx.elicit("Go on?", Word)
        return CallToolResult(
            content=[TextContent(type="text", text=json.dumps(value))], structured_content={"value": value}
        )

    @mcp.tool()
    @tasks.durable()
    async def returns(what: str) -> Any:
        return ODD[what]

    @mcp.tool(structured_output=False)
    @tasks.durable()
    async def returns_structured(what: str) -> CallToolResult:
        value = nested(int(what)) if what.isdigit() else ODD[what]
        return CallToolResult(content=[], structured_content={"value": value})

    @mcp.tool()
    @tasks.durable()
    async def raises(what: str) -> str:
        match what:
            case "unprintable":
                raise Unprintable
            case "surrogate":
                raise ToolError("half a \ud83d")
            case _:
                raise MCPError(-32050, "half a \ud83d", ODD.get(what, nested(5000)))

    @mcp.tool()
    @tasks.durable()
    async def tells(ctx: Context) -> str:
        await ctx.report_progress(float("nan"), None, "half a \ud83d")
        await ctx.elicit("half a \ud83d?", Word)
        return "done"

    @mcp.tool()
    @tasks.durable()
    async def large(size: int) -> str:
        return "x" * size

    mcp.tool()(tasks.durable()(ask_first))


def stored(raw: redis.Redis, settings: Settings) -> list[str]:
    """Every key under the test's prefix."""
    return sorted(raw.scan_iter(f"{settings.prefix}*"))


#: What this test and the lease keeper's subscription do at the store while they watch it.
OURS: Final = {
    f"cmdstat_{name}" for name in ("config|resetstat", "info", "subscribe", "ping", "hello", "client|setinfo")
}


async def ask(client: RawClient, task_id: Any) -> list[Reply]:
    """What the three methods say to an id."""
    return [await client.get(task_id), await client.update(task_id, {"k": ACCEPT}), await client.cancel(task_id)]


# ------------------------------------------------------------------------------------------------ ids

HOSTILE: Final = ["", " ", "*", "?", "null", "a:b", "../x", "x\r\nX: y", "{x}", "}{", "\x00", "é", "e\u0301", "\ud800"]


@covers("P60", "R2", "F11", "A16")
@pytest.mark.parametrize("task_id", [*HOSTILE, "x" * (1 << 20)], ids=lambda text: repr(text[:8]))
async def test_an_odd_id_gets_the_answer_of_an_unknown_one(
    settings: Settings, raw: redis.Redis, caplog: pytest.LogCaptureFixture, task_id: str
) -> None:
    """SEP-2663: -32602 from get, update and cancel. Ours: the same bytes, no search, no line in the log."""
    async with house(settings, tools) as (_, client):
        unknown = await ask(client, secrets.token_urlsafe(24))
        raw.config_resetstat()
        odd = await ask(client, task_id)

        assert odd == unknown
        assert {(reply.status, reply.error["code"]) for reply in odd} == {(400, -32602)}
        assert len({reply.raw for reply in odd}) == 1
        # Not even one look: a megabyte of id would be a megabyte on the way to the store.
        assert not {name for name in raw.info("commandstats") if name not in OURS}
        assert all(len(record.getMessage()) < 1000 and "X: y" not in record.getMessage() for record in caplog.records)
        assert stored(raw, settings) == []


@covers("P60", "F11")
@pytest.mark.parametrize("task_id", [5, None, True, [], {}, 1.5], ids=repr)
async def test_an_id_that_is_no_text_is_a_bad_parameter(settings: Settings, task_id: Any) -> None:
    """SEP-2663: taskId is a string; JSON-RPC has -32602 for everything else, an absent one included."""
    async with house(settings, tools) as (_, client):
        replies = [
            *await ask(client, task_id),
            await client.send("tasks/get", {}),
            await client.send("tasks/cancel", {}),
        ]
        assert {(reply.status, reply.error["code"]) for reply in replies} == {(400, -32602)}


@covers("P60", "A16")
async def test_a_foreign_task_and_a_removed_one_are_unknown_to_the_byte(settings: Settings, raw: redis.Redis) -> None:
    """SEP-2663: whether a task exists is nobody's business but its caller's."""
    async with house(settings, tools, auth=True, token="alice") as (home, alice):
        bob = alice.with_(token="bob")
        unknown = await ask(alice, secrets.token_urlsafe(24))

        task_id = await alice.start("ask_first")
        await home.fleet.settle()
        before = await alice.get(task_id)
        assert unknown == await ask(bob, task_id)
        assert before == await alice.get(task_id)

        raw.delete(*raw.scan_iter(f"{settings.prefix}task:*"))
        assert unknown == await ask(alice, task_id)


# ------------------------------------------------------------------------------------------------ arguments


async def call_with(client: RawClient, tool: str, value: str, *, place: str = "arguments", **more: Any) -> Reply:
    """The reply to a call that has this JSON text at the place, whatever Python thinks of it; `more` are its params."""
    params: dict[str, Any] = {"name": tool, "arguments": {"value": 1}, "_meta": client.envelope(), **more}
    if place in params:
        params[place]["value"] = "VALUE"
    else:
        params[place] = "VALUE"
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    return await client.post(body.replace('"VALUE"', value).encode(), "tools/call", {"Mcp-Name": tool})


BAD_JSON: Final = {
    "NaN": "NaN",
    "Infinity": '{"x":[Infinity]}',
    "1e999": "-1e999",
    "10^5000": "1" + "0" * 5000,
    "300 deep": "[" * 300 + "]" * 300,
    "900 deep": '{"a":' * 900 + "1" + "}" * 900,
    "5,000 deep": "[" * 5000 + "]" * 5000,
}


@covers("F01", "F05", "P22")
@pytest.mark.parametrize("value", BAD_JSON.values(), ids=BAD_JSON.keys())
async def test_arguments_that_json_or_its_readers_cannot_carry_make_no_task(
    settings: Settings, raw: redis.Redis, value: str
) -> None:
    """Ours: a clear error on the call itself, in every place a call has for JSON, with a key or without."""
    async with house(settings, tools) as (home, client):
        for more in ({}, {"idempotencyKey": "k"}):
            reply = await call_with(client, "echo", value, **more)
            assert (reply.status, reply.error["code"]) in ((400, -32602), (400, -32700))
            assert reply.error["message"]
        assert stored(raw, settings) == [] and home.fleet.messages == []


@covers("P22")
@pytest.mark.parametrize("place", ["_meta", "requestState", "inputResponses", "unknownMember"])
async def test_bottomless_json_elsewhere_in_a_call_is_an_error_too(
    settings: Settings, raw: redis.Redis, place: str
) -> None:
    """Ours: what is not stored may be ignored; what would be stored is refused; nothing is an internal error."""
    async with house(settings, tools) as (_, client):
        for depth in (300, 900):
            reply = await call_with(client, "echo", "[" * depth + "]" * depth, place=place)
            if "error" in reply.body:
                assert (reply.status, reply.error["code"]) == (400, -32602)
                assert stored(raw, settings) == []
            else:
                assert place == "unknownMember" and reply.result["resultType"] == "task"
                raw.flushall()


@covers("F07")
async def test_arguments_over_their_limit_are_refused_and_at_it_accepted(settings: Settings, raw: redis.Redis) -> None:
    """Ours: the limit is a setting, and the error names it; nothing is stored, also none of the key's memory."""
    small = settings.model_copy(update={"arguments_max": 100})
    fits = {"value": "x" * (100 - len('{"value":""}'))}
    async with house(small, tools) as (home, client):
        reply = await client.call("echo", {"value": fits["value"] + "x"}, idempotencyKey="k")
        assert (reply.status, reply.error["code"]) == (400, -32602)
        assert "MCPTASKS_ARGUMENTS_MAX" in reply.error["message"] and "100 bytes" in reply.error["message"]
        assert stored(raw, small) == [] and home.fleet.messages == []

        task_id = await client.start("echo", fits, idempotencyKey="k")
        await home.fleet.settle()
        assert (await client.state(task_id))["status"] == "completed"


@covers("F07")
async def test_a_result_over_its_limit_is_a_tool_error_that_names_the_limit(settings: Settings) -> None:
    """Ours: the work is done and cannot be sent; the model that called can act on a text that says why."""
    small = settings.model_copy(update={"result_max": 1000})
    async with house(small, tools) as (home, client):
        task_id = await client.start("large", {"size": 1000})
        await home.fleet.settle()
        result = (await client.state(task_id))["result"]
        assert result["isError"] and "MCPTASKS_RESULT_MAX" in result["content"][0]["text"]


EXACT: Final = [
    "9007199254740993",
    "-9223372036854775808",
    "1000000000000000000000000000000",
    "1.0",
    "-0.0",
    "1e-07",
    "[]",
    "{}",
    '{"a": [], "b": {}, "c": null}',
    '"\\u0000"',
    '"\\ud83d\\ude00"',
]


@covers("F05", "B03")
@pytest.mark.parametrize("value", EXACT)
async def test_every_digit_survives_the_way_through_the_store(settings: Settings, value: str) -> None:
    """Ours: arguments are carried as text through create, park and resume; no Lua number, no double, no empty table."""
    async with house(settings, tools) as (home, client):
        task_id = (await call_with(client, "ask_and_echo", value)).result["taskId"]
        await home.fleet.settle()
        [key] = (await client.state(task_id))["inputRequests"]
        await client.update(task_id, {key: ACCEPT})
        await home.fleet.settle()

        result = (await client.state(task_id))["result"]
        assert result["content"][0]["text"] == value
        assert json.dumps(result["structuredContent"]["value"]) == value


@covers("F03")
async def test_half_an_emoji_in_arguments_reaches_the_tool_and_spoils_nothing(settings: Settings) -> None:
    """Ours: the store keeps the escape, the tool sees what the client sent, and every answer is valid UTF-8."""
    async with house(settings, tools) as (home, client):
        for value in ('"a\\ud83db"', '{"\\udcff":["\\ud83d"]}'):
            task_id = (await call_with(client, "echo", value)).result["taskId"]
            await home.fleet.settle()
            state = await client.state(task_id)
            assert json.loads(state["result"]["content"][0]["text"]) == json.loads(value)


# ------------------------------------------------------------------------------------------------ what tools do


@covers("F01", "F03", "F09", "P32")
@pytest.mark.parametrize("what", [name for name in ODD if name not in ("NaN", "surrogates")])
async def test_an_odd_result_ends_as_the_live_call_does(settings: Settings, what: str) -> None:
    """Ours: value or tool error, whatever the SDK makes of it; never a task that stays working."""
    async with house(settings, tools) as (home, client):
        live = await (await home.open_ordinary()).call("returns", {"what": what})
        task_id = await client.start("returns", {"what": what})
        await home.fleet.settle()
        state = await client.state(task_id)
        assert (state["status"], state["result"]) == ("completed", live.result)


@covers("F01", "F09")
@pytest.mark.parametrize(("tool", "named"), [("returns", "NaN"), ("returns_structured", "NaN")])
async def test_nan_in_a_result_is_a_tool_error_or_null_but_never_bad_json(
    settings: Settings, tool: str, named: str
) -> None:
    """Ours: a bare NaN cannot be parsed by most clients; the bytes are strict JSON and the task is over."""
    async with house(settings, tools) as (home, client):
        task_id = await client.start(tool, {"what": "NaN"})
        await home.fleet.settle()
        state = await client.state(task_id)  # parsed strictly
        assert state["status"] == "completed"


@covers("F03", "F09")
@pytest.mark.parametrize("tool", ["returns", "returns_structured"])
async def test_half_an_emoji_in_a_result_costs_one_character(settings: Settings, tool: str) -> None:
    """Ours: replaced by U+FFFD, in names of members too; the rest of the result is as the tool made it."""
    async with house(settings, tools) as (home, client):
        task_id = await client.start(tool, {"what": "surrogates"})
        await home.fleet.settle()
        state = await client.state(task_id)
        assert state["status"] == "completed"
        if tool == "returns_structured":
            assert state["result"]["structuredContent"] == {"value": {"text": "a\ufffdb", "\ufffd": "key"}}


@covers("F09")
@pytest.mark.parametrize("depth", [300, 5000])
async def test_a_bottomless_result_is_a_tool_error_that_says_so(settings: Settings, depth: int) -> None:
    """Ours: what no reader could follow is not stored; the model that called can act on a text that says why."""
    async with house(settings, tools) as (home, client):
        task_id = await client.start("returns_structured", {"what": str(depth)})
        await home.fleet.settle()
        result = (await client.state(task_id))["result"]
        assert result["isError"] and "deep" in result["content"][0]["text"]


@covers("F03", "F09", "P31")
@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("NaN", {"code": -32050, "message": "half a \ufffd", "data": {"mean": None, "max": None, "list": [None]}}),
        ("surrogates", {"code": -32050, "message": "half a \ufffd", "data": {"text": "a\ufffdb", "\ufffd": "key"}}),
        ("object", {"code": -32050, "message": "half a \ufffd (its data cannot be sent as JSON)"}),
        ("5,000 deep", {"code": -32050, "message": "half a \ufffd (its data cannot be sent as JSON)"}),
    ],
)
async def test_odd_data_of_a_protocol_error_does_not_keep_the_task_from_failing(
    settings: Settings, what: str, error: dict[str, Any]
) -> None:
    """Ours: code and message always arrive; data that cannot be sent is left out, and the message says so."""
    async with house(settings, tools) as (home, client):
        task_id = await client.start("raises", {"what": what})
        await home.fleet.settle()
        state = await client.state(task_id)
        assert (state["status"], state["error"], state["statusMessage"]) == ("failed", error, error["message"])


@covers("F03", "F09")
@pytest.mark.parametrize("what", ["unprintable", "surrogate"])
async def test_an_exception_with_an_impossible_text_ends_the_task(settings: Settings, what: str) -> None:
    """Ours: after the tool's body every path ends in a terminal status."""
    async with house(settings, tools) as (home, client):
        task_id = await client.start("raises", {"what": what})
        await home.fleet.settle()
        result = (await client.state(task_id))["result"]
        assert result["isError"] and "Error executing tool raises" in result["content"][0]["text"]


@covers("F01", "F03", "R4")
async def test_odd_progress_and_odd_questions_are_valid_on_the_wire(settings: Settings) -> None:
    """Ours: NaN as a number of progress and half an emoji in a text are the tool's own business, not its client's."""
    async with house(settings, tools) as (home, client):
        task_id = await client.start("tells")
        await home.fleet.settle()
        state = await client.state(task_id)
        assert state["status"] == "input_required" and state["statusMessage"].startswith("half a \ufffd")
        [key] = state["inputRequests"]
        await client.update(task_id, {key: ACCEPT})
        await home.fleet.settle()
        assert (await client.state(task_id))["status"] == "completed"


# ------------------------------------------------------------------------------------------------ the store


@pytest.fixture
def own_valkey(tmp_path: Path) -> Generator[EmbeddedValkey]:
    """A Valkey that the test may freeze and stop."""
    with EmbeddedValkey(tmp_path) as server:
        yield server


async def everything(client: RawClient, task_id: str) -> list[Reply]:
    """One durable call with a key and the three methods, at once."""
    replies = await asyncio.gather(
        client.call("echo", {"value": 1}, idempotencyKey="k"),
        client.get(task_id),
        client.update(task_id, {"k": ACCEPT}),
        client.cancel(task_id),
    )
    return list(replies)


@covers("P62", "A10", "W10")
async def test_with_no_store_durable_calls_fail_and_plain_tools_work(caplog: pytest.LogCaptureFixture) -> None:
    """Ours: -32603 with a plain text within five seconds; the log says where the store was looked for, the wire not."""
    nowhere = Settings(redis_url="redis://:hunter2@127.0.0.1:1/0")
    async with house(nowhere, tools) as (home, client):
        with anyio.fail_after(5):
            replies = await everything(client, secrets.token_urlsafe(24))
        assert [reply.error["code"] for reply in replies] == [-32603] * 4
        assert all("task store" in reply.error["message"] and b"127.0.0.1" not in reply.raw for reply in replies)
        assert home.fleet.messages == []
        assert (await client.call("plain", {"value": 1})).result["structuredContent"] == {"result": "plain"}
        assert "127.0.0.1:1" in caplog.text and "hunter2" not in caplog.text


@covers("P62", "A10", "W10")
async def test_with_a_frozen_store_nothing_hangs_and_plain_tools_do_not_wait(own_valkey: EmbeddedValkey) -> None:
    """Ours: a store that accepts connections and says nothing is as good as none, after `store_timeout_ms`.

    What reached it may be done when it thaws, as a whole or not at all: so a repeated call with its key is one call,
    and the error must not claim that nothing was done.
    """
    settings = Settings(redis_url=own_valkey.url, resend_ms=1, store_timeout_ms=1_000)
    async with house(settings, tools) as (home, client):
        task_id = await client.start("echo", {"value": 0})
        os.kill(own_valkey.pid, signal.SIGSTOP)
        try:
            with anyio.fail_after(5):
                waiting = asyncio.ensure_future(everything(client, task_id))
                plain = await client.call("plain", {"value": 1})
                assert not waiting.done()
                replies = await waiting
        finally:
            os.kill(own_valkey.pid, signal.SIGCONT)
        assert plain.result["resultType"] == "complete"
        assert [reply.error["code"] for reply in replies] == [-32603] * 4
        assert all("try again" in reply.error["message"].lower() for reply in replies)
        assert all("nothing" not in reply.error["message"].lower() for reply in replies)
        assert [hint.task_id for hint in home.fleet.messages] == [task_id]

        again = await client.start("echo", {"value": 1}, idempotencyKey="k")
        assert again == await client.start("echo", {"value": 1}, idempotencyKey="k")
        with redis.Redis.from_url(own_valkey.url, decode_responses=True) as raw:
            records = {key for key in raw.scan_iter("*task:*") if raw.type(key) == "hash"}
            assert records == {f"{settings.prefix}task:{{{known}}}" for known in (task_id, again)}
            assert {f"{key}:call" for key in records} == set(raw.scan_iter("*:call"))
        await home.fleet.sweep()
        await home.fleet.settle()
        assert (await client.state(again))["status"] == "completed"


@covers("P62", "W1", "W10")
async def test_a_store_that_comes_back_is_used_again(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    """Ours: the same server process goes on; a completed task is byte for byte what it was before the restart."""
    settings = Settings(redis_url=own_valkey.url)
    async with house(settings, tools) as (home, client):
        task_id = await client.start("echo", {"value": [1, {}]})
        await home.fleet.settle()
        before = await client.get(task_id)
        port = own_valkey.port
        own_valkey.stop()
        assert (await client.get(task_id)).error["code"] == -32603

        with EmbeddedValkey(tmp_path, port):
            assert before == await client.get(task_id)
            assert re.fullmatch(r"[\w-]{32}", await client.start("echo", {"value": 2}))
