"""What a client that knows no tasks gets for a durable tool: the operator's choice, and for one tool its author's."""

from __future__ import annotations

from typing import Any, Final

import pytest
import redis
from mcp.server.mcpserver import MCPServer

from mcptasks import Tasks, seams
from mcptasks.model import Undeclared
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import house
from tests.support.raw_client import TASKS, LegacyClient, Reply

pytestmark = pytest.mark.anyio

MISSING: Final = {"requiredCapabilities": {"extensions": {TASKS: {}}}}


def tools(mcp: MCPServer, tasks: Tasks) -> None:
    """One tool for each choice, one that leaves it to the operator, and two that are only to be had as a task."""

    def add(name: str, **policy: Any) -> None:
        def where() -> str:
            return "on the fleet" if seams.running.get() else "in the server"

        mcp.tool(name=name)(tasks.durable(**policy)(where))

    for choice in Undeclared:
        add(choice, undeclared=choice)
    add("default")
    add("required", mode="required")
    add("required for once", mode=lambda params, owner: "required", undeclared="inline")


def outcome(reply: Reply) -> Any:
    """Where the tool ran, or the error's code."""
    body = reply.body
    return body["result"]["content"][0]["text"] if "result" in body else body["error"]["code"]


@covers("P02", "P03")
@pytest.mark.parametrize("choice", Undeclared)
async def test_the_operator_chooses_for_all_tools_and_the_author_for_one(
    settings: Settings, choice: Undeclared
) -> None:
    """Ours: wait on the fleet (the default), run it in the server as ever, or refuse; for old and new clients alike."""
    chosen = settings.model_copy(update={"undeclared": choice})
    async with house(chosen, tools) as (home, client), home.fleet.delivering():
        older = await LegacyClient(client.http).connect()
        here: dict[str, Any] = {"wait": "on the fleet", "inline": "in the server", "refuse": -32021}
        for tool, expected in {
            **here,
            "default": here[choice],
            "required": -32021,
            "required for once": -32021,
        }.items():
            assert outcome(await client.undeclared().call(tool)) == expected, tool
            assert outcome(await older.send("tools/call", {"name": tool, "arguments": {}})) == expected, tool
            assert (await client.call(tool)).result["resultType"] == "task", "who knows tasks is not concerned"


def test_the_default_is_to_wait(settings: Settings) -> None:
    """Ours: the same durable task for every client."""
    assert settings.undeclared is Undeclared.WAIT


@covers("P03", "T1")
async def test_a_refusal_names_what_is_missing_and_leaves_nothing(settings: Settings, raw: redis.Redis) -> None:
    """Ours: before any record exists; a bad call is a bad call all the same, in the SDK's own words."""
    async with house(settings, tools) as (home, client):
        error = (await client.undeclared().call("refuse")).error
        assert (error["code"], error["data"]) == (-32021, MISSING)
        bad = ("refuse", "no object")
        assert await client.undeclared().call(*bad) == await (await home.open_ordinary()).undeclared().call(*bad)
        assert list(raw.scan_iter(f"{settings.prefix}*")) == [] and home.fleet.messages == []
