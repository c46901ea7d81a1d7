"""The tool's line to its client, which is not there: the SDK's `DispatchContext` of a detached run.

Everything a tool can ask or tell its client goes through these few methods, because the SDK's real `ServerSession`
sits on top. A question is answered from the journal, or the call is suspended until the run parks or the answer comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, Literal, NoReturn

import anyio
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import METHOD_NOT_FOUND
from starlette.requests import Request

from mcptasks.capabilities import require_capability
from mcptasks.errors import ReplayMismatch
from mcptasks.model import Journal, Question, Submission, Timer
from mcptasks.policy import Policy
from mcptasks.runtime.asking import limit_of
from mcptasks.runtime.interrupt import Interrupt
from mcptasks.runtime.lanes import current_lane
from mcptasks.runtime.log_lines import log_line
from mcptasks.runtime.progress import Reporter
from mcptasks.runtime.replay import Replay, question_label

#: After the last news a pass waits this long for siblings (`gather`, task groups): what they ask is asked together.
SETTLE_S: Final = 0.01

#: The same where all that waits is known already: a timer has set the tool going beside an open question, and to let go
#: would tell nobody anything.
LINGER_S: Final = 1.0

#: What is left of a sleep is slept on the worker if it is shorter: letting go and coming back takes about as long.
SLEPT_IN_PLACE_MS: Final = 1_000

_QUESTIONS: Final = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})


class Parked(BaseException):
    """Unwinds a run that was let go while its call waited. Not an `Exception`: a tool's handler must not catch it."""


class _Step:
    """A step that is being done; it is not under way while something in it waits for the runner."""

    def __init__(self, above: _Step | None) -> None:
        self.above, self.waiting = above, 0

    def lineage(self) -> list[_Step]:
        """It, and the steps that it stands in."""
        return [self, *(self.above.lineage() if self.above is not None else [])]


_step: Final[ContextVar[_Step | None]] = ContextVar("mcptasks_step", default=None)


class TaskChannel:
    """`DispatchContext` (request side) and `Outbound` (connection side) of one pass over the tool."""

    def __init__(
        self,
        submission: Submission,
        replay: Replay,
        reporter: Reporter,
        request: Request | None,
        now_ms: Callable[[], int],
        policy: Policy,
        interrupt: Interrupt,
    ) -> None:
        self.transport = TransportContext(
            kind="mcptasks",
            can_send_request=submission.can_be_asked,
            headers=None if request is None else request.headers,
        )
        self.can_send_request = submission.can_be_asked
        self.request_id = submission.request_id
        self.message_metadata = ServerMessageMetadata(request_context=request)
        self.cancel_requested = anyio.Event()
        self.parked = False
        #: Why the tool is not the one that made the task's record; None: it is, so far.
        self.mismatch: str | None = None
        self._capabilities = submission.capabilities or {}
        self._replay = replay
        self._reporter = reporter
        self._now_ms = now_ms
        self._policy = policy
        self._interrupt = interrupt
        self._waiting: dict[str, tuple[Question, asyncio.Event]] = {}
        self._timers: dict[str, Timer] = {}
        #: Set while something waits for the runner.
        self._asked = asyncio.Event()
        #: Set unless a step is under way; before that nobody lets go of the tool.
        self.steps_done = asyncio.Event()
        self.steps_done.set()
        self._steps = set[_Step]()
        #: Counts what the tool's branches did, to see when they have all come to rest.
        self._news = 0

    # -------------------------------------------------------------------------------------------- the tool's side

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """The client's answer, from the journal or, after a suspension, live.

        Raises:
            MCPError: -32021, the client did not declare that it can answer this; -32600, it cannot be asked at all (as
                live); -32601, no such question.
            Parked: the run was let go.
        """
        if not self.can_send_request:
            raise NoBackChannelError(method)
        if method == "ping":
            return {}
        if method not in _QUESTIONS:
            raise MCPError(METHOD_NOT_FOUND, f"A durable task cannot send {method!r} to its client", method)
        asked = dict(params or {})
        require_capability(self._capabilities, method, asked)
        self._news += 1
        try:
            question = self._replay.question(current_lane(), method, asked)
        except ReplayMismatch as exc:
            return await self.give_up(str(exc))
        if (recorded := self._replay.take(question.key)) is not None:
            await asyncio.sleep(0)  # a call to the client is a checkpoint, in a replay too
            return recorded
        question = replace(question, limit=limit_of(self._policy, method, question_label(method, asked)))
        answered = asyncio.Event()
        self._waiting[question.key] = (question, answered)
        with self._suspended(self._waiting, question.key):
            await answered.wait()
        answer = self._replay.take(question.key)
        if self.parked or answer is None:
            raise Parked(question.key)
        return answer

    async def sleep(self, *, delay_ms: int | None = None, until_ms: int | None = None) -> None:
        """Returns when that is over, in this pass or in a later one.

        Raises:
            Parked: the run was let go.
        """
        self._news += 1
        try:
            call = self._replay.timer(current_lane())
        except ReplayMismatch as exc:
            await self.give_up(str(exc))
        now_ms = self._now_ms()
        due_ms = self._replay.due_ms(call)
        if due_ms is None:
            due_ms = now_ms + delay_ms if delay_ms is not None else until_ms or 0
        if (left_ms := due_ms - now_ms) < SLEPT_IN_PLACE_MS:
            await asyncio.sleep(max(0, left_ms) / 1000)
            self._news += 1
            return
        self._timers[call.name] = Timer(name=call.name, place=call.place, delay_ms=delay_ms, until_ms=until_ms)
        with self._suspended(self._timers, call.name):
            await self.cancel_requested.wait()
        raise Parked(call.name)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """A log message stands in the timeline, unless an earlier pass already told it; everything else is dropped.

        Progress and log notifications are not for the clients of tasks (SEP-2663), and nobody listens here for others.
        """
        if method == "notifications/message":
            self.remark("log", log_line(params or {}))

    def remark(self, word: Literal["log", "note"], text: str) -> None:
        """It stands in the timeline, unless an earlier pass already told it. `text` is JSON."""
        if not (self._replay.replaying or self.parked):
            self._reporter.remark(word, text)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """The progress becomes the task's status message, unless an earlier pass already told it.

        Also in a replay the tool gets on: what was told before was done again.
        """
        self._interrupt.progressed(progress)
        if not (self._replay.replaying or self.parked):
            self._reporter.report(progress, total, message)

    @contextmanager
    def working(self) -> Generator[None]:
        """Inside the block a step is done, which must not be interrupted because a sibling asks."""
        mine = _Step(_step.get())
        reset = _step.set(mine)
        self._steps.add(mine)
        self._look_around()
        try:
            yield
        finally:
            self._steps.discard(mine)
            self._look_around()
            _step.reset(reset)

    def step_done(self) -> None:
        """The tool has got on by a step."""
        self._interrupt.moved()

    async def give_up(self, why: str) -> NoReturn:
        """The task fails with this reason, whatever the tool would make of an exception."""
        self.mismatch = self.mismatch or why
        with self._suspended({}, ""):
            await self.cancel_requested.wait()
        raise Parked(why)

    @contextmanager
    def _suspended(self, among: dict[str, Any], name: str) -> Generator[None]:
        """Inside the block the calling branch waits for the runner, and so do the steps that it stands in.

        Afterwards it is not among those that wait any more: the tool may have cancelled it, and goes on.
        """
        step = _step.get()
        above = step.lineage() if step is not None else []
        for one in above:
            one.waiting += 1
        self._asked.set()
        self._look_around()
        try:
            yield
        finally:
            among.pop(name, None)
            if not (self._waiting or self._timers or self.mismatch):
                self._asked.clear()
            for one in above:
                one.waiting -= 1
            self._look_around()

    def _look_around(self) -> None:
        self._news += 1
        if any(not one.waiting for one in self._steps):
            self.steps_done.clear()
        else:
            self.steps_done.set()

    # -------------------------------------------------------------------------------------------- the runner's side

    @property
    def waiting(self) -> list[tuple[Question, str]]:
        """The questions whose calls are suspended, in the order they were asked, each with its note."""
        return [(question, self._replay.note(question)) for question, _ in self._waiting.values()]

    @property
    def timers(self) -> list[Timer]:
        """The timers that the tool waits for."""
        return list(self._timers.values())

    async def settled(self) -> None:
        """Something waits for the runner, and the tool's other branches have asked or done what they were about to."""
        quiet_s = 0.0
        while self.mismatch is None:
            await self._asked.wait()
            await self.steps_done.wait()
            seen = self._news
            await asyncio.sleep(SETTLE_S)
            quiet_s = quiet_s + SETTLE_S if seen == self._news and self._asked.is_set() else 0.0
            if quiet_s >= (SETTLE_S if self._tells_something_new() else LINGER_S):
                return

    def _tells_something_new(self) -> bool:
        journal = self._replay.journal
        return bool(self._waiting.keys() - journal.asked.keys() or self._timers.keys() - journal.timers.keys())

    def deliver(self, journal: Journal) -> None:
        """The suspended calls whose answers the journal now has go on."""
        self._replay.extend(journal)
        self._interrupt.moved()
        for key in [key for key in self._waiting if key in journal.answers]:
            self._waiting.pop(key)[1].set()
        if not self._waiting and not self._timers:
            self._asked.clear()

    def park(self) -> None:
        """Every suspended call ends with `Parked`, also inside a shielded scope."""
        self.parked = True
        self.cancel_requested.set()
        for _, answered in self._waiting.values():
            answered.set()
