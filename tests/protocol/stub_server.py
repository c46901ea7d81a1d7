"""A task server that plays a script and keeps a log of what it was asked; for tests of clients.

It shares no code with mcptasks: what it sends is written out as the Tasks extension's schema has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolRequestParams, ElicitRequest, ElicitRequestFormParams, InputRequiredResult, RequestParams

TASK_ID = "task-0123456789-the-secret-rest"
LABEL = "task-01234"

Shot = Mapping[str, Any] | Exception
Step = Shot | Callable[["StubTasks"], Awaitable[Shot]]


def _task(status: str, at: int, message: str | None, hint: Any) -> dict[str, Any]:
    task: dict[str, Any] = {
        "taskId": TASK_ID,
        "status": status,
        "createdAt": "2026-08-01T00:00:00.000Z",
        "lastUpdatedAt": f"2026-08-01T00:00:{at:02}.000Z",
        "ttlMs": None,
    }
    if message is not None:
        task["statusMessage"] = message
    if hint is not None:
        task["pollIntervalMs"] = hint
    return task


def working(*, at: int = 0, message: str | None = None, hint: Any = 1_000) -> dict[str, Any]:
    return {"resultType": "complete", **_task("working", at, message, hint)}


def told(done: float, total: float, message: str, *, at: int, rate: float | None = None) -> dict[str, Any]:
    """`working`, with progress in words and in numbers."""
    numbers: dict[str, Any] = {"progress": done, "total": total, "message": message}
    numbers |= {} if rate is None else {"ratePerSecond": rate}
    text = f"{message}: {done} of {total}"
    return {**working(at=at, message=text), "_meta": {"mcptasks/progress": numbers}}


def asking(*keys: str, at: int = 1, hint: Any = 1_000) -> dict[str, Any]:
    """`input_required`; the question for key k has the text "k?" and wants a string `reply`."""
    requests = {key: question(f"{key}?") for key in keys}
    return {"resultType": "complete", **_task("input_required", at, None, hint), "inputRequests": requests}


def question(text: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"reply": {"type": "string"}}}
    return {"method": "elicitation/create", "params": {"mode": "form", "message": text, "requestedSchema": schema}}


def completed(text: str = "done", *, at: int = 9) -> dict[str, Any]:
    result = {"resultType": "complete", "content": [{"type": "text", "text": text}], "isError": False}
    return {"resultType": "complete", **_task("completed", at, None, None), "result": result}


def failed(code: int, message: str, data: Any = None) -> dict[str, Any]:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return {"resultType": "complete", **_task("failed", 9, message, None), "error": error}


def cancelled(why: str | None = None) -> dict[str, Any]:
    return {"resultType": "complete", **_task("cancelled", 9, why, None)}


class _TaskIdParams(RequestParams):
    task_id: str


class _UpdateParams(RequestParams):
    task_id: str
    input_responses: dict[str, Any]


class StubTasks(Extension):
    """`script` is played by `tasks/get`, one step per request, the last one for ever; `updates` likewise."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, *script: Step, updates: Sequence[Step] = (), hint: Any = 1_000) -> None:
        self.script, self.updates, self.hint = list(script), list(updates), hint
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Any] = {}
        #: Of the latest `tasks/get`, where it came by HTTP.
        self.headers: dict[str, str] = {}

    def play(self, *script: Step) -> None:
        """From the next request on, this script."""
        self.script = list(script)

    def count(self, method: str) -> int:
        """How many requests of a method have come."""
        return sum(1 for seen, _ in self.log if seen == method)

    def methods(self) -> Sequence[MethodBinding]:
        return [
            MethodBinding("tasks/get", _TaskIdParams, self._get),
            MethodBinding("tasks/update", _UpdateParams, self._update),
            MethodBinding("tasks/cancel", _TaskIdParams, self._cancel),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        self.log.append(("tools/call", dict(ctx.params or {})))
        if params.name == "plain":
            return await call_next(ctx)
        if params.name == "guarded" and not params.input_responses:
            schema = {"type": "object", "properties": {"reply": {"type": "string"}}}
            first = ElicitRequest(params=ElicitRequestFormParams(message="before?", requested_schema=schema))
            return InputRequiredResult(input_requests={"before": first}, request_state="s")
        return {"resultType": "task", **_task("working", 0, None, self.hint)}

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: Any) -> HandlerResult:
        self.log.append(("tasks/get", dict(ctx.params or {})))
        if ctx.request is not None:
            self.headers = dict(ctx.request.headers)
        return await self._shoot(self.script.pop(0) if len(self.script) > 1 else self.script[0])

    async def _update(self, ctx: ServerRequestContext[Any, Any], params: Any) -> HandlerResult:
        self.log.append(("tasks/update", dict(ctx.params or {})))
        shot = await self._shoot(self.updates.pop(0) if self.updates else {"resultType": "complete"})
        self.answers.update(params.input_responses)
        return shot

    async def _cancel(self, ctx: ServerRequestContext[Any, Any], params: Any) -> HandlerResult:
        self.log.append(("tasks/cancel", dict(ctx.params or {})))
        return {"resultType": "complete"}

    async def _shoot(self, step: Step) -> dict[str, Any]:
        shot = await step(self) if callable(step) else step
        if isinstance(shot, Exception):
            raise shot
        return dict(shot)


def serve(stub: StubTasks) -> MCPServer:
    """A server whose tools `durable`, `typed` and `guarded` become tasks of the stub; `plain` is answered at once."""
    mcp = MCPServer("stub", extensions=[stub])

    def never(x: int = 0) -> str:
        """The stub answers in its place."""
        raise NotImplementedError

    mcp.add_tool(never, name="durable", structured_output=False)
    mcp.add_tool(never, name="typed")  # its output schema wants structured content, which the stub does not send
    mcp.add_tool(never, name="guarded", structured_output=False)

    @mcp.tool()
    def plain(x: int) -> str:
        return f"plain {x}"

    return mcp
