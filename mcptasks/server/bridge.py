"""Waits for a task with a client that knows no tasks: it called a tool, and gets the tool's result.

A client of 2026-07-28 is answered in rounds: a task that asks, or takes longer than one request should, is an
`InputRequiredResult`, and the client's next round brings the answers. An older one is asked live on its connection,
where that can carry a question; where it cannot, the run itself learns that its client cannot be asked. Whatever ends
the call before the task has ended, the task goes on.
"""

from __future__ import annotations

from typing import Any, Final

import anyio
from mcp.server.context import HandlerResult
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    REQUEST_TIMEOUT,
    InputRequiredResult,
)

from mcptasks.model import Record, Status
from mcptasks.server import rounds
from mcptasks.server.artifacts import Artifacts
from mcptasks.server.audience import lacking, shown
from mcptasks.server.closing import Closing
from mcptasks.server.intake import Call, Intake
from mcptasks.server.relay import INPUT_REQUEST, Relay
from mcptasks.server.rounds import Waiting
from mcptasks.server.submission import answers_of
from mcptasks.server.watch import PATIENCE_S, Watch
from mcptasks.store.store import TaskStore
from mcptasks.wire import MODERN

#: Names the task in the data of an error that left it going on.
TASK_ID: Final = "mcptasks/taskId"


class Bridge:
    """The waiting calls of one server process."""

    def __init__(self, store: TaskStore, intake: Intake, closing: Closing, artifacts: Artifacts) -> None:
        self._store, self._intake, self._closing, self._artifacts = store, intake, closing, artifacts

    async def wait(self, call: Call, record: Record, *, rounds_before: int) -> HandlerResult:
        """What the call is answered with: the tool's result as a live call has it, or another round.

        `rounds_before`: how often the client has come back already, before there was a task.

        Raises:
            MCPError: the tool's own, as live; or the call ends here and the task, which the error names, goes on.
        """
        if call.ctx.protocol_version in MODERN:
            return await self._round(call, Waiting(task_id=record.task_id, rounds=rounds_before), record)
        return await self._live(call, record)

    async def resume(self, call: Call, state: Waiting) -> HandlerResult:
        """As `wait`, with the answers that the client brought.

        Raises:
            MCPError: also -32602, the caller has no such task, or an answer does not satisfy its question.
        """
        record = await self._intake.read(state.task_id, call.owner, patience_s=PATIENCE_S)
        if answers := answers_of(call.params):
            await self._intake.answer(record, answers, patience_s=PATIENCE_S)
            record = await self._intake.read(state.task_id, call.owner, patience_s=PATIENCE_S)
        return await self._round(call, state, record)

    # -------------------------------------------------------------------------------------------- in rounds

    async def _round(self, call: Call, state: Waiting, record: Record) -> HandlerResult:
        settings, told = self._intake.settings, state.told
        deadline = anyio.current_time() + settings.bridge_wait_ms / 1000
        with Watch(self._store, self._closing, record) as watch:
            while True:
                told = await _tell(call, record, told)
                if record.status.terminal:
                    return await self._ending(record)
                questions = shown(call.ctx, record)
                if asks(record) and not questions:
                    raise _not_to_be_asked(call, record)
                # A server that goes down sends its clients to another one.
                if asks(record) or watch.over or (change := await watch.change(deadline)) is None:
                    break
                record = change
        if state.rounds >= settings.bridge_rounds:
            raise _out_of_rounds(record, settings.bridge_rounds)
        requests = {key: INPUT_REQUEST.validate_python(question, by_name=False) for key, question in questions.items()}
        onward = Waiting(task_id=record.task_id, rounds=state.rounds + 1, told=told)
        return InputRequiredResult(input_requests=requests or None, request_state=rounds.write(onward))

    # -------------------------------------------------------------------------------------------- live

    async def _live(self, call: Call, record: Record) -> HandlerResult:
        failure = None
        with Watch(self._store, self._closing, record) as watch:
            async with anyio.create_task_group() as group:
                relay = Relay(call, self._intake, group, watch.nudge)
                try:
                    record = await self._follow(call, record, watch, relay)
                except MCPError as exc:
                    failure = exc
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return await self._ending(record)

    async def _follow(self, call: Call, record: Record, watch: Watch, relay: Relay) -> Record:
        told: float | None = None
        while not record.status.terminal:
            told = await _tell(call, record, told)
            if asks(record) and not call.ctx.session.can_send_request:
                raise _left(record, INVALID_REQUEST, "This connection cannot carry the tool's question to the client")
            questions = shown(call.ctx, record)
            if asks(record) and not questions:
                raise _not_to_be_asked(call, record)
            if watch.over:
                raise _left(record, CONNECTION_CLOSED, "The server goes down")
            relay.show(record, questions)
            change = await watch.change()
            assert change is not None  # there is no deadline
            if relay.failure is not None:
                raise _left(change, relay.failure.code, relay.failure.message)
            record = change
        return record

    async def _ending(self, record: Record) -> HandlerResult:
        """What the call comes to whose task has ended: the whole result, because a live call knows no other.

        Raises:
            MCPError: the tool ended with it; or -32603, the task was cancelled.
        """
        if record.status is Status.COMPLETED and record.result is not None:
            return await self._artifacts.whole(record)
        if record.error is not None:
            raise MCPError(record.error["code"], record.error["message"], record.error.get("data"))
        why = record.status_message or "nobody said why"
        raise MCPError(INTERNAL_ERROR, f"The task of this call was cancelled: {why}", {TASK_ID: record.task_id})


def asks(record: Record) -> bool:
    """The task waits for answers of its client."""
    return bool(record.questions) and not record.status.terminal


async def _tell(call: Call, record: Record, told: float | None) -> float | None:
    """The client that wants progress has heard of the task's; returns how far it is."""
    progress = record.progress
    if progress is None or (told is not None and progress.done <= told):
        return told
    await call.ctx.session.report_progress(progress.done, progress.total, progress.message)
    return progress.done


def _out_of_rounds(record: Record, limit: int) -> MCPError:
    what = "has a question" if asks(record) else "is not done"
    return _left(
        record, REQUEST_TIMEOUT, f"The tool {what}, and its client has come back {limit} times, which is the limit"
    )


def _not_to_be_asked(call: Call, record: Record) -> MCPError:
    needed = lacking(call.ctx, record)
    what = " and ".join(sorted(needed))
    why = f"The tool has a question, and this request did not declare that its client can be asked such ({what})"
    return _left(record, MISSING_REQUIRED_CLIENT_CAPABILITY, why, requiredCapabilities=needed)


def _left(record: Record, code: int, why: str, **more: Any) -> MCPError:
    return MCPError(
        code,
        f"{why.rstrip('.')}. The task {record.task_id} goes on: a client that knows tasks can read and answer it, and "
        "a call with the same idempotency key waits for it again.",
        {**more, TASK_ID: record.task_id},
    )
