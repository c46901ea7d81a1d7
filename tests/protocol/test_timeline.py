"""The timeline of a task as its caller and operators read it, and what the tool adds to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import anyio.from_thread
import pytest
import redis
from mcp.client import Client
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError

import mcptasks
from mcptasks import Operations, Retry
from mcptasks.client import TaskFailed, TasksClient, Timeline
from mcptasks.errors import BadPayload, StoreUnavailable, UnknownTask
from mcptasks.links import timeline_uri
from mcptasks.settings import Settings
from mcptasks.store.keys import Keys
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.durable import answer_all, let_time_pass, one, text, through
from tests.support.house import House, house
from tests.support.raw_client import LegacyClient, RawClient
from tests.support.reading import read
from tests.support.tools import Word

pytestmark = [
    pytest.mark.anyio,
    # SEP-2577 retires logging; tools that log exist all the same.
    pytest.mark.filterwarnings("ignore:The logging capability is deprecated"),
]

#: What tells nobody anything new: chance decides how often progress was written.
_NUMBERS: Final = {"reports", "until"}


async def timeline(client: RawClient, task_id: str) -> Timeline:
    """What the caller reads."""
    [contents] = (await read(client, timeline_uri(task_id))).result["contents"]
    assert contents["mimeType"] == "application/json"
    return Timeline.read(json.loads(contents["text"]))


def words(found: Timeline) -> str:
    """What happened, in order."""
    return " ".join(entry.what for entry in found)


def texts(found: Timeline) -> list[str]:
    """What the tool said."""
    return [entry.about["text"] for entry in found if entry.what in ("log", "note")]


@asynccontextmanager
async def ended(settings: Settings, tool: Any, **options: Any) -> AsyncGenerator[tuple[House, RawClient, str]]:
    """One task of the tool has come to its end, each of its questions answered."""
    async with house(settings, one(tool, **options)) as (home, client):
        task_id = await client.start("tool")
        await through(home, client, task_id)
        yield home, client, task_id


# ------------------------------------------------------------------------------------------------ what stands in it


@covers("W6", "N8")
async def test_a_whole_life_is_told_once_however_often_the_tool_runs_from_the_top(
    settings: Settings, raw: redis.Redis
) -> None:
    """Replays repeat neither notes nor log lines nor steps; what a person answered is nowhere in it."""
    runs = list[int]()

    async def tool(ctx: Context) -> str:
        runs.append(1)
        await ctx.info("begun")  # pyright: ignore[reportDeprecated]
        await ctx.report_progress(1, 3, "reading")
        await mcptasks.step("charge", lambda: "receipt")
        await mcptasks.note("paid", data={"amount": 7})
        await ctx.elicit("Send it?", Word)
        await mcptasks.note("confirmed")
        await mcptasks.sleep("1h")
        await ctx.warning({"rows": 2}, logger_name="mine")  # pyright: ignore[reportDeprecated]
        return "done"

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        await home.fleet.deliver()
        await answer_all(client, task_id)
        await home.fleet.deliver()
        let_time_pass(raw, settings, task_id)
        await home.fleet.sweep()
        assert text(await through(home, client, task_id)) == "done"
        found = await timeline(client, task_id)
    assert len(runs) == 3
    assert words(found) == ("create claim log progress step note ask park answer claim note sleep claim log end")
    assert texts(found) == ["begun", "paid", "confirmed", '{"rows":2}']
    told = {entry.what: dict(entry.about) for entry in found}
    assert told["note"] == {"text": "confirmed"} and told["create"]["tool"] == "tool"
    assert told["log"] == {"level": "warning", "text": '{"rows":2}', "logger": "mine"}
    assert told["ask"]["questions"][0]["label"] == "the question 'Send it?'"
    assert told["step"] == {"name": "charge#1"} and told["answer"]["by"] == "client"
    assert next(entry.about for entry in found if entry.what == "note")["data"] == {"amount": 7}
    assert {k: v for k, v in told["progress"].items() if k not in _NUMBERS} == {
        "first": 1.0,
        "last": 1.0,
        "total": 3.0,
        "message": "reading: 1 of 3 (33 %)",
    }
    assert not any("worker" in entry.about for entry in found)
    assert told["end"] == {"status": "completed", "reason": "completed", "message": told["progress"]["message"]}
    assert "yes" not in str(found) and "receipt" not in str(found)


@covers("W6", "N4")
async def test_retries_are_told_with_their_delay_and_message(settings: Settings, raw: redis.Redis) -> None:
    """And each try says anew what belongs to it: it does the work again."""

    async def tool() -> str:
        await mcptasks.note("trying")
        raise Retry("The partner is busy")

    async with house(settings, one(tool, retry=[3600])) as (home, client):
        task_id = await client.start("tool")
        await home.fleet.deliver()
        keys, store = Keys(settings.prefix), cast("Any", raw)
        store.hset(keys.task(task_id), "due", "1")
        store.zadd(keys.unsent, {task_id: 1})
        await home.fleet.sweep()
        await through(home, client, task_id)
        found = await timeline(client, task_id)
    assert words(found) == "create claim note retry claim note end"
    [retry] = [entry.about for entry in found if entry.what == "retry"]
    assert retry == {"number": 1, "delayMs": 3_600_000, "message": "The partner is busy"}
    assert found.entries[-1].about["reason"] == "retries_exhausted"


@covers("W6")
@pytest.mark.parametrize("end", ["returns", "fails", "stops"])
async def test_what_a_tool_says_last_is_written_before_its_end(settings: Settings, end: str) -> None:
    """However it ends, and however quickly."""

    async def tool() -> str:
        await mcptasks.note("first")
        await asyncio.sleep(0.02)  # written by now, most likely, so that the next one has to wait its turn
        await mcptasks.note("last words")
        if end == "fails":
            raise MCPError(-32050, "No stock")
        if end == "stops":
            raise mcptasks.Cancelled
        return "done"

    async with ended(settings, tool) as (_, client, task_id):
        assert words(await timeline(client, task_id)) == "create claim note note end"


@covers("W6")
async def test_sync_tools_add_to_it_too(settings: Settings) -> None:
    """As they use every other async function."""

    def tool(ctx: Context) -> str:
        anyio.from_thread.run(mcptasks.note, "from a thread")
        return "done"

    async with ended(settings, tool) as (_, client, task_id):
        assert texts(await timeline(client, task_id)) == ["from a thread"]


async def test_outside_a_task_a_note_is_nothing() -> None:
    """A live call of the same tool goes on."""
    await mcptasks.note("nobody hears this", data=[1])


@covers("W6", "F03")
async def test_what_cannot_be_written_out_whole_is_still_json(settings: Settings) -> None:
    """Long texts end in an ellipsis, large data is a preview, half an emoji costs one character, NaN is refused."""
    refused = list[str]()

    async def tool(ctx: Context) -> str:
        await mcptasks.note("x" * 9_999, data={"rows": ["y" * 100] * 100})
        await mcptasks.note("half \ud83d", data={"\ud83d": "\ud83d"})
        await ctx.error({"n": float("nan")})  # pyright: ignore[reportDeprecated]
        try:
            await mcptasks.note("bad", data=float("nan"))
        except BadPayload as exc:
            refused.append(str(exc))
        return "done"

    async with ended(settings, tool) as (_, client, task_id):
        long, half, log = (e.about for e in await timeline(client, task_id) if e.what in ("note", "log"))
    assert len(long["text"]) == 500 and long["data"]["truncated"] is True and len(long["data"]["preview"]) == 500
    assert half == {"text": "half \ufffd", "data": {"\ufffd": "\ufffd"}}
    assert log["text"] == '{"n":null}', "the SDK's own way with it"
    assert refused == ["The data of a note is not JSON: NaN and Infinity do not exist in JSON"]


@covers("W6")
async def test_a_tool_that_says_more_than_there_is_room_for_loses_the_middle(settings: Settings) -> None:
    """And the timeline says how much: nothing is passed over in silence."""

    async def tool() -> str:
        await mcptasks.note("first")
        await asyncio.sleep(0)
        for n in range(2_000):
            await mcptasks.note(f"line {n}")
        return "done"

    async with ended(settings, tool) as (_, client, task_id):
        found = await timeline(client, task_id)
    said = texts(found)
    assert len(found) <= 256 and said[-1] == "line 1999"
    assert found.omitted + len(said) == 2_001


@covers("W6")
async def test_what_a_tool_says_keeps_its_order_when_a_write_is_slow(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moment is told from how long ago it was when the write set out."""
    note, slow, over = TaskStore.note, asyncio.Event(), asyncio.Event()

    async def slowly(store: TaskStore, *given: Any) -> Any:
        if not slow.is_set():
            slow.set()
            await over.wait()
        return await note(store, *given)

    monkeypatch.setattr(TaskStore, "note", slowly)

    async def tool() -> str:
        await mcptasks.note("first")
        await slow.wait()
        await mcptasks.note("second")
        await asyncio.sleep(0.05)  # how much later the first one's write comes
        over.set()
        return "done"

    async with ended(settings, tool) as (_, client, task_id):
        found = await timeline(client, task_id)
    assert texts(found) == ["first", "second"]
    assert [entry.at_ms for entry in found] == sorted(entry.at_ms for entry in found)


# ------------------------------------------------------------------------------------------------ the store's part


@covers("W6")
async def test_a_quick_task_that_says_nothing_costs_the_store_nothing_more(
    settings: Settings, raw: redis.Redis
) -> None:
    """Claimed and finished: two scripts, and no key."""

    async def tool() -> str:
        return "done"

    async with house(settings, one(tool)) as (home, client):
        await client.start("tool")
        await home.fleet.deliver()
        task_id = await client.start("tool")
        raw.config_resetstat()
        await home.fleet.deliver()
        stats: Any = raw.info("commandstats")
        assert stats["cmdstat_evalsha"]["calls"] == 2 and "cmdstat_rpush" not in stats
        assert not raw.exists(Keys(settings.prefix).timeline(task_id))


@covers("W6", "W10")
async def test_what_a_tool_says_while_the_store_is_away_is_written_when_it_is_back(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its order, with the moments when it was said."""
    note, refused = TaskStore.note, list[int]()

    async def away(*args: Any) -> str:
        if len(refused) < 2:
            refused.append(1)
            raise StoreUnavailable("away")
        return await note(*args)

    monkeypatch.setattr(TaskStore, "note", away)

    async def tool() -> str:
        for n in range(3):
            await mcptasks.note(f"line {n}")
            await asyncio.sleep(0.02)
        return "done"

    async with ended(settings, tool) as (_, client, task_id):
        found = await timeline(client, task_id)
    first, _, third = (entry.at_ms for entry in found if entry.what == "note")
    assert texts(found) == ["line 0", "line 1", "line 2"] and third - first >= 30


# ------------------------------------------------------------------------------------------------ who reads it


async def quick() -> str:
    await mcptasks.note("hello")
    return "done"


@covers("W6", "P60", "W8")
async def test_only_its_caller_and_operators_read_it(settings: Settings) -> None:
    """Somebody else's, one that is gone, and nonsense are one answer."""
    async with house(settings, one(quick), auth=True, token="alice@app") as (home, alice):
        task_id = await alice.start("tool")
        await through(home, alice, task_id)
        assert texts(await timeline(alice, task_id)) == ["hello"]
        bob, missing = alice.with_(token="bob@app"), task_id[:-1] + ("x" if task_id[-1] != "x" else "y")
        for client, other in ((bob, task_id), (alice, missing), (alice, "nonsense"), (alice, f"{task_id}/x")):
            error = (await read(client, timeline_uri(other))).error
            assert (error["code"], error["message"]) == (-32602, f"Unknown resource: {timeline_uri(other)}")
        async with Operations(settings) as fleet:
            assert texts(await fleet.timeline(task_id[:8])) == ["hello"]
            with pytest.raises(UnknownTask):
                await fleet.timeline(missing)


@covers("W6")
async def test_a_client_of_an_older_protocol_reads_it_as_any_resource(settings: Settings) -> None:
    """It needs no word of the tasks extension, only the id."""
    async with ended(settings, quick) as (_, client, task_id):
        legacy = await LegacyClient(client.http).connect()
        reply = await legacy.send("resources/read", {"uri": timeline_uri(task_id)})
        [contents] = reply.body["result"]["contents"]
        assert texts(Timeline.read(json.loads(contents["text"]))) == ["hello"]


@covers("W6")
async def test_a_handle_has_the_timeline_of_its_task(settings: Settings) -> None:
    """The same values on both ends of the wire, but for the names of workers, which are the operators' business."""
    async with (
        house(settings, one(quick)) as (home, _),
        home.fleet.delivering(),
        Client(home.mcp, extensions=[TasksClient()]) as client,
    ):
        handle = await TasksClient.start(client, "tool", {})
        await handle.result()
        found = await handle.timeline()
        async with Operations(settings) as fleet:
            whole = await fleet.timeline(handle.task_id)
            assert found == whole.for_owner() != whole
        assert [str(entry)[25:] for entry in found][2:] == [
            "note: text hello",
            "end: status completed, reason completed",
        ]
        with pytest.raises(MCPError, match="Unknown resource"):
            await TasksClient.attach(client, "x" * 32).timeline()


NO_TIMELINES: Final = [None, [], {}, {"entries": 7}, {"entries": [{}]}, {"entries": [{"at": "noon", "what": "end"}]}]


@pytest.mark.parametrize("told", NO_TIMELINES)
def test_what_is_no_timeline_is_not_taken_for_one(told: Any) -> None:
    """Other servers may have anything at that address."""
    with pytest.raises(ValueError, match="this is no"):
        Timeline.read(told)


async def test_a_server_that_sends_something_else_is_an_error_of_its_task(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a crash in somebody's JSON."""
    monkeypatch.setattr(Timeline, "told", lambda self: "hello")
    async with (
        house(settings, one(quick)) as (home, _),
        home.fleet.delivering(),
        Client(home.mcp, extensions=[TasksClient()]) as client,
    ):
        handle = await TasksClient.start(client, "tool", {})
        with pytest.raises(TaskFailed, match="not the timeline"):
            await handle.timeline()
