"""What HTTP adds to tasks/*: the `Mcp-Name` header (SEP-2243) and statuses; and transports that have no headers."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

import pytest
from mcp.client import Client
from mcp.client.extension import advertise
from mcp.server.mcpserver import MCPServer

from mcptasks import Tasks
from mcptasks.settings import Settings
from mcptasks.wire import DetailedTask, GetTask, TaskIdParams
from tests.requirements import covers
from tests.support.house import house
from tests.support.raw_client import TASKS, RawClient, Reply
from tests.support.tools import ask_first

pytestmark = pytest.mark.anyio

ACCEPT: Final = {"action": "accept", "content": {"word": "x"}}


def tools(mcp: MCPServer, tasks: Tasks) -> None:
    """One tool that asks."""
    mcp.tool()(tasks.durable()(ask_first))


def encoded(text: str) -> str:
    """The header's form for what does not fit into a header."""
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


async def every_method(client: RawClient, task_id: str, name: str | None) -> list[Reply]:
    """The three methods under this header."""
    headers = {"Mcp-Name": name}
    return [
        await client.get(task_id, headers=headers),
        await client.update(task_id, {"k": ACCEPT}, headers=headers),
        await client.cancel(task_id, headers=headers),
    ]


WRONG: Final[dict[str, Callable[[str], str]]] = {
    "another name": lambda task_id: "ask_first",
    "empty": lambda task_id: "",
    "another name, encoded": lambda task_id: encoded("ask_first"),
    "empty, encoded": lambda task_id: encoded(""),
    "not base64": lambda task_id: "=?base64?%%%?=",
    "not UTF-8": lambda task_id: "=?base64?/w==?=",
    "cut short": lambda task_id: task_id[:-1],
    "another case": lambda task_id: task_id.swapcase(),
    "more than the id": lambda task_id: encoded(task_id + " "),
    "another encoding": lambda task_id: encoded(task_id).replace("?base64?", "?BASE64?"),
}


@covers("P61")
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
async def test_a_header_that_names_something_else_is_refused_and_the_task_untouched(
    settings: Settings, wrong: Callable[[str], str]
) -> None:
    """SEP-2243: proxies route by the header, so one that disagrees with the body is -32020 and HTTP 400."""
    async with house(settings, tools) as (home, client):
        task_id = await client.start("ask_first")
        await home.fleet.settle()
        before = await client.get(task_id)

        replies = await every_method(client, task_id, wrong(task_id))
        assert [(reply.status, reply.error["code"]) for reply in replies] == [(400, -32020)] * 3
        assert before == await client.get(task_id)


@covers("P61")
@pytest.mark.parametrize("strict", [False, True])
async def test_a_right_header_is_accepted_plain_or_encoded(settings: Settings, strict: bool) -> None:
    """SEP-2243: the value is decoded before it is compared."""
    chosen = settings.model_copy(update={"strict_mcp_name": strict})
    async with house(chosen, tools) as (_, client):
        for form in (str, encoded):
            task_id = await client.start("ask_first")
            replies = await every_method(client, task_id, form(task_id))
            assert [reply.status for reply in replies] == [200] * 3
            assert replies[0].result["taskId"] == task_id


@covers("P61")
async def test_a_missing_header_is_tolerated_and_refused_in_strict_mode(settings: Settings) -> None:
    """Ours: clients in the field omit it on tasks/*; an operator whose proxies need it turns the setting on."""
    async with house(settings, tools) as (home, client):
        task_id = await client.start("ask_first")
        await home.fleet.settle()
        assert [reply.status for reply in await every_method(client, task_id, None)] == [200] * 3

    strict = settings.model_copy(update={"strict_mcp_name": True})
    async with house(strict, tools) as (home, client):
        task_id = await client.start("ask_first")
        replies = await every_method(client, task_id, None)
        assert [(reply.status, reply.error["code"]) for reply in replies] == [(400, -32020)] * 3
        assert (await client.state(task_id))["status"] == "working"


@covers("P61")
async def test_a_transport_without_headers_is_not_asked_for_one(settings: Settings) -> None:
    """Ours: stdio and in-memory have no headers, so there is nothing to compare, strict or not."""
    strict = settings.model_copy(update={"strict_mcp_name": True})
    async with house(strict, tools) as (home, client):
        task_id = await client.start("ask_first")
        async with Client(home.mcp, extensions=[advertise(TASKS)]) as inside:
            request = GetTask(params=TaskIdParams(task_id=task_id))
            found = await inside.session.send_request(request, DetailedTask)
        assert (found.task_id, found.status) == (task_id, "working")


@covers("P01", "P03", "P60")
async def test_protocol_errors_have_the_statuses_of_the_transport(settings: Settings) -> None:
    """Streamable HTTP: 400 for what the request got wrong, 404 for a method that is not there."""
    async with house(settings, tools) as (_, client):
        task_id = await client.start("ask_first")
        statuses = {
            "unknown id": (await client.get("u" * 32)).status,
            "undeclared": (await client.undeclared().get(task_id)).status,
            "no such method": (await client.send("tasks/list", {})).status,
            "fine": (await client.get(task_id)).status,
        }
        assert statuses == {"unknown id": 400, "undeclared": 400, "no such method": 404, "fine": 200}
