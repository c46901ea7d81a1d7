"""What callers give is put into the store, and the fleet is woken: calls, answers, cancels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, CallToolRequestParams

from mcptasks.answers import checked
from mcptasks.dispatch import Dispatcher
from mcptasks.errors import BadAnswer
from mcptasks.model import Hint, Record, Submission, new_task_id
from mcptasks.observe import tracing
from mcptasks.policy import Policy
from mcptasks.server import submission
from mcptasks.server.refusals import answering, not_found, turned_away
from mcptasks.server.submission import Settled
from mcptasks.settings import Settings
from mcptasks.store.callers import Refused
from mcptasks.store.store import TaskStore

#: Tasks of which the questions are kept for their answers; a client mostly answers what it was shown a moment before.
_SHOWN: Final = 256


@dataclass(frozen=True, slots=True)
class Call:
    """One valid `tools/call` of a durable tool."""

    params: CallToolRequestParams
    ctx: ServerRequestContext[Any, Any]
    owner: str
    policy: Policy


class Intake:
    """The way of one server process into the store and to the fleet. Every method raises what `answering` raises."""

    def __init__(self, store: TaskStore, dispatcher: Dispatcher, version: str) -> None:
        self._store = store
        self._dispatcher = dispatcher
        #: Of the code that takes the calls.
        self._version = version
        #: The tasks that wait for a person, as their owners were last shown them here; the oldest go.
        self._shown = OrderedDict[tuple[str, str], Record]()

    @property
    def settings(self) -> Settings:
        """The settings of the store."""
        return self._store.settings

    async def create(self, call: Call, settled: Settled | None) -> Record:
        """The call's task exists; or it is the one that the very same call has made before.

        Raises:
            MCPError: -32603, the fleet takes no task now; -32602, the call was made before with other arguments.
        """
        with tracing.sending(call.params.name, call.policy.queue or self.settings.queue):
            return await self._create(call, settled)

    async def _create(self, call: Call, settled: Settled | None) -> Record:
        taken = submission.take(call.params, call.ctx, self.settings.headers, keep_token=self.settings.keep_token)
        identity = submission.identity(taken, call.ctx, settled)
        hint = self._first_hint(taken, call.policy)
        message = self._dispatcher.envelope(hint)
        answer = await answering(
            lambda: self._store.create(
                hint.task_id,
                taken,
                owner=call.owner,
                policy=call.policy,
                idempotency_key=identity.key,
                arguments_digest=identity.digest,
                settled=None if settled is None else (settled.guard, settled.answers),
                version=self._version,
                message=message,
            )
        )
        if isinstance(answer, Refused):
            raise turned_away(answer)
        if answer.record is not None:
            if message is None:
                self._dispatcher.send(hint)
            return answer.record
        if answer.outcome == "CONFLICT":
            raise MCPError(INVALID_PARAMS, identity.clash)
        known = await answering(lambda: self._store.read(answer.task_id, call.owner))
        if known is None:  # it expired between the two round trips
            raise MCPError(INTERNAL_ERROR, "The task that this call made before has just expired; call again.")
        return known

    async def read(self, task_id: str, owner: str, *, patience_s: float = 0) -> Record:
        """The owner's task. `patience_s` as in `answering`.

        Raises:
            MCPError: -32602, there is none.
        """
        record = await answering(lambda: self._store.read(task_id, owner), patience_s=patience_s)
        self._shown.pop((task_id, owner), None)
        if record is None:
            raise not_found()
        if record.questions:
            self._shown[task_id, owner] = record
            if len(self._shown) > _SHOWN:
                self._shown.popitem(last=False)
        return record

    async def respond(self, task_id: str, owner: str, responses: Mapping[str, Any]) -> None:
        """As `answer`, for the owner's task, in one round trip where this process has shown the questions before.

        A key means one question for the task's life, so what is valid for the question as it was shown is valid for it
        now; whether it is still open, and the task still there, the store decides. Whatever else is answered is held
        against the task as it is.

        Raises:
            MCPError: -32602, there is no such task, or as of `answer`.
        """
        shown = self._shown.get((task_id, owner))
        if shown is not None and (answers := _fitting(responses, shown)):
            await self._give(shown, answers)
        else:
            await self.answer(await self.read(task_id, owner), responses)

    async def answer(self, record: Record, responses: Mapping[str, Any], *, patience_s: float = 0) -> None:
        """Valid answers to open questions of the task are stored; with the last one the task moves on.

        `patience_s` as in `answering`: an answer that is sent twice is one answer.

        Raises:
            MCPError: -32602, an answer does not satisfy its question; none of them was stored.
        """
        try:
            answers = checked(responses, record.questions)
        except BadAnswer as exc:
            raise MCPError(INVALID_PARAMS, str(exc)) from None
        if answers:
            await self._give(record, answers, patience_s=patience_s)

    async def _give(self, record: Record, answers: Mapping[str, Any], *, patience_s: float = 0) -> None:
        with tracing.sending(record.tool, record.queue):
            trace = tracing.carried()
            # Almost always these are the last answers: the message for the next run goes along with them.
            message = self._dispatcher.envelope(_next_hint(record, trace))
            result = await answering(
                lambda: self._store.answer(record.task_id, record.owner, answers, message), patience_s=patience_s
            )
            if result.outcome == "GONE":
                raise not_found()
            if result.hint is not None:
                self._dispatcher.send(replace(result.hint, trace=trace))

    async def cancel(self, task_id: str, owner: str) -> None:
        """The wish is stored, whatever the task does (P50).

        Raises:
            MCPError: -32602, the owner has no such task.
        """
        if await answering(lambda: self._store.cancel(task_id, owner)) == "GONE":
            raise not_found()

    def _first_hint(self, call: Submission, policy: Policy) -> Hint:
        hard_ms = policy.hard_limit_ms
        return Hint(
            task_id=new_task_id(),
            run=1,
            tool=call.tool,
            queue=policy.queue or self.settings.queue,
            hard_limit_s=None if hard_ms is None else hard_ms / 1000,
            trace=call.trace,
        )


def _fitting(responses: Mapping[str, Any], shown: Record) -> dict[str, Any]:
    """The responses, if each is a valid answer to a question of the record; else none."""
    try:
        answers = checked(responses, shown.questions)
    except BadAnswer:
        return {}
    return answers if len(answers) == len(responses) else {}


def _next_hint(record: Record, trace: Mapping[str, str]) -> Hint:
    return Hint(
        task_id=record.task_id,
        run=record.token + 1,
        tool=record.tool,
        queue=record.queue,
        hard_limit_s=None if record.hard_limit_ms is None else record.hard_limit_ms / 1000,
        trace=trace,
    )
