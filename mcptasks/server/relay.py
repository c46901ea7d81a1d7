"""Puts the questions of a task to an older client, live on the connection of its call (before 2026-07-28)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import INVALID_PARAMS, InputRequest
from pydantic import TypeAdapter, ValidationError

from mcptasks.answers import result_type
from mcptasks.model import Record
from mcptasks.server.intake import Call, Intake
from mcptasks.server.watch import PATIENCE_S

INPUT_REQUEST: Final[TypeAdapter[InputRequest]] = TypeAdapter(InputRequest)


class Relay:
    """The questions of one waiting call. Each is asked once, beside the others; each answer is stored as it comes.

    A question that is not open any more is withdrawn: somebody else answered it, or the task ended. The first failure
    stands in `failure`, because raised in a task group it would reach the caller wrapped in an ExceptionGroup.
    """

    def __init__(self, call: Call, intake: Intake, group: TaskGroup, nudge: Callable[[], None]) -> None:
        self._call, self._intake, self._group, self._nudge = call, intake, group, nudge
        self._asking: dict[str, anyio.CancelScope] = {}
        self._asked = set[str]()
        self.failure: MCPError | None = None

    def show(self, record: Record, questions: Mapping[str, Any]) -> None:
        """These of the record's open questions are with the client, and no others."""
        for key, scope in self._asking.items():
            if key not in questions:
                scope.cancel()
        for key in questions:
            if key not in self._asked:
                self._asked.add(key)
                self._group.start_soon(self._put, record, key)

    async def _put(self, record: Record, key: str) -> None:
        try:
            answer = await self._answered(key, record.questions[key])
            if answer is not None:
                # Not withdrawn any more: seen from outside, the question is closed by this very write.
                await self._intake.answer(record, {key: answer}, patience_s=PATIENCE_S)
        except MCPError as exc:
            self.failure = exc
        except ValidationError:
            # Not its text: that repeats what the client sent.
            self.failure = MCPError(INVALID_PARAMS, "The client's answer is not of the question's kind")
        self._nudge()

    async def _answered(self, key: str, question: Mapping[str, Any]) -> dict[str, Any] | None:
        """The client's answer; None when the question was withdrawn."""
        answer = None
        with anyio.CancelScope() as scope:
            self._asking[key] = scope
            try:
                answer = await self._ask(question)
            finally:
                del self._asking[key]
        return answer

    async def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        ctx = self._call.ctx
        request = INPUT_REQUEST.validate_python(question, by_name=False)
        # With the call's id it goes out on the call's own stream, where there are several.
        metadata = ServerMessageMetadata(related_request_id=ctx.request_id)
        answer = await ctx.session.send_request(request, result_type(question), metadata=metadata)
        return answer.model_dump(by_alias=True, mode="json", exclude_none=True)
