"""The bytes of every answer on the tasks surface (SEP-2663: shapes), against the schema and written-out keys."""

from __future__ import annotations

import re
from typing import Final

import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError

from mcptasks import Tasks
from mcptasks.settings import Settings
from tests.conformance.wire_schema import Kind, validate
from tests.requirements import covers
from tests.support.house import Gate, house
from tests.support.raw_client import Reply
from tests.support.tools import ask_both, ask_first

pytestmark = pytest.mark.anyio

TASK: Final = {"resultType", "_meta", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"}
TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
ACCEPT: Final = {"action": "accept", "content": {"word": "x"}}


class Tools:
    """One tool for each way to end, and one that is under way until its gate opens."""

    def __init__(self) -> None:
        self.gate = Gate()

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        @mcp.tool()
        async def plain() -> str:
            return "plain"

        @mcp.tool()
        @tasks.durable()
        async def work(ctx: Context) -> str:
            await ctx.report_progress(1, 3, "one of three")
            await self.gate.wait()
            return "done"

        @mcp.tool()
        @tasks.durable()
        async def tool_error() -> str:
            raise ToolError("no luck")

        @mcp.tool()
        @tasks.durable()
        async def protocol_error() -> str:
            raise MCPError(-32050, "broken", {"part": None, "list": [1, None]})

        @mcp.tool()
        @tasks.durable()
        async def bare_error() -> str:
            raise MCPError(-32051, "bare")

        @mcp.tool()
        @tasks.durable(unlimited=True)
        async def for_ever() -> str:
            return "done"

        for asks in (ask_first, ask_both):
            mcp.tool()(tasks.durable()(asks))


def check(kind: Kind, reply: Reply, keys: set[str]) -> None:
    """The bytes satisfy the schema, and have exactly these keys on top."""
    assert set(validate(kind, reply.raw)) == keys
    assert reply.status == 200


@covers("C05", "P10", "P11", "R1")
async def test_create_is_flat_and_holds_nothing_but_the_task(settings: Settings) -> None:
    """SEP-2663, CreateTaskResult: resultType task, the Task's fields on top, no payload, no wrapper, no null."""
    async with house(settings, Tools()) as (_, client):
        reply = await client.call("work")

        check("create", reply, TASK)
        task = reply.result
        assert (task["resultType"], task["status"], task["ttlMs"]) == ("task", "working", 24 * 3_600_000)
        assert TIME.fullmatch(task["createdAt"]) and task["createdAt"] == task["lastUpdatedAt"]


@covers("C05", "P11", "P12")
async def test_a_queued_and_a_running_task_are_working_with_no_payload(settings: Settings) -> None:
    """SEP-2663, GetTaskResult of working: no result, error or inputRequests; a status message once there is one."""
    tools = Tools()
    async with house(settings, tools) as (home, client):
        task_id = await client.start("work")
        check("get", await client.get(task_id), TASK)

        run = home.fleet.begin()
        await tools.gate.arrival()
        state = await client.until(task_id, lambda state: "statusMessage" in state)
        assert (state["status"], state["statusMessage"]) == ("working", "one of three: 1 of 3 (33 %)")
        told = dict(state["_meta"]["mcptasks/progress"])
        assert TIME.fullmatch(told.pop("reportedAt")) and told == {"progress": 1, "total": 3, "message": "one of three"}
        check("get", await client.get(task_id), TASK | {"statusMessage"})
        tools.gate.opened.set()
        await run


@covers("C05", "P12")
async def test_a_parked_task_lists_its_questions_and_nothing_else(settings: Settings) -> None:
    """SEP-2663, GetTaskResult of input_required: the open questions under inputRequests, all of them, only those."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("ask_both")
        await home.fleet.settle()
        reply = await client.get(task_id)
        check("get", reply, TASK | {"inputRequests"})

        requests = reply.result["inputRequests"]
        assert sorted(r["params"]["message"] for r in requests.values()) == ["Left?", "Right?"]
        [left] = [key for key, r in requests.items() if r["params"]["message"] == "Left?"]
        check("update", await client.update(task_id, {left: ACCEPT}), {"resultType", "_meta"})

        reply = await client.get(task_id)
        check("get", reply, TASK | {"inputRequests"})
        assert reply.result["inputRequests"] == {key: r for key, r in requests.items() if key != left}


@covers("C05", "P12", "P14")
@pytest.mark.parametrize(("tool", "is_error"), [("work", False), ("tool_error", True)])
async def test_a_completed_task_carries_its_result(settings: Settings, tool: str, is_error: bool) -> None:
    """SEP-2663: result is a complete CallToolResult, without the related-task meta of the old design."""
    tools = Tools()
    tools.gate.opened.set()
    async with house(settings, tools) as (home, client):
        task_id = await client.start(tool)
        await home.fleet.settle()
        reply = await client.get(task_id)

        message = {"statusMessage"} if "statusMessage" in reply.result else set[str]()
        check("get", reply, TASK | {"result"} | message)
        result = reply.result["result"]
        assert (reply.result["status"], result["resultType"], result["isError"]) == ("completed", "complete", is_error)
        assert "_meta" not in result


@covers("C05", "P12", "P31")
async def test_a_failed_task_carries_its_error(settings: Settings) -> None:
    """SEP-2663: the JSON-RPC error, with data only where there is some."""
    async with house(settings, Tools()) as (home, client):
        for tool, error in (
            ("protocol_error", {"code": -32050, "message": "broken", "data": {"part": None, "list": [1, None]}}),
            ("bare_error", {"code": -32051, "message": "bare"}),
        ):
            task_id = await client.start(tool)
            await home.fleet.settle()
            reply = await client.get(task_id)
            check("get", reply, TASK | {"error", "statusMessage"})
            assert (reply.result["status"], reply.result["error"]) == ("failed", error)


@covers("C05", "P12", "P13")
async def test_a_cancelled_task_has_no_payload_and_cancel_an_empty_answer(settings: Settings) -> None:
    """SEP-2663: cancel acknowledges with an empty complete result; the cancelled task carries a message and no more."""
    async with house(settings, Tools()) as (_, client):
        task_id = await client.start("work")
        check("cancel", await client.cancel(task_id), {"resultType", "_meta"})
        check("get", await client.get(task_id), TASK | {"statusMessage"})
        assert (await client.state(task_id))["status"] == "cancelled"


@covers("P13")
async def test_update_has_an_empty_answer_whether_or_not_it_answered_anything(settings: Settings) -> None:
    """SEP-2663: an empty complete result; what became of the answers is seen with tasks/get."""
    async with house(settings, Tools()) as (home, client):
        task_id = await client.start("ask_first")
        check("update", await client.update(task_id, {"early": ACCEPT}), {"resultType", "_meta"})
        await home.fleet.settle()
        [key] = (await client.state(task_id))["inputRequests"]
        for responses in ({}, {"unknown": ACCEPT}, {key: ACCEPT}, {key: ACCEPT}):
            check("update", await client.update(task_id, responses), {"resultType", "_meta"})


@covers("P11", "R1")
@pytest.mark.unlimited
async def test_a_ttl_without_an_end_is_null_and_is_there(settings: Settings) -> None:
    """SEP-2663: ttlMs is required and nullable; a client must not have to guess what an absent one means."""
    async with house(settings, Tools()) as (home, client):
        reply = await client.call("for_ever")
        check("create", reply, TASK)
        assert b'"ttlMs":null' in reply.raw

        await home.fleet.settle()
        reply = await client.get(reply.result["taskId"])
        check("get", reply, TASK | {"result"})
        assert b'"ttlMs":null' in reply.raw


@covers("P14")
async def test_everything_else_is_complete(settings: Settings) -> None:
    """SEP-2663: the resultType `task` belongs to CreateTaskResult alone."""
    async with house(settings, Tools()) as (home, client), home.fleet.delivering():
        replies = [
            await client.send("server/discover", {}),
            await client.send("tools/list", {}),
            await client.call("plain"),
            await client.undeclared().call("tool_error"),
        ]
        assert [reply.result["resultType"] for reply in replies] == ["complete"] * 4
