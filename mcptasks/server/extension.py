"""The Tasks extension of one MCP server (SEP-2663): `tools/call` becomes a task, `tasks/*` are served.

This side stores and reads; it never runs a durable tool (import-linter keeps it from importing the runtime).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Extension, MCPServer, MethodBinding, require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_PARAMS, CallToolRequestParams

from mcptasks import seams
from mcptasks.dispatch import Dispatcher
from mcptasks.errors import BadPayload, ConfigurationError, SchemaTooNew, StoreUnavailable, TooLarge
from mcptasks.model import Hint, Record, Submission, is_task_id, new_task_id
from mcptasks.policy import Mode, Policy, policy_of
from mcptasks.server import submission
from mcptasks.server.answers import checked
from mcptasks.server.owner import OwnerOf, owner_of, token_owner
from mcptasks.store.callers import Refused
from mcptasks.store.store import TaskStore
from mcptasks.wire import EXTENSION, MODERN, TaskIdParams, UpdateParams, check_depth, complete, created, detailed

log: Final = logging.getLogger("mcptasks.server")

Ctx = ServerRequestContext[Any, Any]
T = TypeVar("T")

#: One text for a task that never was, is gone, or is somebody else's (protocol.md P60): the difference is nobody's.
_NOT_FOUND: Final = "Failed to retrieve task: Task not found"


class TasksExtension(Extension):
    """Makes durable tools answer with a task, and serves that task's methods."""

    identifier = EXTENSION

    def __init__(self, store: TaskStore, owner: OwnerOf = token_owner) -> None:
        self._store = store
        self._owner = owner
        self._mcp: MCPServer[Any] | None = None
        self._dispatcher: Dispatcher | None = None
        #: True once a server was made with this extension.
        self.installed = False

    def serve(self, mcp: MCPServer[Any], dispatcher: Dispatcher) -> None:
        """The extension knows its server and how to wake the fleet; before that a durable call is refused."""
        self._mcp, self._dispatcher = mcp, dispatcher
        mcp.middleware.append(_forget_task_hint)

    def methods(self) -> Sequence[MethodBinding]:
        """`tasks/get`, `tasks/update`, `tasks/cancel`, for the protocol versions that know extensions (P06)."""
        self.installed = True
        return [
            MethodBinding("tasks/get", TaskIdParams, self.get, protocol_versions=MODERN),
            MethodBinding("tasks/update", UpdateParams, self.update, protocol_versions=MODERN),
            MethodBinding("tasks/cancel", TaskIdParams, self.cancel, protocol_versions=MODERN),
        ]

    # -------------------------------------------------------------------------------------------- tools/call

    async def intercept_tool_call(self, params: CallToolRequestParams, ctx: Ctx, call_next: CallNext) -> HandlerResult:
        """A durable call is stored and answered with its task; every other call goes on as if we were not here."""
        policy = self._policy(params)
        if policy is None or seams.running.get():
            return await call_next(ctx)
        owner = await owner_of(self._owner, ctx)
        mode = await _mode(policy, params, owner)
        if mode is Mode.FORBIDDEN or not self._valid(params):
            # Arguments that do not fit get the very answer a live call would get from the SDK, and no task (P22).
            return await call_next(ctx)
        if not _declared(ctx):
            if mode is Mode.REQUIRED:
                raise _undeclared(ctx)
            return await call_next(ctx)
        if policy.prelude and submission.settled_rounds(params) is None:
            # Round one runs here. Whether it asks or is done already, nothing is left for a task to do (P21).
            return await call_next(ctx)
        return created(await self._submit(params, ctx, owner, policy))

    def _policy(self, params: CallToolRequestParams) -> Policy | None:
        if self._mcp is None:
            raise ConfigurationError("tasks.bind(mcp) was not called: this server cannot reach its fleet")
        tool = seams.get_tool(self._mcp, params.name)
        return None if tool is None else policy_of(tool.fn)

    def _valid(self, params: CallToolRequestParams) -> bool:
        assert self._mcp is not None
        tool = seams.get_tool(self._mcp, params.name)
        assert tool is not None
        try:
            check_depth(params.arguments, "The argument object")
            tool.fn_metadata.validate_arguments(params.arguments or {})
        except BadPayload as exc:
            raise MCPError(INVALID_PARAMS, f"{exc}. No task was created.") from None
        except Exception:  # a user's validator may raise anything; the live path reports it
            return False
        return True

    async def _submit(self, params: CallToolRequestParams, ctx: Ctx, owner: str, policy: Policy) -> Record:
        call = submission.take(params, ctx, self._store.settings.headers)
        key = submission.idempotency_key(ctx)
        hint = self._first_hint(call, policy)
        message = self._reach_fleet().envelope(hint)
        answer = await _answering(
            self._store.create(
                hint.task_id,
                call,
                owner=owner,
                policy=policy,
                idempotency_key=key,
                arguments_digest="" if key is None else submission.arguments_digest(call.arguments),
                settled=submission.settled_rounds(params),
                message=message,
            )
        )
        if isinstance(answer, Refused):
            raise _refused(answer)
        if answer.record is not None:
            if message is None:
                self._reach_fleet().send(hint)
            return answer.record
        if answer.outcome == "CONFLICT":
            raise MCPError(
                INVALID_PARAMS,
                "The idempotency key was used before with other arguments. The task it belongs to is unchanged; "
                "use a new key for a new call.",
            )
        known = await _answering(self._store.read(answer.task_id, owner))
        if known is None:  # it expired between the two round trips
            raise MCPError(INTERNAL_ERROR, "The task of this idempotency key has just expired; call again.")
        return known

    def _first_hint(self, call: Submission, policy: Policy) -> Hint:
        hard_ms = policy.hard_limit_ms
        return Hint(
            task_id=new_task_id(),
            run=1,
            tool=call.tool,
            queue=policy.queue or self._store.settings.queue,
            hard_limit_s=None if hard_ms is None else hard_ms / 1000,
            trace=call.trace,
        )

    def _reach_fleet(self) -> Dispatcher:
        assert self._dispatcher is not None
        return self._dispatcher

    # -------------------------------------------------------------------------------------------- tasks/*

    async def get(self, ctx: Ctx, params: TaskIdParams) -> HandlerResult:
        """`tasks/get`: the task as it is now. Writes nothing."""
        return detailed(await self._own(ctx, params.task_id))

    async def update(self, ctx: Ctx, params: UpdateParams) -> HandlerResult:
        """`tasks/update`: valid answers to open questions are stored; with the last one the task moves on."""
        record = await self._own(ctx, params.task_id)
        answers = checked(params.input_responses, record.questions)
        if answers:
            # Almost always these are the last answers: the message for the next run goes along with them.
            message = self._reach_fleet().envelope(_next_hint(record))
            result = await _answering(self._store.answer(record.task_id, record.owner, answers, message))
            if result.hint is not None:
                self._reach_fleet().send(result.hint)
        return complete()

    async def cancel(self, ctx: Ctx, params: TaskIdParams) -> HandlerResult:
        """`tasks/cancel`: the wish is stored before this answers, whatever the task does (P50)."""
        owner = await self._gate(ctx, params.task_id)
        if await _answering(self._store.cancel(params.task_id, owner, "Cancelled by the client")) == "GONE":
            raise MCPError(INVALID_PARAMS, _NOT_FOUND)
        return complete()

    async def _own(self, ctx: Ctx, task_id: str) -> Record:
        owner = await self._gate(ctx, task_id)
        record = await _answering(self._store.read(task_id, owner))
        if record is None:
            raise MCPError(INVALID_PARAMS, _NOT_FOUND)
        return record

    async def _gate(self, ctx: Ctx, task_id: str) -> str:
        """The caller's owner, once the request may ask about this task at all."""
        require_client_extension(ctx, EXTENSION)
        headers = submission.headers_of(ctx)
        name = None if headers is None else headers.get(MCP_NAME_HEADER)
        wrong = name is not None and decode_header_value(name) != task_id
        if wrong or (name is None and headers is not None and self._store.settings.strict_mcp_name):
            raise MCPError(HEADER_MISMATCH, f"{MCP_NAME_HEADER} header does not match the request body's 'taskId'")
        if not is_task_id(task_id):  # a megabyte, or half a surrogate pair: nothing the store's client should see
            raise MCPError(INVALID_PARAMS, _NOT_FOUND)
        return await owner_of(self._owner, ctx)


def _next_hint(record: Record) -> Hint:
    return Hint(
        task_id=record.task_id,
        run=record.token + 1,
        tool=record.tool,
        queue=record.queue,
        hard_limit_s=None if record.hard_limit_ms is None else record.hard_limit_ms / 1000,
    )


def _refused(answer: Refused) -> MCPError:
    texts = {
        "closed": f"New tasks are not accepted now: {answer.detail}",
        "owner": f"You have {answer.detail} unfinished tasks, which is the limit; call again when one has ended",
        "tool": f"This tool has {answer.detail} unfinished tasks, which is the limit; call again later",
        "queue": f"{answer.detail} tasks wait for a worker, which is the limit; call again later",
    }
    return MCPError(INTERNAL_ERROR, texts[answer.what], {"mcptasks/refused": answer.what})


def _declared(ctx: Ctx) -> bool:
    """This very request declared the extension (P02), on a protocol version that has extensions."""
    capabilities = ctx.session.client_capabilities
    extensions = None if capabilities is None else capabilities.extensions
    return ctx.protocol_version in MODERN and extensions is not None and EXTENSION in extensions


def _undeclared(ctx: Ctx) -> MCPError:
    """-32021, also for an older client that smuggled the declaration into its `initialize`."""
    try:
        require_client_extension(ctx, EXTENSION)
    except MCPError as exc:
        return exc
    return MCPError(INVALID_PARAMS, "This tool runs only as a task, which needs protocol version 2026-07-28 or later")


async def _mode(policy: Policy, params: CallToolRequestParams, owner: str) -> Mode:
    if isinstance(policy.mode, Mode):
        return policy.mode
    picked = policy.mode(params, owner)
    return Mode(await picked if inspect.isawaitable(picked) else picked)


async def _answering(transition: Awaitable[T]) -> T:
    """The store's answer; its errors become the protocol's, with what the caller can do, not with our insides."""
    try:
        return await transition
    except StoreUnavailable as exc:
        log.error("%s", exc)
        # A frozen store may do what it was sent once it thaws, so the text cannot say that nothing was done.
        text = "The task store is not available; try again. With an idempotency key a repeated call is one call."
        raise MCPError(INTERNAL_ERROR, text) from exc
    except SchemaTooNew as exc:
        raise MCPError(INTERNAL_ERROR, str(exc)) from exc
    except (TooLarge, BadPayload) as exc:
        raise MCPError(INVALID_PARAMS, str(exc)) from exc


async def _forget_task_hint(ctx: Ctx, call_next: Callable[[Ctx], Awaitable[HandlerResult]]) -> HandlerResult:
    """The 2025 draft's `task` hint is dropped before anything can object to what stands in it (P05)."""
    if ctx.method == "tools/call" and ctx.params is not None and "task" in ctx.params:
        params = {name: value for name, value in ctx.params.items() if name != "task"}
        ctx = replace(ctx, params=params)
    return await call_next(ctx)
