"""The tracker as an MCP server, so that any agent has calls on task servers that outlive it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Annotated, Any, Final, ParamSpec, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from mcptasks.errors import MCPTasksError
from mcptasks.server.owner import OwnerOf, owner_of, token_owner
from mcptasks.times import iso
from mcptasks.tracker.model import Tracked, TrackStatus
from mcptasks.tracker.tracker import Tracker

#: The longest that one call waits; an agent calls again.
WAIT_MAX_S: Final = 60

P = ParamSpec("P")
T = TypeVar("T")

TaskId = Annotated[str, Field(description="The id that `submit` returned.", min_length=1, max_length=64)]


def agents_server(tracker: Tracker, name: str = "tracker", *, owner: OwnerOf = token_owner, **how: Any) -> MCPServer:
    """An MCP server with the tools submit, get, list, wait, answer and cancel. Every caller sees his own tasks alone.

    Args:
        owner: who calls, as of `Tasks`; without authentication all callers are one.
        how: more for `MCPServer`, such as its authentication.

    Raises:
        ConfigurationError: the tracker's `mcpServers` file cannot be read.
    """
    known = ", ".join(tracker.server_names) or "those of this tracker's configuration"
    mcp = MCPServer(
        name,
        instructions=(
            "Calls on other task servers that go on when you do not. `submit` returns at once with a task. "
            f"`wait` for it, or `get` it later; `answer` its questions. Servers: {known}."
        ),
        **how,
    )

    @mcp.tool()
    @_told
    async def submit(
        ctx: Context,
        server: Annotated[str, Field(description="Its name; the instructions list them.")],
        tool: Annotated[str, Field(description="The tool of that server to call.")],
        arguments: Annotated[dict[str, Any] | None, Field(description="The tool's arguments.")] = None,
        key: Annotated[
            str | None,
            Field(
                description="Choose one for this piece of work: the same key again sends nothing, and finds the task."
            ),
        ] = None,
    ) -> dict[str, Any]:
        """Call a tool of a task server, and have the call followed to its end."""
        whose = await owner_of(owner, _of(ctx))
        return _shown(await tracker.submit(server, tool, arguments or {}, key=key, owner=whose))

    @mcp.tool()
    @_told
    async def get(ctx: Context, task_id: TaskId) -> dict[str, Any]:
        """A task as it is now, with its open questions, or its result."""
        return _shown(await tracker.get(task_id, owner=await owner_of(owner, _of(ctx))))

    @mcp.tool(name="list")
    @_told
    async def list_(
        ctx: Context,
        server: str | None = None,
        status: Annotated[list[TrackStatus] | None, Field(description="Only these.")] = None,
        limit: Annotated[int, Field(ge=1, le=100)] = 20,
        cursor: Annotated[str | None, Field(description="`next` of the page before.")] = None,
    ) -> dict[str, Any]:
        """Your tasks, newest first, without questions and results."""
        page = await tracker.list(
            owner=await owner_of(owner, _of(ctx)),
            server=server,
            statuses=tuple(status or TrackStatus),
            limit=limit,
            cursor=cursor,
        )
        return {"tasks": [_listed(task) for task in page.tasks], "next": page.cursor}

    @mcp.tool()
    @_told
    async def wait(
        ctx: Context,
        task_id: TaskId,
        seconds: Annotated[int, Field(ge=1, le=WAIT_MAX_S, description="Then it is shown as it is.")] = 30,
    ) -> dict[str, Any]:
        """The task once it has ended, or asks something, or the time is up."""
        whose = await owner_of(owner, _of(ctx))
        try:
            return _shown(await tracker.wait(task_id, seconds, question=True, owner=whose))
        except TimeoutError:
            return _shown(await tracker.get(task_id, owner=whose))

    @mcp.tool()
    @_told
    async def answer(
        ctx: Context,
        task_id: TaskId,
        answers: Annotated[
            dict[str, Any],
            Field(description='By question: {"action": "accept", "content": {...}}, or "decline" or "cancel".'),
        ],
    ) -> dict[str, Any]:
        """Answer open questions of a task. The first answer to each counts."""
        return {"answered": await tracker.answer(task_id, answers, owner=await owner_of(owner, _of(ctx)))}

    @mcp.tool()
    @_told
    async def cancel(ctx: Context, task_id: TaskId, reason: str = "Cancelled by its caller") -> dict[str, Any]:
        """Have a task cancelled at its server, which may be too late."""
        answer = await tracker.cancel(task_id, reason, owner=await owner_of(owner, _of(ctx)))
        told = {"outcome": answer.outcome.lower()}
        if answer.outcome == "REQUESTED" and not answer.trackers:
            told["note"] = "recorded, no active tracker: it is delivered once one runs"
        return told

    return mcp


def _told(work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """An error of ours is the tool's error, with its own words; any other is the SDK's to hide."""

    @wraps(work)
    async def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await work(*args, **kwargs)
        except MCPTasksError as exc:
            raise ToolError(str(exc)) from exc

    return told


def _of(ctx: Context) -> Any:
    return ctx.request_context


def _listed(task: Tracked) -> dict[str, Any]:
    return {
        "task_id": task.task_id,
        "server": task.server,
        "tool": task.tool,
        "status": str(task.status),
        "reason": None if task.reason is None else str(task.reason),
        "message": task.message,
        "created": iso(task.created_ms),
        "updated": iso(task.updated_ms),
        "degraded": task.degraded,
    }


def _shown(task: Tracked) -> dict[str, Any]:
    more = {
        "questions": dict(task.questions),
        "result": task.result,
        "truncated": task.truncated,
        "error": task.error,
        "last_error": task.last_error,
    }
    return _listed(task) | {name: value for name, value in more.items() if value}
