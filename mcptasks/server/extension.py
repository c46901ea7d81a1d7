"""The Tasks extension of one MCP server (SEP-2663): `tools/call` becomes a task, `tasks/*` are served.

This side stores and reads; it never runs a durable tool (import-linter keeps it from importing the runtime).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Extension, MCPServer, MethodBinding, require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import HEADER_MISMATCH, INVALID_PARAMS, CallToolRequestParams

from mcptasks import seams
from mcptasks.dispatch import Dispatcher
from mcptasks.errors import BadPayload, ConfigurationError
from mcptasks.model import Record, Undeclared, is_task_id, new_task_id
from mcptasks.policy import Mode, Policy, policy_of
from mcptasks.scope import Scope
from mcptasks.server import prelude, rounds, submission
from mcptasks.server.artifacts import Artifacts
from mcptasks.server.audience import shown
from mcptasks.server.bridge import Bridge
from mcptasks.server.closing import Closing
from mcptasks.server.intake import Call, Intake
from mcptasks.server.owner import OwnerOf, owner_of, token_owner
from mcptasks.server.refusals import not_found, undeclared
from mcptasks.server.rounds import Settling, Waiting
from mcptasks.server.subscriptions import Subscriptions
from mcptasks.store.store import TaskStore
from mcptasks.strict_json import check_depth
from mcptasks.wire import EXTENSION, MODERN, TaskIdParams, UpdateParams, complete, created, detailed

Ctx = ServerRequestContext[Any, Any]


class _Server(NamedTuple):
    """What the extension has once it is bound."""

    mcp: MCPServer[Any]
    intake: Intake
    bridge: Bridge


class TasksExtension(Extension):
    """Makes durable tools answer with a task, and serves that task's methods."""

    identifier = EXTENSION

    def __init__(self, store: TaskStore, owner: OwnerOf = token_owner) -> None:
        self._store = store
        self._owner = owner
        #: What goes on for as long as a task does: streams that listen, calls that wait.
        self.closing = Closing()
        self._artifacts = Artifacts(store, owner)
        self._server: _Server | None = None
        self._middleware: list[Any] = []
        self._moved = False
        #: True once a server was made with this extension.
        self.installed = False

    def serve(self, mcp: MCPServer[Any], dispatcher: Dispatcher) -> None:
        """The extension knows its server and how to wake the fleet; before that a durable call is refused."""
        intake = Intake(self._store, dispatcher, self._store.settings.version or mcp.version)
        self._server = _Server(mcp, intake, Bridge(self._store, intake, self.closing, self._artifacts))
        if keys := self._store.settings.request_state_keys:
            seams.share_request_state(mcp, [key.get_secret_value() for key in keys])
        self._artifacts.store = self._store
        subscriptions = Subscriptions(self._store, self._owner, self.closing)
        self._middleware = [_forget_task_hint, self._artifacts.route, subscriptions.listen]
        mcp.middleware.extend(self._middleware)

    @contextmanager
    def moved(self, mcp: MCPServer[Any], store: TaskStore, dispatcher: Dispatcher) -> Generator[None]:
        """Inside the block the server has its tasks in another store and on another fleet; then all is as it was.

        Raises:
            ConfigurationError: it was moved already.
        """
        if self._moved:
            raise ConfigurationError("The tasks of this server are moved already; one block at a time")
        here = self._store, self._server, self.closing, self._middleware
        chain = list(mcp.middleware)
        self._moved, self._store, self.closing = True, store, Closing()
        mcp.middleware[:] = [one for one in chain if one not in self._middleware]
        try:
            self.serve(mcp, dispatcher)
            yield
        finally:
            self.closing.begin()
            self._store, self._server, self.closing, self._middleware = here
            self._artifacts.store = self._store
            mcp.middleware[:], self._moved = chain, False

    def methods(self) -> Sequence[MethodBinding]:
        """`tasks/get`, `tasks/update`, `tasks/cancel`, for the protocol versions that know extensions (P06).

        And what reads the artifacts of tasks, which are resources to every client.
        """
        self.installed = True
        return [
            MethodBinding("tasks/get", TaskIdParams, self.get, protocol_versions=MODERN),
            MethodBinding("tasks/update", UpdateParams, self.update, protocol_versions=MODERN),
            MethodBinding("tasks/cancel", TaskIdParams, self.cancel, protocol_versions=MODERN),
            self._artifacts.method,
        ]

    # -------------------------------------------------------------------------------------------- tools/call

    async def intercept_tool_call(self, params: CallToolRequestParams, ctx: Ctx, call_next: CallNext) -> HandlerResult:
        """A durable call is stored and answered with its task, or, for a client that knows none, with its result.

        Every other call goes on as if we were not here.
        """
        policy = self._policy(params)
        if policy is None or seams.running.get():
            return await call_next(ctx)
        owner = await owner_of(self._owner, ctx)
        mode = await _mode(policy, params, owner)
        if mode is Mode.FORBIDDEN or not self._valid(params):
            # Arguments that do not fit get the very answer a live call would get from the SDK, and no task (P22).
            return await call_next(ctx)
        declared = _declared(ctx)
        match Undeclared.WAIT if declared else self._undeclared(policy, mode):
            case Undeclared.REFUSE:
                raise undeclared(ctx)
            case Undeclared.INLINE:
                return await call_next(ctx)
            case Undeclared.WAIT:
                return await self._durably(Call(params, ctx, owner, policy), call_next, declared=declared)

    async def _durably(self, call: Call, call_next: CallNext, *, declared: bool) -> HandlerResult:
        server = self._bound()
        state = rounds.read(call.params.request_state)
        if isinstance(state, Waiting):
            return await server.bridge.resume(call, state)
        settling = state or Settling(call_id=new_task_id(), rounds=0, state=call.params.request_state)
        if (answer := await prelude.next_round(server.mcp, call, settling, call_next)) is not None:
            return answer
        record = await server.intake.create(call, submission.settle(settling, call.params))
        return created(record) if declared else await server.bridge.wait(call, record, rounds_before=settling.rounds)

    def _undeclared(self, policy: Policy, mode: Mode) -> Undeclared:
        return Undeclared.REFUSE if mode is Mode.REQUIRED else policy.undeclared or self._store.settings.undeclared

    def _bound(self) -> _Server:
        if self._server is None:
            raise ConfigurationError("tasks.bind(mcp) was not called: this server cannot reach its fleet")
        return self._server

    def _policy(self, params: CallToolRequestParams) -> Policy | None:
        tool = seams.get_tool(self._bound().mcp, params.name)
        return None if tool is None else policy_of(tool.fn)

    def _valid(self, params: CallToolRequestParams) -> bool:
        tool = seams.get_tool(self._bound().mcp, params.name)
        assert tool is not None
        try:
            check_depth(params.arguments, "The argument object")
            tool.fn_metadata.validate_arguments(params.arguments or {})
        except BadPayload as exc:
            raise MCPError(INVALID_PARAMS, f"{exc}. No task was created.") from None
        except Exception:  # a user's validator may raise anything; the live path reports it
            return False
        return True

    # -------------------------------------------------------------------------------------------- tasks/*

    async def get(self, ctx: Ctx, params: TaskIdParams) -> HandlerResult:
        """`tasks/get`: the task as it is now. Writes nothing."""
        record = await self._own(ctx, params.task_id)
        return detailed(record, shown(ctx, record))

    async def update(self, ctx: Ctx, params: UpdateParams) -> HandlerResult:
        """`tasks/update`: valid answers to open questions are stored; with the last one the task moves on."""
        owner = await self._gate(ctx, params.task_id)
        await self._bound().intake.respond(params.task_id, owner, params.input_responses)
        return complete()

    async def cancel(self, ctx: Ctx, params: TaskIdParams) -> HandlerResult:
        """`tasks/cancel`: the wish is stored before this answers, whatever the task does (P50)."""
        await self._bound().intake.cancel(params.task_id, await self._gate(ctx, params.task_id))
        return complete()

    async def mine(self, ctx: Ctx) -> Scope:
        """The tasks of whoever makes this request (`Context.request_context`), and no others."""
        return Scope(self._store, await owner_of(self._owner, ctx))

    async def _own(self, ctx: Ctx, task_id: str) -> Record:
        return await self._bound().intake.read(task_id, await self._gate(ctx, task_id))

    async def _gate(self, ctx: Ctx, task_id: str) -> str:
        """The caller's owner, once the request may ask about this task at all."""
        require_client_extension(ctx, EXTENSION)
        headers = submission.headers_of(ctx)
        name = None if headers is None else headers.get(MCP_NAME_HEADER)
        wrong = name is not None and decode_header_value(name) != task_id
        if wrong or (name is None and headers is not None and self._store.settings.strict_mcp_name):
            raise MCPError(HEADER_MISMATCH, f"{MCP_NAME_HEADER} header does not match the request body's 'taskId'")
        if not is_task_id(task_id):  # a megabyte, or half a surrogate pair: nothing the store's client should see
            raise not_found()
        return await owner_of(self._owner, ctx)


def _declared(ctx: Ctx) -> bool:
    """This very request declared the extension (P02), on a protocol version that has extensions."""
    capabilities = ctx.session.client_capabilities
    extensions = None if capabilities is None else capabilities.extensions
    return ctx.protocol_version in MODERN and extensions is not None and EXTENSION in extensions


async def _mode(policy: Policy, params: CallToolRequestParams, owner: str) -> Mode:
    if isinstance(policy.mode, Mode):
        return policy.mode
    picked = policy.mode(params, owner)
    return Mode(await picked if inspect.isawaitable(picked) else picked)


async def _forget_task_hint(ctx: Ctx, call_next: Callable[[Ctx], Awaitable[HandlerResult]]) -> HandlerResult:
    """The 2025 draft's `task` hint is dropped before anything can object to what stands in it (P05)."""
    if ctx.method == "tools/call" and ctx.params is not None and "task" in ctx.params:
        params = {name: value for name, value in ctx.params.items() if name != "task"}
        ctx = replace(ctx, params=params)
    return await call_next(ctx)
