"""Answers to questions that this server process has shown: one round trip, and no difference to those it has not."""

from __future__ import annotations

from typing import Any, Final

import pytest
import redis
from mcp.server.mcpserver import MCPServer

from mcptasks import Tasks
from mcptasks.settings import Settings
from mcptasks.store.keys import Keys
from tests.requirements import covers
from tests.support.house import House, house
from tests.support.raw_client import RawClient
from tests.support.tools import ask_both, ask_first

pytestmark = pytest.mark.anyio

#: What a client is told that asks for what is not its own.
UNKNOWN: Final = -32602
DONE: Final = {"resultType": "complete"}


def tools(mcp: MCPServer, tasks: Tasks) -> None:
    """One question, and two at once."""
    mcp.tool()(tasks.durable()(ask_first))
    mcp.tool()(tasks.durable()(ask_both))


def accept(word: Any) -> dict[str, Any]:
    """An accepted answer."""
    return {"action": "accept", "content": {"word": word}}


async def shown(home: House, client: RawClient, tool: str) -> tuple[str, list[str]]:
    """A task that waits for a person, and the keys of its questions, which the server has just shown."""
    task_id = await client.start(tool)
    await home.fleet.settle()
    return task_id, [*(await client.state(task_id))["inputRequests"]]


def scripts(raw: redis.Redis) -> int:
    """How many scripts the store has run since its figures were reset."""
    return raw.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


@covers("P41")
async def test_an_answer_to_a_question_that_was_shown_is_one_round_trip(settings: Settings, raw: redis.Redis) -> None:
    """Ours: its schema is known here; one that this process has not shown is read first."""
    async with house(settings, tools) as (home, client):
        other = await home.open()
        # First once without a count: a script's first use brings it along.
        for answerer, expected in ((client, None), (client, 1), (other, 2)):
            task_id, (key,) = await shown(home, client, "ask_first")
            raw.config_resetstat()
            assert (await answerer.update(task_id, {key: accept("blue")})).result == DONE
            assert expected in (None, scripts(raw))
            await home.fleet.settle()
            assert (await client.state(task_id))["status"] == "completed"


@covers("P41", "P43")
async def test_what_was_answered_since_is_ignored_whatever_it_says(settings: Settings) -> None:
    """Ours: also an answer that would break the schema; this process has shown the question as open."""
    async with house(settings, tools) as (home, client):
        other = await home.open()
        task_id, keys = await shown(home, client, "ask_both")
        assert (await other.update(task_id, {keys[0]: accept("blue")})).result == DONE
        assert (await client.update(task_id, {keys[0]: accept("red")})).result == DONE
        assert (await client.update(task_id, {keys[0]: accept(7)})).result == DONE
        assert [*(await client.state(task_id))["inputRequests"]] == [keys[1]]


@covers("P42")
async def test_a_bad_answer_to_an_open_question_is_refused_as_ever(settings: Settings) -> None:
    """Ours: nothing of the call is stored."""
    async with house(settings, tools) as (home, client):
        task_id, keys = await shown(home, client, "ask_both")
        answer = await client.update(task_id, {keys[0]: accept("blue"), keys[1]: accept(7)})
        assert answer.error["code"] == UNKNOWN
        assert [*(await client.state(task_id))["inputRequests"]] == keys


@covers("P60", "P80")
async def test_what_was_shown_to_its_owner_is_nobody_elses_and_is_gone_with_its_task(
    settings: Settings, raw: redis.Redis
) -> None:
    """Ours: one answer for a foreign task and for none, whoever has looked at it here."""
    async with house(settings, tools, auth=True, token="ann") as (home, client):
        task_id, (key,) = await shown(home, client, "ask_first")
        foreign = await client.with_(token="bob").update(task_id, {key: accept("blue")})
        assert foreign.error["code"] == UNKNOWN
        assert [*(await client.state(task_id))["inputRequests"]] == [key]
        raw.delete(Keys(settings.prefix).task(task_id))
        assert await client.update(task_id, {key: accept("blue")}) == foreign
