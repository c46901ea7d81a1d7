"""A tool's result is the same live and as a task, byte for byte except for the server's stamp (SEP-2663, P32).

`tests/support/kinds` is the list of tools; `docs/compatibility.md` publishes what is found here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support import kinds
from tests.support.house import House, house
from tests.support.kinds.shelf import Kind
from tests.support.raw_client import LegacyClient, RawClient, Reply

pytestmark = pytest.mark.anyio

HEADERS: Final = {"X-Tenant": "blue"}

EQUAL: Final = [kind for kind in kinds.QUIET if kind.differs is None]
DIFFERENT: Final = [kind for kind in kinds.QUIET if kind.differs is not None]


@asynccontextmanager
async def both(settings: Settings, *tools: str) -> AsyncGenerator[tuple[House, RawClient, RawClient]]:
    """These tools (or all) on a server with tasks and on an ordinary one, for one authenticated caller."""
    keeping = settings.model_copy(update={"headers": ("x-tenant",)})
    offered, more = kinds.register(*tools), kinds.extensions
    async with house(keeping, offered, auth=True, lifespan=kinds.lifespan, extensions=more, token="ann") as (
        home,
        client,
    ):
        yield home, client, await home.open_ordinary(token="ann")


def unstamped(reply: Reply) -> bytes:
    """The response's own bytes, its stamp cut out and nothing else touched."""
    stamp = json.dumps(reply.body.get("result", {}).get("_meta", {}).get("io.modelcontextprotocol/serverInfo"))
    return reply.raw.replace(b"io.modelcontextprotocol/serverInfo", b"").replace(stamp.encode(), b"")


async def ended(home: House, client: RawClient, kind: Kind) -> dict[str, Any]:
    """The task of that call at its end."""
    task_id = await client.start(kind.tool, kind.arguments, headers=HEADERS)
    assert await home.fleet.deliver() in ("completed", "failed")
    return await client.state(task_id)


@covers("P32", "P31", "C03", "F05", "F09")
@pytest.mark.parametrize("kind", EQUAL, ids=lambda kind: kind.id)
async def test_a_task_ends_with_the_very_bytes_of_the_live_answer(settings: Settings, kind: Kind) -> None:
    """SEP-2663: the result of a task is exactly what the request would have returned. Order of members included."""
    async with both(settings, *kind.tools) as (home, client, ordinary):
        live = (await ordinary.call(kind.tool, kind.arguments, headers=HEADERS)).body
        task = await ended(home, client, kind)
        if "error" in live:
            assert (task["status"], task["error"]) == ("failed", live["error"])
            return
        meta = live["result"].pop("_meta")
        del meta["io.modelcontextprotocol/serverInfo"]
        expected = live["result"] | ({"_meta": meta} if meta else {})
        assert task["status"] == "completed"
        assert _ordered(task["result"]) == _ordered(expected)


def _ordered(value: dict[str, Any]) -> str:
    """JSON in which the place of `_meta` alone does not count: the live answer's stamp moves it."""
    return json.dumps({name: value[name] for name in sorted(value, key=lambda name: name == "_meta")})


@covers("P32", "P31", "C03", "F05", "F09")
@pytest.mark.parametrize("kind", EQUAL, ids=lambda kind: kind.id)
async def test_a_client_that_knows_no_tasks_gets_the_very_bytes_of_the_live_answer(
    settings: Settings, kind: Kind
) -> None:
    """Ours: the call waits for its task on the fleet; what it is answered with tells nothing of it."""
    call = (kind.tool, kind.arguments)
    async with both(settings, *kind.tools) as (home, client, ordinary), home.fleet.delivering():
        live = await ordinary.undeclared().call(*call, headers=HEADERS)
        assert await client.undeclared().call(*call, headers=HEADERS) == live
        older = await LegacyClient(client.http, token="ann").connect()
        older_live = await LegacyClient(ordinary.http, token="ann").connect()
        params = {"name": kind.tool, "arguments": kind.arguments}
        assert await older.send("tools/call", params) == await older_live.send("tools/call", params)


@covers("P32", "F03")
@pytest.mark.parametrize("kind", DIFFERENT, ids=lambda kind: kind.id)
async def test_where_a_task_differs_it_differs_as_the_page_says(settings: Settings, kind: Kind) -> None:
    """Ours: no difference is unexplained, and none that is explained has gone."""
    differs = kind.differs
    assert differs is not None
    async with both(settings, *kind.tools) as (home, client, ordinary):
        live = await ordinary.call(kind.tool, kind.arguments, headers=HEADERS)
        assert differs.live in _plain(live.body)
        task = _plain(await ended(home, client, kind))
        assert differs.task in task
        assert differs.live not in task
        async with home.fleet.delivering():
            waited = await client.undeclared().call(kind.tool, kind.arguments, headers=HEADERS)
        assert (differs.live if differs.waiting_is_live else differs.task) in _plain(waited.body)


def _plain(body: dict[str, Any]) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


@covers("P22")
@pytest.mark.parametrize("kind", kinds.REFUSED, ids=lambda kind: kind.id)
async def test_a_call_that_cannot_run_gets_the_live_answer_and_no_task(settings: Settings, kind: Kind) -> None:
    """Ours: arguments are validated before anything is stored, and the SDK itself words the refusal."""
    async with both(settings, *kind.tools) as (home, client, ordinary):
        call = (kind.tool, kind.arguments)
        assert unstamped(await client.call(*call)) == unstamped(await ordinary.call(*call))
        assert home.fleet.messages == []


@covers("P05")
async def test_a_server_with_tasks_lists_the_tools_as_an_ordinary_one(settings: Settings) -> None:
    """Ours: whether a tool is durable is the server's business; schema, annotations, icons and metadata stay."""
    async with both(settings) as (_, client, ordinary):
        live = await ordinary.send("tools/list", {})
        assert await client.send("tools/list", {}) == live
        assert len(live.body["result"]["tools"]) > len({kind.tool for kind in kinds.QUIET})
        older = await LegacyClient(client.http, token="ann").connect()
        older_live = await LegacyClient(ordinary.http, token="ann").connect()
        assert await older.send("tools/list", {}) == await older_live.send("tools/list", {})
