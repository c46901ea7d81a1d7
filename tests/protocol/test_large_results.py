"""Results that are too large for the record: a summary and a link there, the whole result for whoever wants it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from mcp.client import Client
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ImageContent, TextContent

import mcptasks
from mcptasks import Tasks
from mcptasks.client import TaskFailed, TasksClient
from mcptasks.client.polling import Bell
from mcptasks.errors import ArtifactsUnavailable
from mcptasks.settings import Settings
from mcptasks.store.files import BLOCK, Files, Written
from mcptasks.store.keys import Keys
from tests.requirements import covers
from tests.support.durable import one, text, through
from tests.support.house import house, ordinary
from tests.support.raw_client import LegacyClient
from tests.support.reading import files_of, links, read_bytes

pytestmark = pytest.mark.anyio

INLINE: Final = 1_000
LARGE: Final = "naïve \U0001f600\n" * 1_000
BYTES: Final = os.urandom(2 * BLOCK + 11)


@pytest.fixture
def small(settings: Settings) -> Settings:
    """Results are large early."""
    return settings.model_copy(update={"result_inline_max": INLINE})


def as_text() -> str:
    return LARGE


def as_data() -> dict[str, Any]:
    return {"rows": [{"n": n, "x": 1.0, "empty": [], "none": {}} for n in range(200)], "big": 2**60}


def as_error() -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=LARGE)], is_error=True, _meta={"mine": 1})


def as_picture() -> CallToolResult:
    return CallToolResult(content=[ImageContent(type="image", data="QUJD" * 5_000, mime_type="image/png")])


def as_the_sdks_error() -> str:
    raise ToolError(LARGE)


TOOLS: Final = (as_text, as_data, as_error, as_picture, as_the_sdks_error)


def tools(mcp: MCPServer, tasks: Tasks) -> None:
    """A tool per kind of large result."""
    for tool in TOOLS:
        mcp.tool()(tasks.durable()(tool))


@covers("F07", "W7", "P32", "F05")
@pytest.mark.parametrize("tool", [tool.__name__ for tool in TOOLS])
async def test_a_large_result_is_a_summary_and_a_link_to_the_very_result_of_the_live_call(
    small: Settings, raw: redis.Redis, tool: str
) -> None:
    """The record stays small; whether it is an error, and the tool's own metadata, stay with it."""
    async with house(small, tools) as (home, client):
        expected = (await (await home.open_ordinary()).call(tool)).body["result"]
        assert list(expected["_meta"].pop("io.modelcontextprotocol/serverInfo")) == ["name", "version"]
        meta = expected["_meta"] or expected.pop("_meta")
        state = await through(home, client, await client.start(tool))
        result, link = state["result"], links(state)["result.json"]

        assert json.loads(await read_bytes(client, link["uri"])) == expected
        assert link["mimeType"] == "application/json" and link["size"] > 2 * INLINE
        assert result == {
            "resultType": "complete",
            "isError": expected["isError"],
            "content": [{"type": "text", "text": text(state)}, link],
            "_meta": {**meta, "mcptasks/result": link["uri"]},
        }
        assert f"The whole result has {link['size']:,} bytes" in text(state)
        assert text(state).startswith("[" if tool == "as_picture" else expected["content"][0]["text"][:100])
        assert len(str(raw.hget(Keys(small.prefix).task(state["taskId"]), "result"))) < 8 * 1024


@covers("F07", "P32", "B01")
@pytest.mark.parametrize("tool", [tool.__name__ for tool in TOOLS])
async def test_a_client_that_knows_no_tasks_gets_the_large_result_itself(small: Settings, tool: str) -> None:
    """Its call waits, and is live to it: byte for byte, in both versions."""
    async with house(small, tools) as (home, client), home.fleet.delivering():
        live = await home.open_ordinary()
        assert await client.undeclared().call(tool) == await live.undeclared().call(tool)
        params = {"name": tool, "arguments": {}}
        ours, theirs = [await LegacyClient(one.http).connect() for one in (client, live)]
        assert await ours.send("tools/call", params) == await theirs.send("tools/call", params)


@covers("F07")
async def test_at_the_limit_a_result_is_in_its_record_and_above_it_is_not(settings: Settings) -> None:
    """Bytes of the JSON; what is in the record is the live result."""

    async def tool() -> str:
        return "x" * 100

    async with house(settings, one(tool)) as (home, client):
        state = await through(home, client, await client.start("tool"))
    size = len(json.dumps(state["result"], separators=(",", ":")))
    for limit, kept in ((size, True), (size - 1, False)):
        changed = settings.model_copy(update={"result_inline_max": limit})
        async with house(changed, one(tool)) as (home, client):
            again = await through(home, client, await client.start("tool"))
            assert (again["result"] == state["result"]) is kept
            assert (links(again) == {}) is kept


@covers("W7")
async def test_the_tools_artifacts_are_linked_beside_its_large_result(small: Settings) -> None:
    """And stand in the whole one too."""

    async def tool() -> str:
        await mcptasks.artifact("result.json", "a namesake")
        return LARGE

    async with house(small, one(tool)) as (home, client):
        state = await through(home, client, await client.start("tool"))
        first, second = [block for block in state["result"]["content"] if block["type"] == "resource_link"]
        assert first["uri"] == state["result"]["_meta"]["mcptasks/result"]
        assert await read_bytes(client, second["uri"]) == b"a namesake"
        assert second in json.loads(await read_bytes(client, first["uri"]))["content"]


@covers("W10", "W7")
async def test_a_result_waits_until_its_file_can_be_written(small: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is done and must not be lost because a disk is full for a minute."""
    tries, write = list[str](), Files.write

    async def fails_twice(self: Files, task_id: str, chunks: AsyncIterator[bytes], limit: int, what: str) -> Written:
        tries.append(what)
        if len(tries) < 3:
            raise ArtifactsUnavailable("No space left on device")
        return await write(self, task_id, chunks, limit, what)

    monkeypatch.setattr(Files, "write", fails_twice)
    async with house(small, tools) as (home, client):
        state = await through(home, client, await client.start("as_text"))
        assert len(tries) == 3
        whole = json.loads(await read_bytes(client, links(state)["result.json"]["uri"]))
        assert whole["content"][0]["text"] == LARGE


@covers("F09")
async def test_a_place_that_cannot_be_is_the_end_of_a_task_with_a_large_result(small: Settings) -> None:
    """It names the setting; small results need no place."""
    nowhere = small.model_copy(update={"artifacts_url": "nope://place"})
    async with house(nowhere, tools) as (home, client):
        state = await through(home, client, await client.start("as_text"))
        assert state["status"] == "failed"
        assert "MCPTASKS_ARTIFACTS_URL names no place for files: Protocol not known: nope" in state["error"]["message"]


# ------------------------------------------------------------------------------------------------ our client


@covers("F07", "P32")
async def test_our_client_gets_what_the_live_call_would_have_given(small: Settings) -> None:
    """Structured data included; by a call and by a handle."""
    async with (
        house(small, tools) as (home, _),
        home.fleet.delivering(),
        Client(ordinary(tools)) as live,
        Client(home.mcp, extensions=[TasksClient()]) as client,
    ):
        for tool in TOOLS:
            name = tool.__name__
            want = await live.call_tool(name, {})
            handle = await TasksClient.start(client, name, {})
            for got in (await client.call_tool(name, {}), await handle.result()):
                assert _unstamped(got) == _unstamped(want)
            assert await handle.artifacts() == []


def _unstamped(result: CallToolResult) -> dict[str, Any]:
    dump = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    dump.get("_meta", {}).pop("io.modelcontextprotocol/serverInfo", None)
    return {name: value for name, value in dump.items() if value or name != "_meta"}


async def test_our_client_fetches_no_more_than_it_is_told_to(small: Settings) -> None:
    """Then it has the summary and the link."""
    async with (
        house(small, tools) as (home, _),
        home.fleet.delivering(),
        Client(home.mcp, extensions=[TasksClient(result_max=5_000)]) as client,
    ):
        result = await client.call_tool("as_error", {})
    assert [block.type for block in result.content] == ["text", "resource_link"]


async def filed() -> str:
    await mcptasks.artifact("data.bin", BYTES)
    await mcptasks.artifact("empty", b"")
    return "done"


@covers("W7")
async def test_a_handle_reads_and_saves_the_artifacts_of_its_task(settings: Settings, tmp_path: Path) -> None:
    """In parts, whatever the server's limit; a file is there whole or not at all."""
    settings = settings.model_copy(update={"artifact_read_max": 300_000})
    async with (
        house(settings, one(filed)) as (home, _),
        home.fleet.delivering(),
        Client(home.mcp, extensions=[TasksClient()]) as client,
    ):
        handle = await TasksClient.start(client, "tool", {})
        data, empty = await handle.artifacts()
        parts = [part async for part in handle.read(data)]
        assert b"".join(parts) == BYTES and max(map(len, parts)) == 300_000
        assert [part async for part in handle.read(empty.uri)] == []
        assert await handle.save(data, tmp_path / "it") == len(BYTES)
        with pytest.raises(ValueError, match="no link to an artifact"):
            await handle.save("https://example.com", tmp_path / "no")
        with pytest.raises(MCPError, match="Unknown resource"):
            await handle.save(data.uri[:-64] + "0" * 64, tmp_path / "no")
    assert _content(tmp_path) == {"it": BYTES}


async def at_once(delay_ms: int, bell: Bell, heard: int) -> None:
    """A pause that is none."""


@covers("W7")
@pytest.mark.parametrize("damage", ["flipped", "short"])
async def test_a_damaged_artifact_is_never_taken_for_the_whole(settings: Settings, tmp_path: Path, damage: str) -> None:
    """The digest in the link tells."""
    async with (
        house(settings, one(filed)) as (home, _),
        home.fleet.delivering(),
        Client(home.mcp, extensions=[TasksClient(pause=at_once)]) as client,
    ):
        handle = await TasksClient.start(client, "tool", {})
        [link, _] = await handle.artifacts()
        [path] = [path for path in files_of(settings) if path.name.startswith(hashlib.sha256(BYTES).hexdigest())]
        path.write_bytes(BYTES[:-1] + bytes([BYTES[-1] ^ 1]) if damage == "flipped" else BYTES[:-1])
        with pytest.raises((TaskFailed, MCPError)) as found:
            await handle.save(link, tmp_path / "it")
    assert handle.task_id not in str(found.value)
    assert "it" not in _content(tmp_path)


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
