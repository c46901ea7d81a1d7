"""A task belongs to its caller, not to one client: each request is shown what its client declared (SEP-2322, MRTR)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError

from mcptasks import Tasks
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import House, house
from tests.support.person import person
from tests.support.raw_client import RawClient
from tests.support.tools import Word

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:The (roots|sampling) capability is deprecated"),
]

FORM: Final = {"elicitation": {"form": {}}}
URL: Final = {"elicitation": {"url": {}}}
ROOTS: Final = {"roots": {}}
KEY: Final[Any] = {"mcptasks/idempotencyKey": "k"}


def tools(mcp: MCPServer, tasks: Tasks) -> None:
    """A tool that asks for two kinds of things at once."""

    @mcp.tool()
    @tasks.durable()
    async def ask_two_kinds(ctx: Context) -> str:
        word, roots = await asyncio.gather(
            ctx.elicit("Which word?", Word),
            ctx.session.list_roots(),  # pyright: ignore[reportDeprecated] - tools still do
        )
        return f"{word.action} {len(roots.roots)}"


async def parked(home: House, client: RawClient) -> tuple[str, dict[str, str]]:
    """A task that waits, and the keys of its questions by their methods."""
    task_id = await client.start("ask_two_kinds", meta=KEY)
    await home.fleet.settle()
    return task_id, {ask["method"]: key for key, ask in (await client.state(task_id))["inputRequests"].items()}


async def methods(client: RawClient, task_id: str) -> list[str]:
    """What the client is asked by a task that waits for input."""
    state = await client.state(task_id)
    assert state["status"] == "input_required"
    return sorted(ask["method"] for ask in state["inputRequests"].values())


ACCEPT: Final = {"action": "accept", "content": {"word": "x"}}
NO_ROOTS: Final[Any] = {"roots": []}


@covers("C14", "P44", "P12", "B01")
async def test_each_request_is_shown_what_its_client_can_be_asked(settings: Settings) -> None:
    """C14: not surfaced on polls that do not declare it; the task stays answerable by a client that does."""
    async with house(settings, tools) as (home, client):
        task_id, keys = await parked(home, client)
        seen = {str(has): await methods(client.with_(capabilities=has), task_id) for has in (FORM, URL, ROOTS, {})}
        assert seen == {
            str(FORM): ["elicitation/create"],
            str(URL): [],
            str(ROOTS): ["roots/list"],
            str({}): [],
        }
        await client.with_(capabilities=ROOTS).update(task_id, {keys["roots/list"]: NO_ROOTS})
        assert await methods(client.with_(capabilities=ROOTS), task_id) == []
        assert await methods(client, task_id) == ["elicitation/create"]
        await client.with_(capabilities=FORM).update(task_id, {keys["elicitation/create"]: ACCEPT})
        await home.fleet.settle()
        state = await client.with_(capabilities={}).state(task_id)
        assert state["result"]["structuredContent"] == {"result": "accept 0"}


@covers("C14", "P70")
async def test_a_listener_is_told_what_its_polls_would_show(settings: Settings) -> None:
    """SEP-2663: a notification is identical to what tasks/get would have returned."""
    async with house(settings, tools) as (home, client):
        task_id, _ = await parked(home, client)
        for has in (ROOTS, {}):
            only = client.with_(capabilities=has)
            async with home.listen(only, task_id) as listener:
                assert await listener.acknowledged() == [task_id]
                told = await listener.task()
            polled = await only.state(task_id)
            assert {"resultType": "complete", **told} == polled


@covers("C14", "P23", "C09")
async def test_a_waiting_call_is_asked_what_it_declared_and_told_what_is_missing(settings: Settings) -> None:
    """Ours: the same call, with its key, by a client that can be asked less; it may give what it can."""
    lacks = {"requiredCapabilities": {"elicitation": {"form": {}}}}
    async with house(settings, tools) as (home, client):
        task_id, keys = await parked(home, client)
        nobody, some = (client.undeclared().with_(capabilities=has) for has in ({}, ROOTS))
        error = (await nobody.call("ask_two_kinds", meta=KEY)).error
        both = {"requiredCapabilities": {"elicitation": {"form": {}}, "roots": {}}}
        assert (error["code"], error["data"]) == (-32021, {**both, "mcptasks/taskId": task_id})
        assert "(elicitation and roots)" in error["message"] and f"The task {task_id} goes on" in error["message"]

        asked = (await some.call("ask_two_kinds", meta=KEY)).result
        assert list(asked["inputRequests"]) == [keys["roots/list"]]
        answers = {"inputResponses": {keys["roots/list"]: NO_ROOTS}, "requestState": asked["requestState"]}
        error = (await some.call("ask_two_kinds", meta=KEY, **answers)).error
        assert (error["code"], error["data"]) == (-32021, {**lacks, "mcptasks/taskId": task_id})
        assert await methods(client, task_id) == ["elicitation/create"]


@covers("C14", "P23")
async def test_an_older_client_is_asked_live_what_it_declared_and_told_what_is_missing(settings: Settings) -> None:
    """Ours: as in rounds."""
    async with house(settings, tools) as (home, client), home.fleet.delivering():
        task_id, _ = await parked(home, client)
        async with person(home.mcp, mode="legacy", elicitation_callback=None) as older:
            with pytest.raises(MCPError, match=r"did not declare .* \(elicitation\)") as told:
                await older.call_tool("ask_two_kinds", meta=KEY)
        assert told.value.error.code == -32021
        assert await methods(client, task_id) == ["elicitation/create"], "its roots were taken"
