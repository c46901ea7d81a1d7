"""Artifacts and large results: handed out as links, read by their caller on any server, gone with their task."""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import anyio.from_thread
import pytest
import redis
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ResourceLink

import mcptasks
from mcptasks import Tasks
from mcptasks.errors import BadPayload, TooLarge
from mcptasks.fleet.sweeper import discard
from mcptasks.links import SIZE, URIS
from mcptasks.settings import Settings
from mcptasks.store.files import BLOCK
from mcptasks.store.keys import Keys
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.durable import answer_all, one, text, through
from tests.support.house import Gate, house
from tests.support.raw_client import LegacyClient
from tests.support.reading import files_of, links, read, read_bytes
from tests.support.tools import Word

pytestmark = pytest.mark.anyio

BYTES: Final = os.urandom(2 * BLOCK + 11)
INLINE: Final = 1_000


# ------------------------------------------------------------------------------------------------ written


async def _aiter() -> AsyncIterator[bytes]:
    for at in range(0, len(BYTES), 1_000_003):
        yield BYTES[at : at + 1_000_003]


def _file(folder: Path) -> Path:
    path = folder / "data"
    path.write_bytes(BYTES)
    return path


KINDS: Final[dict[str, Callable[[Path], Any]]] = {
    "bytes": lambda _: BYTES,
    "a bytearray": lambda _: bytearray(BYTES),
    "a view": lambda _: memoryview(BYTES),
    "a path": _file,
    "an iterator": lambda _: (BYTES[at : at + 99_991] for at in range(0, len(BYTES), 99_991)),
    "a list": lambda _: [BYTES[:5], b"", BYTES[5:]],
    "an open file": lambda folder: _file(folder).open("rb"),
    "a file in memory": lambda _: io.BytesIO(BYTES),
    "an async iterator": lambda _: _aiter(),
}


@covers("W7")
@pytest.mark.parametrize("style", ["async", "sync"])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_artifact_is_read_back_byte_by_byte(settings: Settings, tmp_path: Path, kind: str, style: str) -> None:
    """Whatever it is given as, by async tools and by sync ones."""
    data = KINDS[kind](tmp_path)

    async def tool() -> str:
        link = await mcptasks.artifact("data.bin", data)
        return link.uri

    def tool_sync() -> str:
        return anyio.from_thread.run(mcptasks.artifact, "data.bin", data).uri

    async with house(settings, one(tool if style == "async" else tool_sync)) as (home, client):
        state = await through(home, client, await client.start("tool"))
        [link] = links(state).values()
        assert await read_bytes(client, link["uri"]) == BYTES
    if kind == "an open file":
        data.close()
    sha256 = hashlib.sha256(BYTES).hexdigest()
    assert link == {
        "type": "resource_link",
        "uri": f"{URIS}{state['taskId']}/artifacts/{sha256}",
        "name": "data.bin",
        "mimeType": "application/octet-stream",
        "size": len(BYTES),
    }
    assert text(state) == link["uri"]


@covers("W7", "F03")
async def test_text_is_read_as_text_with_the_type_that_its_name_says(settings: Settings) -> None:
    """UTF-8; half an emoji costs one character. A part of it is bytes, because it may end within a character."""

    async def tool() -> None:
        await mcptasks.artifact("a.csv", "naïve\ud83d,\U0001f600\n")
        await mcptasks.artifact("b", "plain")
        await mcptasks.artifact("c.html", "<p>", "text/plain")
        await mcptasks.artifact("d.txt", b"\xff")
        await mcptasks.artifact("e.json", {"in": 1}.__str__())

    async with house(settings, one(tool)) as (home, client):
        found = links(await through(home, client, await client.start("tool")))
        assert [link["mimeType"] for link in found.values()] == [
            *("text/csv", "text/plain", "text/plain", "text/plain", "application/json")
        ]
        uri = found["a.csv"]["uri"]
        reply = (await read(client, uri)).result
        assert reply == {
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
            "contents": [{"uri": uri, "mimeType": "text/csv", "text": "naïve\ufffd,\U0001f600\n", "_meta": {SIZE: 15}}],
        }
        [part] = (await read(client, f"{uri}?length=3")).result["contents"]
        assert (part["mimeType"], base64.b64decode(part["blob"])) == ("text/csv", b"na\xc3")
        [whole] = (await read(client, found["d.txt"]["uri"])).result["contents"]
        assert base64.b64decode(whole["blob"]) == b"\xff"


@covers("W7")
async def test_the_links_come_after_what_the_tool_returned_each_once(settings: Settings) -> None:
    """The tool's own content and data are as live; a link that it returns itself stands where it put it."""

    async def tool() -> list[Any]:
        link = await mcptasks.artifact("b", b"b")
        await mcptasks.artifact("a", b"a")
        return [link, "text"]

    async def fails() -> str:
        await mcptasks.artifact("log", b"why")
        raise ToolError("No")

    def both(mcp: MCPServer, tasks: Tasks) -> None:
        one(tool)(mcp, tasks)
        mcp.tool()(tasks.durable()(fails))

    async with house(settings, both) as (home, client):
        state = await through(home, client, await client.start("tool"))
        assert [block.get("name", block.get("text")) for block in state["result"]["content"]] == ["b", "text", "a"]
        state = await through(home, client, await client.start("fails"))
        assert state["result"]["isError"] and list(links(state)) == ["log"]


@covers("W7")
async def test_a_name_is_never_a_path(settings: Settings) -> None:
    """It is what people see."""
    names = ["../../escaped", "/etc/escaped", "a/b", "..", "naïve \U0001f600"]

    async def tool() -> None:
        for name in names:
            await mcptasks.artifact(name, name)

    async with house(settings, one(tool)) as (home, client):
        found = links(await through(home, client, await client.start("tool")))
        assert found.keys() == set(names)
        for name, link in found.items():
            assert await read_bytes(client, link["uri"]) == name.encode()
    place = Path(settings.artifacts_url)
    assert len({path.parent for path in files_of(settings)}) == 1
    assert not list(place.parent.rglob("escaped*"))


class Broken(Exception):
    """A tool's own."""


def _breaks() -> Any:
    yield b"x"
    raise Broken("own")


@covers("W7")
@pytest.mark.parametrize(
    ("name", "data", "error", "words"),
    [
        ("", b"", BadPayload, "1 to 255 printable characters; 0 were given"),
        ("x" * 256, b"", BadPayload, "256 were given"),
        ("a\nb", b"", BadPayload, "printable"),
        ("a", ["text"], BadPayload, "'a' is given as an iterator of str, not of bytes"),
        ("a", b"x" * 101, TooLarge, "'a' has 101 bytes; the limit is 100 bytes .MCPTASKS_ARTIFACT_MAX"),
        ("a", Path("/nowhere"), FileNotFoundError, "/nowhere"),
        ("a", _breaks(), Broken, "own"),
    ],
)
async def test_what_cannot_be_an_artifact_is_the_tools_error_and_leaves_no_file(
    settings: Settings, name: str, data: Any, error: type[Exception], words: str
) -> None:
    """The tool may mind it and go on."""

    async def tool() -> str:
        with pytest.raises(error, match=words):
            await mcptasks.artifact(name, data)
        return "minded"

    async with house(settings.model_copy(update={"artifact_max": 100}), one(tool)) as (home, client):
        state = await through(home, client, await client.start("tool"))
        assert (text(state), links(state)) == ("minded", {})
    assert files_of(settings) == []


@covers("W7")
async def test_limits_of_the_task_name_their_settings(settings: Settings) -> None:
    """How many, and how much in all; no file is left of the one too many."""
    limited = settings.model_copy(update={"artifacts_max": 2, "artifacts_total_max": 10})

    async def tool() -> None:
        await mcptasks.artifact("a", b"1" * 6)
        with pytest.raises(TooLarge, match=r"11 bytes; the limit is 10 bytes .MCPTASKS_ARTIFACTS_TOTAL_MAX"):
            await mcptasks.artifact("b", b"2" * 5)
        await mcptasks.artifact("b", b"2")
        with pytest.raises(BadPayload, match=r"at most 2 artifacts .MCPTASKS_ARTIFACTS_MAX.; The artifact 'c'"):
            await mcptasks.artifact("c", b"3")

    async with house(limited, one(tool)) as (home, client):
        state = await through(home, client, await client.start("tool"))
        assert not state["result"].get("isError"), state
        assert list(links(state)) == ["a", "b"]
    assert len(files_of(settings)) == 2


async def test_outside_a_task_the_link_carries_the_bytes_themselves() -> None:
    """There is nobody to keep them; as in a live call everything is in the result."""
    link = await mcptasks.artifact("a.txt", "text")
    assert (link.uri, link.name, link.size) == ("data:text/plain;base64,dGV4dA==", "a.txt", 4)
    with pytest.raises(TooLarge, match="outside a task"):
        await mcptasks.artifact("a", bytes(BLOCK + 1))


# ------------------------------------------------------------------------------------------------ runs


@covers("W7", "E01")
async def test_a_replay_writes_the_same_artifact_and_a_changed_one_replaces_it(settings: Settings) -> None:
    """One entry and one file per name, however often the tool runs; in a step it is written once."""
    runs, written = list[int](), list[int]()

    async def put() -> ResourceLink:
        written.append(1)
        return await mcptasks.artifact("step", b"step")

    async def tool(ctx: Context) -> str:
        runs.append(1)
        await mcptasks.artifact("same", b"same")
        await mcptasks.artifact("changed", f"run {len(runs)}")
        link = await mcptasks.step("put", put)
        await ctx.elicit("Sure?", Word)
        return link.uri

    async with house(settings, one(tool)) as (home, client):
        task_id = await client.start("tool")
        await home.fleet.settle()
        await answer_all(client, task_id)
        state = await through(home, client, task_id)
        found = links(state)
        assert (len(runs), len(written)) == (2, 1)
        assert await read_bytes(client, found["changed"]["uri"]) == b"run 2"
        assert text(state) == found["step"]["uri"]
        old = found["same"]["uri"].rpartition("/")[0] + "/" + hashlib.sha256(b"run 1").hexdigest()
        assert (await read(client, old)).error["code"] == -32602
    assert len(files_of(settings)) == 3


@covers("W7", "B06", "N6")
async def test_a_run_that_lost_its_task_keeps_nothing(settings: Settings, raw: redis.Redis) -> None:
    """Neither an artifact nor a large result; no file of its own is left."""
    gate, error = Gate(), list[BaseException]()

    async def tool() -> str:
        await gate.wait()
        try:
            await mcptasks.artifact("late", b"late")
        except BaseException as exc:
            error.append(exc)
        return "x" * 2 * INLINE

    small = settings.model_copy(update={"result_inline_max": INLINE})
    async with house(small, one(tool)) as (home, client):
        task_id = await client.start("tool")
        run = home.fleet.begin()
        await gate.arrival()
        raw.hincrby(Keys(settings.prefix).task(task_id), "token", 1)
        gate.opened.set()
        assert await run == "lost"
        assert isinstance(error[0], mcptasks.ClaimLost)
        assert (await client.state(task_id))["status"] == "working"
    assert files_of(settings) == []


# ------------------------------------------------------------------------------------------------ read


@covers("W7", "P80", "P60", "B01", "P81")
async def test_an_artifact_is_its_callers_on_every_server_and_nobody_elses(
    settings: Settings, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Missing, expired, somebody else's: one answer, the SDK's for a resource that does not exist."""

    async def tool() -> None:
        await mcptasks.artifact("a", b"secret")

    with caplog.at_level(logging.INFO, "mcptasks"):
        async with house(settings, one(tool), auth=True, token="alice") as (home, alice):
            state = await through(home, alice, await alice.start("tool"))
            uri = links(state)["a"]["uri"]
            other = await home.open(token="alice")
            assert await read_bytes(other, uri) == b"secret"
            assert await read_bytes(other.undeclared(), uri) == b"secret"

            refused = [await read(other.with_(token="bob"), uri)]
            raw.delete(Keys(settings.prefix).task(state["taskId"]))
            refused.append(await read(other, uri))
            assert [r.error for r in refused] == [
                {"code": -32602, "message": f"Unknown resource: {uri}", "data": {"uri": uri}}
            ] * 2
            nothing = "mcptasks-no://x"
            like = (await read(other, nothing)).error
            assert like == {"code": -32602, "message": f"Unknown resource: {nothing}", "data": {"uri": nothing}}
    assert state["taskId"] not in caplog.text


@covers("F11", "W7")
@pytest.mark.parametrize("rest", ["", "../../x", "\ud83d", "x" * 100_000, "*", "x\r\nX: y"])
async def test_odd_uris_are_unknown_without_a_look_into_the_store(
    settings: Settings, raw: redis.Redis, rest: str
) -> None:
    """What could not be ours is nobody's."""
    async with house(settings, one(lambda: None)) as (_, client):
        raw.config_resetstat()
        reply = await client.send("resources/read", {"uri": URIS + rest}, headers={"Mcp-Name": None})
        if reply.status != 400 or reply.error["code"] != -32020:  # the SDK wants the header where it can be one
            assert (reply.status, reply.error["code"]) == (400, -32602)
        assert "cmdstat_hget" not in raw.info("commandstats")


@covers("W7")
async def test_what_is_too_large_for_one_answer_says_how_to_read_it(settings: Settings) -> None:
    """A part is never taken for the whole; a part that is too long is a shorter one."""

    async def tool() -> None:
        await mcptasks.artifact("a", b"0123456789")

    async with house(settings.model_copy(update={"artifact_read_max": 4}), one(tool)) as (home, client):
        uri = links(await through(home, client, await client.start("tool")))["a"]["uri"]
        error = (await read(client, uri)).error
        assert error["code"] == -32602
        assert "10 bytes, and one answer at most 4" in error["message"]
        assert error["data"] == {"uri": uri, "next": f"{uri}?offset=0&length=4", SIZE: 10}
        for query, want in {
            "?offset=8": b"89",
            "?length=99": b"0123",
            "?offset=10": b"",
            "?offset=99&length=1": b"",
        }.items():
            [contents] = (await read(client, uri + query)).result["contents"]
            assert base64.b64decode(contents["blob"]) == want
        assert await read_bytes(client, uri, part=100) == b"0123456789"


@covers("W7", "B01")
async def test_a_client_of_an_older_protocol_reads_artifacts_too(settings: Settings) -> None:
    """It got the links with its waiting call."""

    async def tool() -> str:
        await mcptasks.artifact("a.txt", "text")
        return "done"

    async with house(settings, one(tool)) as (home, client):
        legacy = await LegacyClient(client.http).connect()
        async with home.fleet.delivering():
            result = (await legacy.send("tools/call", {"name": "tool", "arguments": {}})).body["result"]
        [_, link] = result["content"]
        answer = (await legacy.send("resources/read", {"uri": link["uri"]})).body["result"]
        assert answer == {
            "contents": [{"uri": link["uri"], "mimeType": "text/plain", "text": "text", "_meta": {SIZE: 4}}]
        }


@covers("W7")
async def test_the_servers_own_resources_are_as_they_were(settings: Settings) -> None:
    """Read and listed as without us; no artifact and no template of ours is in any list."""

    async def tool() -> None:
        await mcptasks.artifact("a", b"a")

    def tools(mcp: MCPServer, tasks: Tasks) -> None:
        one(tool)(mcp, tasks)

        @mcp.resource("notes://today")
        def today() -> str:
            return "sunny"

        @mcp.resource("notes://{day}/weather")
        def weather(day: str) -> str:
            return f"{day}: rain"

    async with house(settings, tools) as (home, client):
        await through(home, client, await client.start("tool"))
        live = await home.open_ordinary()
        for method, params in [
            ("resources/list", {}),
            ("resources/templates/list", {}),
            ("resources/read", {"uri": "notes://today"}),
            ("resources/read", {"uri": "notes://monday/weather"}),
            ("resources/read", {"uri": "notes://none"}),
            ("mcptasks/resources/read", {"uri": f"{URIS}x"}),
        ]:
            headers = {"Mcp-Name": params.get("uri")}
            ours, theirs = [await c.send(method, params, headers=headers) for c in (client, live)]
            assert ours == theirs
        assert (await client.send("mcptasks/resources/read", {})).error["code"] == -32601


@covers("W7", "W10")
async def test_a_server_that_cannot_reach_the_bytes_says_so_and_its_log_says_where_it_looked(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """Not "unknown": the record has it, and an operator has something to mend."""

    async def tool() -> None:
        await mcptasks.artifact("a", b"a")

    async with house(settings, one(tool)) as (home, client):
        state = await through(home, client, await client.start("tool"))
        for file in files_of(settings):
            file.unlink()
        error = (await read(client, links(state)["a"]["uri"])).error
    assert error == {"code": -32603, "message": "The artifact exists, but this server cannot reach its bytes"}
    assert "MCPTASKS_ARTIFACTS_URL" in caplog.text and settings.artifacts_url in caplog.text
    assert state["taskId"] not in caplog.text


@covers("W7", "R7")
async def test_artifacts_are_gone_with_their_task(settings: Settings, raw: redis.Redis) -> None:
    """The record first, the files with the next sweep."""

    async def tool() -> str:
        await mcptasks.artifact("a", BYTES)
        return "x" * 2 * INLINE

    small = settings.model_copy(update={"result_inline_max": INLINE})
    async with house(small, one(tool)) as (home, client):
        state = await through(home, client, await client.start("tool"))
        assert len(files_of(settings)) == 2
        keys, store = Keys(settings.prefix), TaskStore(settings)
        await discard(store)
        assert len(files_of(settings)) == 2
        for key in raw.scan_iter(match=f"{settings.prefix}*{state['taskId']}*"):
            raw.delete(key)
        raw.zadd(keys.artifacts, {state["taskId"]: 1}, xx=True)
        await discard(store)
        await store.aclose()
    assert files_of(settings) == [] and len(os.listdir(settings.artifacts_url)) <= 1
