"""One pass over a tool, from the top until it ends, asks, or must stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_types import INTERNAL_ERROR, CallToolResult, InputRequiredResult

from mcptasks import seams
from mcptasks.capabilities import require_capability
from mcptasks.errors import Cancelled as CancelledInTool
from mcptasks.model import Claim, Journal, Question, Reason, Submission
from mcptasks.policy import Policy
from mcptasks.runtime import detached
from mcptasks.runtime.asking import limit_of
from mcptasks.runtime.channel import TaskChannel
from mcptasks.runtime.current import CurrentRun, current_run
from mcptasks.runtime.lanes import lane
from mcptasks.runtime.outcome import (
    Asked,
    Cancelled,
    End,
    Failed,
    Interrupted,
    Retrying,
    Superseded,
    cannot_go_on,
    error,
)
from mcptasks.runtime.progress import Reporter
from mcptasks.runtime.replay import SAME_AGAIN, Replay, question_label
from mcptasks.runtime.results import completed, failed
from mcptasks.runtime.retry import Retry
from mcptasks.runtime.skew import other_arguments, other_version
from mcptasks.runtime.watchdog import Interrupt, Stop, grace_s
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from mcptasks.wire import clean

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
    #: The store's clock, or a little behind it.
    now_ms: Callable[[], int]


class ToolPass:
    """The tool, running. `advance` until it returns something other than `Asked`, or `abandon` it there."""

    def __init__(self, job: Job, journal: Journal) -> None:
        self._job = job
        self._replay = Replay(journal)
        request = detached.request_of(job.submission.headers)
        self._channel = TaskChannel(job.submission, self._replay, job.reporter, request, job.now_ms, job.policy)
        params = detached.call_params(job.submission, journal)
        self._context = detached.context(job.submission, self._channel, job.lifespan, request, params)
        self._tool = seams.get_tool(job.mcp, job.submission.tool)
        self._sync = self._tool is not None and not self._tool.is_async
        self._scope = anyio.CancelScope()
        self._current = CurrentRun(job.claim, self._replay, self._channel, job.store, lambda: job.interrupt.requested)
        self._versions = other_version(job.claim.record, job.store.settings.version or job.mcp.version)
        self._left_s = None if job.policy.time_limit_ms is None else job.policy.time_limit_ms / 1000
        self._task: asyncio.Task[CallToolResult | InputRequiredResult | None] | None = None
        #: True when the tool still runs although the pass is over: its thread or coroutine could not be stopped.
        self.stuck = False

    async def advance(self) -> End | Asked:
        """Runs until the tool ends, asks something new, or has to stop. Never raises for the tool's reasons."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._call())
            # Looked at here once, so that a pass nobody waits for any more does not report its end as an unseen error.
            self._task.add_done_callback(_seen)
        async with self._running_until(self._channel.settled()) as asked:
            await asyncio.wait({self._task, *asked}, return_when=asyncio.FIRST_COMPLETED)
            if self._channel.mismatch is not None:
                await self.abandon()
                return cannot_go_on(self._channel.mismatch + self._versions)
            if self._task.done():
                return self._end()
            if self._job.interrupt.requested:
                return await self.stop()
            return Asked(tuple(self._channel.waiting), timers=tuple(self._channel.timers))

    async def steps_done(self) -> bool:
        """No step is under way, so the pass can be let go; False: one is, and the run is to stop."""
        if not self._channel.steps_done.is_set():
            async with self._running_until(self._channel.steps_done.wait()) as done:
                await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
        return self._channel.steps_done.is_set()

    def deliver(self, journal: Journal) -> None:
        """The tool goes on with these answers, live; call `advance` next."""
        self._channel.deliver(journal)

    async def stop(self) -> End:
        """The tool was asked to stop, and has stopped or its grace is over."""
        if self._task is None or self._task.done():  # it returned its questions: nothing of it runs
            return self._stopped()
        interrupt, seen = self._job.interrupt, 0
        while True:
            # A thread cannot be interrupted; it looks at `cancelled()`.
            if len(interrupt.kinds) > seen and not self._sync:
                self._task.cancel()
            seen = len(interrupt.kinds)
            news = asyncio.get_running_loop().create_task(interrupt.wait(seen))
            grace = grace_s(interrupt.kinds, self._job.policy)
            await asyncio.wait({self._task, news}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            more = news.done()
            news.cancel()
            if self._task.done():
                end = self._end()
                # A tool that answers its interruption with a question has stopped all the same.
                return self._stopped() if isinstance(end, Asked) else end
            if not more:
                self.stuck = True
                return self._stopped(timed_out=True)

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

    @asynccontextmanager
    async def _running_until(self, news: Coroutine[Any, Any, Any]) -> AsyncGenerator[set[asyncio.Task[Any]]]:
        """Inside the block the tool's time runs; what ends it is the news, or that the run is to stop."""
        loop = asyncio.get_running_loop()
        started, left_s = loop.time(), self._left_s
        limit = None if left_s is None else loop.call_later(left_s, self._job.interrupt.request, Stop.WALL)
        waits = {loop.create_task(news), loop.create_task(self._job.interrupt.wait())}
        try:
            yield waits
        finally:
            for wait in waits:
                wait.cancel()
            if limit is not None and left_s is not None:
                limit.cancel()
                # Only running counts: waiting for a person does not use up the tool's time.
                self._left_s = max(0.0, left_s - (loop.time() - started))

    async def _call(self) -> CallToolResult | InputRequiredResult | None:
        job = self._job
        current_run.set(self._current)
        try:
            with detached.caller(job.submission.principal), lane(""), self._scope:
                return await seams.call_like_live(job.mcp, *self._context)
        except (SystemExit, KeyboardInterrupt) as exc:
            raise ToolExited(f"The tool ended its process ({type(exc).__name__})") from exc
        return None  # the scope swallowed its own cancellation: the pass was abandoned

    def _stopped(self, *, timed_out: bool = False) -> End:
        match self._job.interrupt.kind:
            case Stop.CANCEL:
                return Cancelled(Reason.CANCEL_TIMEOUT if timed_out else Reason.CANCELLED)
            case Stop.WALL:
                limit_s = (self._job.policy.time_limit_ms or 0) / 1000
                text = f"The tool {self._job.submission.tool} ran into its time limit of {limit_s:g} s"
                return Failed(error(INTERNAL_ERROR, text), Reason.WALL_TIMEOUT)
            case Stop.SHUTDOWN:
                return Interrupted()
            case Stop.LOST:
                return Superseded("LOST")
            case None:
                return Failed(error(INTERNAL_ERROR, f"The tool {self._job.submission.tool} cancelled itself"))

    def _end(self) -> End | Asked:
        assert self._task is not None
        kind = self._job.interrupt.kind
        if kind in (Stop.WALL, Stop.LOST):
            # A result that comes after the limit does not undo the limit; one of a lost run counts for nothing.
            return self._stopped()
        try:
            result = self._task.result()
        except MCPError as exc:
            return failed(exc, self._job.store.settings)
        except (ToolExited, MemoryError) as exc:
            return Failed(error(INTERNAL_ERROR, str(exc) or f"The tool ran out of memory ({type(exc).__name__})"))
        except BaseException as exc:
            if _is_stop(exc):
                return self._stopped()
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
        return completed(result, self._job.submission, self._job.store.settings, self._job.claim.task_id)

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
