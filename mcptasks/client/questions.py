"""Puts what a task asks to the client's own callbacks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup
from mcp.client import ClientRequestContext, ClientSession
from mcp_types import METHOD_NOT_FOUND, ErrorData, InputRequest
from pydantic import TypeAdapter, ValidationError

from mcptasks.client.errors import TaskUnreachable, refused

_INPUT_REQUEST: Final[TypeAdapter[InputRequest]] = TypeAdapter(InputRequest)


@dataclass
class Answers:
    """What a handle remembers of a task's questions, over all the times it waits for the task."""

    #: Keys in a callback's hands now, of whichever wait.
    asking: set[str] = field(default_factory=set[str])
    #: Keys whose answer the server acknowledged: never asked again, also when it still shows them.
    answered: set[str] = field(default_factory=set[str])
    #: Answers a callback gave that the server has not acknowledged. A person is not asked twice for a lost message.
    unsent: dict[str, Any] = field(default_factory=dict[str, Any])


class Questions:
    """The open questions of one wait: each in a task of its own, each answer sent as it comes.

    A callback is told to stop (cancelled) when its question is not shown any more: somebody else answered it, or the
    task ended. The first failure ends the wait; it stands in `failure`, because raised in a task group it would reach
    the user inside an ExceptionGroup.
    """

    def __init__(
        self,
        session: ClientSession,
        task_id: str,
        answers: Answers,
        send: Callable[[str, Any], Awaitable[None]],
        group: TaskGroup,
    ) -> None:
        self._session, self._task_id, self._answers, self._send, self._group = session, task_id, answers, send, group
        self._scopes: dict[str, anyio.CancelScope] = {}
        self.failure: Exception | None = None

    def show(self, requests: dict[str, Any]) -> None:
        """Every key not seen before is being asked, every callback whose key is gone is told to stop."""
        for key in self._scopes.keys() - requests.keys():
            self._scopes[key].cancel()
        for key, raw in requests.items():
            if key not in self._answers.asking | self._answers.answered:
                self._answers.asking.add(key)
                self._scopes[key] = anyio.CancelScope()
                self._group.start_soon(self._settle, key, raw, self._scopes[key])

    async def _settle(self, key: str, raw: Any, scope: anyio.CancelScope) -> None:
        unsent = self._answers.unsent
        try:
            with scope:
                if key not in unsent:
                    unsent[key] = await self._ask(key, raw)
                # From here the question may vanish because of this very answer: that must not stop its sending.
                del self._scopes[key]
                await self._send(key, unsent[key])
                del unsent[key]
        except Exception as exc:
            if not isinstance(exc, TaskUnreachable):
                unsent.pop(key, None)
            self.failure = self.failure or exc
            self._group.cancel_scope.cancel()
        finally:
            self._scopes.pop(key, None)
            self._answers.asking.discard(key)

    async def _ask(self, key: str, raw: Any) -> dict[str, Any]:
        try:
            request = _INPUT_REQUEST.validate_python(raw, by_name=False)
        except ValidationError:
            # `from None`: the text of a question does not belong in a traceback.
            unknown = ErrorData(code=METHOD_NOT_FOUND, message="it is no elicitation, sampling or roots request")
            raise refused(self._task_id, unknown) from None
        meta = request.params.meta if request.params else None
        context = ClientRequestContext(session=self._session, request_id=key, meta=meta)
        answer = await self._session.dispatch_input_request(context, request)
        if isinstance(answer, ErrorData):
            raise refused(self._task_id, answer)
        return answer.model_dump(by_alias=True, mode="json", exclude_none=True)
