"""The server the official suite is run against: its seven fixture tools, each an ordinary MCP tool that knows no tasks.

`MCPTASKS_CONFORMANCE_MODE` (`optional`, the default, or `required`) is the policy of every durable tool but three:
`failing_job` and `test_tool_with_task` are required in both (the suite's scenarios `tasks-required-task-error` and
`tasks-mrtr-composition` demand it), and in `required` the instant computation stays optional, because the check
`sep-2663-server-rejects-undeclared-client` of `tasks-capability-negotiation` demands a plain answer to an undeclared
`slow_compute(seconds=0)`: the very call a required tool refuses.
"""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolRequestParams
from pydantic import BaseModel

from mcptasks import Tasks

MODE = os.environ.get("MCPTASKS_CONFORMANCE_MODE", "optional")

#: The questions of a call before its task exists travel in a sealed state; every server process must be able to open
#: what another one sealed, or the second round of `test_tool_with_task` fails behind a load balancer.
SHARED_KEY = "conformance-fixture-key-shared-by-every-server-process"

tasks = Tasks()
mcp = MCPServer(
    "conformance",
    extensions=[tasks],
    request_state_security=RequestStateSecurity(keys=[SHARED_KEY]),
)


class Confirmation(BaseModel):
    """The suite answers `{"confirm": true}`, and in `multi_input` a `name` beside it."""

    confirm: bool


class UserName(BaseModel):
    """The suite answers `{"name": ...}`."""

    name: str


def required_unless_instant(params: CallToolRequestParams, caller: str) -> str:
    """A computation that takes time is only to be had as a task; an instant one also as an ordinary call."""
    return "required" if (params.arguments or {}).get("seconds") else "optional"


def ask_name() -> Elicit[UserName]:
    """The question of `test_tool_with_task`."""
    return Elicit("What is your name?", UserName)


@mcp.tool()
async def greet(name: str) -> str:
    """Says hello; never a task."""
    return f"Hello, {name}!"


# The tracker's ring kills its workers at random: a task may lose more runs than three.
@mcp.tool()
@tasks.durable(mode=required_unless_instant if MODE == "required" else MODE, max_attempts=1_000)
async def slow_compute(seconds: float, label: str = "") -> str:
    """Takes the given time; the suite cancels calls of 60 seconds."""
    await anyio.sleep(seconds)
    return f"{label}: computed for {seconds:g} s"


@mcp.tool()
@tasks.durable(mode="required")
async def failing_job() -> str:
    """Ends with a tool error after a second, as the suite's description asks."""
    await anyio.sleep(1)
    raise ToolError("the job failed")


@mcp.tool()
@tasks.durable(mode=MODE)
async def protocol_error_job() -> str:
    """Ends with a JSON-RPC error."""
    raise MCPError(INTERNAL_ERROR, "the job broke the protocol", {"job": "protocol_error_job"})


@mcp.tool()
@tasks.durable(mode=MODE)
async def confirm_delete(filename: str, ctx: Context) -> str:
    """Asks one question in line."""
    answer = await ctx.elicit(f"Delete {filename}?", Confirmation)
    return f"deleted {filename}" if answer.action == "accept" and answer.data.confirm else f"kept {filename}"


@mcp.tool()
@tasks.durable(mode=MODE)
async def multi_input(ctx: Context) -> str:
    """Asks two questions at once."""
    name, confirmation = await asyncio.gather(
        ctx.elicit("What is your name?", UserName),
        ctx.elicit("Shall it be done?", Confirmation),
    )
    return f"name: {name.action}, confirmation: {confirmation.action}"


@mcp.tool()
@tasks.durable(mode="required", prelude=True)
async def test_tool_with_task(user: Annotated[UserName, Resolve(ask_name)]) -> str:
    """Asks before the task exists; the task's result carries the answer."""
    return f"Hello, {user.name}, from a task"


celery = tasks.bind(mcp)
