"""The tool's line to its client, which is not there: the SDK's `DispatchContext` of a detached run.

Everything a tool can ask or tell its client goes through these few methods, because the SDK's real `ServerSession`
sits on top. A question is answered from the journal, or the call is suspended until the run parks or the answer comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, cast

import anyio
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY
from starlette.requests import Request

from mcptasks.model import Journal, Question, Submission
from mcptasks.runtime.progress import Reporter
from mcptasks.runtime.replay import Replay

_QUESTIONS: Final = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})


class Parked(BaseException):
    """Unwinds a run that was let go while its call waited. Not an `Exception`: a tool's handler must not catch it."""


class TaskChannel:
    """`DispatchContext` (request side) and `Outbound` (connection side) of one pass over the tool."""

    def __init__(self, submission: Submission, replay: Replay, reporter: Reporter, request: Request | None) -> None:
        self.transport = TransportContext(
            kind="mcptasks", can_send_request=True, headers=None if request is None else request.headers
        )
        self.can_send_request = True
        self.request_id = submission.request_id
        self.message_metadata = ServerMessageMetadata(request_context=request)
        self.cancel_requested = anyio.Event()
        #: Set as soon as a question waits.
        self.asked = asyncio.Event()
        self.parked = False
        self._capabilities = submission.capabilities or {}
        self._replay = replay
        self._reporter = reporter
        self._waiting: dict[str, tuple[Question, asyncio.Event]] = {}

    # -------------------------------------------------------------------------------------------- the tool's side

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """The client's answer, from the journal or, after a suspension, live.

        Raises:
            MCPError: -32021, the client did not declare that it can answer this; -32601, no such question.
            Parked: the run was let go.
        """
        if method == "ping":
            return {}
        if method not in _QUESTIONS:
            raise MCPError(METHOD_NOT_FOUND, f"A durable task cannot send {method!r} to its client", method)
        asked = dict(params or {})
        require_capability(self._capabilities, method, asked)
        question = self._replay.mint(method, asked)
        if (recorded := self._replay.take(question.key)) is not None:
            await asyncio.sleep(0)  # a call to the client is a checkpoint, in a replay too
            return recorded
        answered = asyncio.Event()
        self._waiting[question.key] = (question, answered)
        self.asked.set()
        await answered.wait()
        answer = self._replay.take(question.key)
        if self.parked or answer is None:
            raise Parked(question.key)
        return answer

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Dropped: progress and log notifications are not for tasks (SEP-2663), and nobody listens here for others."""

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """The progress becomes the task's status message, unless an earlier pass already told it."""
        if not (self._replay.replaying or self.parked):
            self._reporter.report(progress, total, message)

    # -------------------------------------------------------------------------------------------- the runner's side

    @property
    def waiting(self) -> list[Question]:
        """The questions whose calls are suspended, in the order they were asked."""
        return [question for question, _ in self._waiting.values()]

    def deliver(self, journal: Journal) -> None:
        """The suspended calls whose answers the journal now has go on."""
        self._replay.extend(journal)
        for key in [key for key in self._waiting if key in journal.answers]:
            self._waiting.pop(key)[1].set()
        if not self._waiting:
            self.asked.clear()

    def park(self) -> None:
        """Every suspended call ends with `Parked`, also inside a shielded scope."""
        self.parked = True
        self.cancel_requested.set()
        for _, answered in self._waiting.values():
            answered.set()


def require_capability(capabilities: Mapping[str, Any], method: str, params: Mapping[str, Any]) -> None:
    """The client declared on the call that it can answer this (SEP-2663: input requests keep the trust model).

    Raises:
        MCPError: -32021 with the capability that is missing.
    """
    if method == "elicitation/create":
        mode = str(params.get("mode", "form"))
        declared = cast("dict[str, Any] | None", capabilities.get("elicitation"))
        # An empty object means form, the only mode there was before modes had names.
        able = declared is not None and (mode in declared or (mode == "form" and "url" not in declared))
        needed: dict[str, Any] = {"elicitation": {mode: {}}}
    else:
        name = method.split("/")[0]
        able, needed = capabilities.get(name) is not None, {name: {}}
    if not able:
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"Client did not declare the {next(iter(needed))} capability this tool needs",
            {"requiredCapabilities": needed},
        )
