"""One pass over a tool, from the top until it ends, asks, or must stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_types import INTERNAL_ERROR, CallToolResult, InputRequiredResult

from mcptasks import seams
from mcptasks.capabilities import require_capability
from mcptasks.errors import Cancelled as CancelledInTool
from mcptasks.model import Claim, Journal, Question, Submission
from mcptasks.policy import Policy
from mcptasks.runtime import detached
from mcptasks.runtime.asking import limit_of
from mcptasks.runtime.channel import TaskChannel
from mcptasks.runtime.current import CurrentRun, current_run
from mcptasks.runtime.interrupt import Interrupt
from mcptasks.runtime.lanes import lane
from mcptasks.runtime.outcome import (
    Asked,
    End,
    Failed,
    Retrying,
    cannot_go_on,
    error,
)
from mcptasks.runtime.progress import Reporter
from mcptasks.runtime.replay import SAME_AGAIN, Replay, question_label
from mcptasks.runtime.results import completed, failed
from mcptasks.runtime.retry import Retry
from mcptasks.runtime.shelf import Shelf
from mcptasks.runtime.skew import other_arguments, other_version
from mcptasks.runtime.stopping import stopped
from mcptasks.runtime.watchdog import Decision, Do, Limits
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from mcptasks.strict_json import clean

#: A pass that is let go may clean up for this long. While it does, its task cannot park: an answer would start the next
#: run beside it.
_UNWIND_S: Final = 60.0


class ToolExited(Exception):
    """The tool called `sys.exit()` or raised `KeyboardInterrupt`; on an event loop that would end the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What does not change between the passes of one run."""

    mcp: MCPServer[Any]
    lifespan: Any
    store: TaskStore
    claim: Claim
    submission: Submission
    policy: Policy
    interrupt: Interrupt
    reporter: Reporter
    shelf: Shelf
    #: The store's clock, or a little behind it.
    now_ms: Callable[[], int]


class ToolPass:
    """The tool, running. `advance` until it returns something other than `Asked`, or `abandon` it there."""

    def __init__(self, job: Job, journal: Journal) -> None:
        self._job = job
        self._replay = Replay(journal)
        request = detached.request_of(job.submission.headers)
        self._channel = TaskChannel(
            job.submission, self._replay, job.reporter, request, job.now_ms, job.policy, job.interrupt
        )
        params = detached.call_params(job.submission, journal)
        self._context = detached.context(job.submission, self._channel, job.lifespan, request, params)
        self._tool = seams.get_tool(job.mcp, job.submission.tool)
        self._sync = self._tool is not None and not self._tool.is_async
        self._scope = anyio.CancelScope()
        self._current = CurrentRun(
            job.claim, self._replay, self._channel, job.store, job.shelf, lambda: job.interrupt.requested
        )
        self._versions = other_version(job.claim.record, job.store.settings.version or job.mcp.version)
        self._limits = Limits.of(job.policy)
        self._task: asyncio.Task[CallToolResult | InputRequiredResult | None] | None = None
        #: True when the tool still runs although the pass is over: its thread or coroutine could not be stopped.
        self.stuck = False

    async def advance(self) -> End | Asked:
        """Runs until the tool ends, asks something new, or has to stop. Never raises for the tool's reasons."""
        loop, interrupt = asyncio.get_running_loop(), self._job.interrupt
        if self._task is None:
            interrupt.begin(self._limits)
            self._task = loop.create_task(self._call())
            # A pass that nobody waits for any more must not report its end as an unseen error.
            self._task.add_done_callback(_seen)
        asked = loop.create_task(self._channel.settled())
        with interrupt.work():
            try:
                while True:
                    decision = self._look(self._task)
                    if self._channel.mismatch is not None:
                        await self.abandon()
                        return cannot_go_on(self._channel.mismatch + self._versions)
                    if self._task.done():
                        return await self._end(decision)
                    if decision.do is not Do.RUN:
                        return await self.stop()
                    if asked.done():
                        return Asked(tuple(self._channel.waiting), timers=tuple(self._channel.timers))
                    await interrupt.news(decision, (self._task, asked))
            finally:
                asked.cancel()

    async def steps_done(self) -> bool:
        """No step is under way, so the pass can be let go; False: one is, and the run is to stop."""
        interrupt, steps_done = self._job.interrupt, self._channel.steps_done
        if steps_done.is_set():
            return True
        done = asyncio.get_running_loop().create_task(steps_done.wait())
        with interrupt.work():
            while not done.done() and (decision := interrupt.look()).do is Do.RUN:
                await interrupt.news(decision, (done,))
        done.cancel()
        return steps_done.is_set()

    def deliver(self, journal: Journal) -> None:
        """The tool goes on with these answers, live; call `advance` next."""
        self._channel.deliver(journal)

    async def stop(self) -> End:
        """The tool was asked to stop, and has stopped or its grace is over."""
        interrupt, told = self._job.interrupt, 0
        if self._task is None or self._task.done():  # it returned its questions: nothing of it runs
            return self._stopped(interrupt.look())
        with interrupt.work():
            while True:
                decision = self._look(self._task)
                if self._task.done():
                    end = await self._end(decision)
                    # A tool that answers its interruption with a question has stopped all the same.
                    return self._stopped(decision) if isinstance(end, Asked) else end
                if decision.do is Do.LEAVE:
                    self.stuck = True
                    return self._stopped(decision)
                # A thread cannot be interrupted; it looks at `cancelled()`.
                if len(decision.asked) > told and not self._sync:
                    self._task.cancel()
                told = len(decision.asked)
                await interrupt.news(decision, (self._task,))

    @property
    def leftover(self) -> asyncio.Task[Any] | None:
        """What still runs although the pass is over; None: nothing does."""
        return self._task if self.stuck else None

    async def abandon(self) -> None:
        """The pass is over without an end and its outcome is void: the tool will run again from the top.

        `stuck` is True when the tool did not let go within a minute.
        """
        self._channel.park()
        self._scope.cancel()
        if self._task is not None:
            _, running = await asyncio.wait({self._task}, timeout=_UNWIND_S)
            self.stuck = bool(running)

    # -------------------------------------------------------------------------------------------- inside

    async def _call(self) -> CallToolResult | InputRequiredResult | None:
        job = self._job
        current_run.set(self._current)
        try:
            with detached.caller(job.submission.principal), lane(""), self._scope:
                return await seams.call_like_live(job.mcp, *self._context)
        except (SystemExit, KeyboardInterrupt) as exc:
            raise ToolExited(f"The tool ended its process ({type(exc).__name__})") from exc
        return None  # the scope swallowed its own cancellation: the pass was abandoned

    def _look(self, task: asyncio.Task[Any]) -> Decision:
        if task.done():
            self._job.interrupt.ended()
        return self._job.interrupt.look()

    def _stopped(self, decision: Decision) -> End:
        return stopped(decision, self._job.submission.tool, self._job.policy)

    async def _end(self, decision: Decision) -> End | Asked:
        assert self._task is not None
        if decision.void:
            return self._stopped(decision)
        try:
            result = self._task.result()
        except MCPError as exc:
            return failed(exc, self._job.store.settings)
        except (ToolExited, MemoryError) as exc:
            return Failed(error(INTERNAL_ERROR, str(exc) or f"The tool ran out of memory ({type(exc).__name__})"))
        except BaseException as exc:
            if _is_stop(exc):
                return self._stopped(decision)
            return Failed(error(INTERNAL_ERROR, f"The tool ended with {type(exc).__name__}"))
        if isinstance(result, InputRequiredResult):
            return self._returned(result)
        assert result is not None
        if (wish := self._wish(result)) is not None:
            return Retrying(clean(str(wish)), _final_error(wish, self._job.store.settings))
        # The SDK's answer to arguments that do not fit is meant for their author, who wrote them for another tool.
        if (
            result.is_error
            and self._tool
            and (misfit := other_arguments(self._tool, self._job.submission, self._versions))
        ):
            return misfit
        # A tool that failed did not get as far as its record; one that returned should have.
        if not result.is_error and (missing := self._replay.missing):
            return cannot_go_on(
                f"the tool returned without {missing}, which an earlier run of it had. {SAME_AGAIN}{self._versions}"
            )
        job = self._job
        return await completed(result, job.submission, job.store.settings, job.claim, job.shelf)

    def _wish(self, result: CallToolResult) -> Retry | None:
        """The `Retry` that this result is, after the SDK has turned it into a tool error."""
        if not (result.is_error and self._current.wishes):
            return None
        text = getattr(result.content[0], "text", "") if result.content else ""
        wishes = (wish for wish in reversed(self._current.wishes) if isinstance(wish, Retry))
        # To the letter: a tool that caught its wish may well repeat it in an error of its own.
        said = f"Error executing tool {self._job.submission.tool}: "
        return next((wish for wish in wishes if text == f"{said}{wish}"), None)

    def _returned(self, result: InputRequiredResult) -> Failed | Asked:
        """A resolver or guard asks by returning its questions."""
        asked: dict[str, tuple[str, dict[str, Any]]] = {}
        for own, request in (result.input_requests or {}).items():
            wire = request.model_dump(by_alias=True, mode="json", exclude_none=True)
            asked[own] = (wire["method"], wire.get("params", {}))
        try:
            for method, params in asked.values():
                if not self._job.submission.can_be_asked:
                    raise NoBackChannelError(method)
                require_capability(self._job.submission.capabilities or {}, method, params)
        except MCPError as exc:
            return failed(exc, self._job.store.settings)
        guard = self._replay.next_round(result.request_state, asked)
        policy = self._job.policy
        questions = [
            Question(
                key=guard.keys[own],
                method=method,
                params=params,
                limit=limit_of(policy, method, question_label(method, params)),
            )
            for own, (method, params) in asked.items()
        ]
        return Asked(tuple((question, self._replay.note(question)) for question in questions), guard)


def _final_error(wish: Retry, settings: Settings) -> dict[str, Any]:
    return error(INTERNAL_ERROR, clean(str(wish))) if wish.error is None else failed(wish.error, settings).error


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _is_stop(exc: BaseException) -> bool:
    if isinstance(exc, BaseExceptionGroup):
        return any(_is_stop(inner) for inner in exc.exceptions)
    return isinstance(exc, (asyncio.CancelledError, CancelledInTool))
