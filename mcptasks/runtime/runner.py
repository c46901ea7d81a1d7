"""Runs one claimed task until it ends, parks, or loses its claim.

A tool that asks is suspended. With a hold the run waits a while on its worker and goes on live; otherwise it is
abandoned, the questions stand in the store, and the task waits without a worker. Answered, it runs again from the top
and every recorded answer returns at once.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Final

from mcp.server.mcpserver import MCPServer

from mcptasks import seams
from mcptasks.errors import Sealed
from mcptasks.model import Claim, Journal, label
from mcptasks.observe import tracing
from mcptasks.policy import Policy, policy_of
from mcptasks.runtime.clock import Clock, first_of
from mcptasks.runtime.interrupt import Interrupt
from mcptasks.runtime.outcome import Asked, End, Outcome, Parked, Sleeping, Superseded, cannot_go_on
from mcptasks.runtime.patience import patiently
from mcptasks.runtime.progress import Reporter
from mcptasks.runtime.shelf import Shelf
from mcptasks.runtime.skew import no_key, no_such_tool, other_version
from mcptasks.runtime.stopping import stopped
from mcptasks.runtime.tool_pass import Job, ToolPass
from mcptasks.store.base import Next
from mcptasks.store.records import LockedClaim
from mcptasks.store.store import TaskStore

#: Rounds in which a guard tool returns only state and no question, one after the other; more is a loop.
_STATE_ROUNDS: Final = 20


class Run:
    """One claimed run of a task."""

    def __init__(
        self, mcp: MCPServer[Any], lifespan: Any, store: TaskStore, claim: Claim, clock: Clock | None = None
    ) -> None:
        """`clock`: None is the running loop's."""
        self.claim = claim
        self._clock = clock or asyncio.get_running_loop()
        self.interrupt = Interrupt(asyncio.get_running_loop(), self._clock)
        #: The tool, if it could not be stopped and still occupies its thread.
        self.leftover: asyncio.Task[Any] | None = None
        self._policy = Policy()
        self._mcp = mcp
        self._lifespan = lifespan
        self._store = store
        self._name = f"Task {label(claim.task_id)}"
        self._begun_s = self._clock.time()
        #: Over all questions of the run, because the hard limit has room for one hold.
        self._held_s = 0.0

    async def execute(self) -> Outcome:
        """The run's outcome. Never raises for the tool's reasons.

        Raises:
            StoreUnavailable: the store stayed away for ten minutes; the claim stands until its lease runs out.
        """
        submission, claim = self.claim.submission, self.claim
        if isinstance(claim, LockedClaim):
            return no_key(claim.why)
        if submission is None:
            return cannot_go_on("the stored call is missing or unreadable")
        tool = seams.get_tool(self._mcp, submission.tool)
        if tool is None:
            return no_such_tool(submission)
        self._policy = policy_of(tool.fn) or self._policy
        job = Job(
            mcp=self._mcp,
            lifespan=self._lifespan,
            store=self._store,
            claim=claim,
            submission=submission,
            policy=self._policy,
            interrupt=self.interrupt,
            reporter=Reporter(self._store, claim, lambda: self.interrupt.now_s, self._clock.time),
            shelf=Shelf(self._store, claim),
            now_ms=self._now_ms,
        )
        try:
            return await self._passes(job)
        except Sealed as exc:
            return no_key(str(exc))
        finally:
            await job.reporter.close()

    def left(self) -> End:
        """What becomes of the task without its tool, which does not stop."""
        return stopped(self.interrupt.decision(), self.claim.record.tool, self._policy)

    async def _passes(self, job: Job) -> Outcome:
        journal, state_rounds, limit = self.claim.journal, 0, self._store.settings.replays_max
        for number in itertools.count(self.claim.token):
            if number > limit:
                break
            one = ToolPass(job, journal)
            try:
                outcome = await self._one_pass(job, one)
            except (asyncio.CancelledError, Sealed):
                # The worker goes down, or cannot open what came in. Nothing of this run may go on beside the next one.
                await one.abandon()
                raise
            self.leftover = one.leftover
            if not isinstance(outcome, Journal):
                return outcome
            only_state = outcome.guard != journal.guard and len(outcome.answers) == len(journal.answers)
            state_rounds = state_rounds + 1 if only_state else 0
            if state_rounds > _STATE_ROUNDS:
                return cannot_go_on(f"the tool returned {_STATE_ROUNDS} times without asking or finishing")
            journal = outcome
        return cannot_go_on(f"it was run from the top {limit:,} times, which is the limit (MCPTASKS_REPLAYS_MAX)")

    async def _one_pass(self, job: Job, one: ToolPass) -> Outcome | Journal:
        """The outcome, or the journal with which the tool is to run again at once."""
        while isinstance(step := await one.advance(), Asked):
            await job.reporter.flush()
            if step.timers:
                return await _let_go(job, one) or await self._sleep(step)
            hold_s = job.policy.hold_ms / 1000 - self._held_s
            if hold_s <= 0:
                # First the pass unwinds, then the task parks: an answer that comes at once must not start a second run
                # beside the rest of this one.
                return await _let_go(job, one) or await self._after(await self._ask(step, hold=False))
            asked = await self._ask(step, hold=True)
            if asked.outcome != "HELD":
                return await _let_go(job, one) or await self._after(asked)
            if await self._answered_within(hold_s) and step.guard is None:
                one.deliver(await self._journal())
                continue
            if self.interrupt.requested:
                return await one.stop()
            return await _let_go(job, one) or await self._park()
        return step

    async def _park(self) -> Outcome | Journal:
        with tracing.transition("park"):
            answer = await patiently(lambda: self._store.park(self.claim), self._name)
        return await self._after(answer)

    async def _sleep(self, asked: Asked) -> Outcome | Journal:
        """The timers run, and the questions beside them are open."""
        with tracing.transition("sleep"):
            answer = await patiently(
                lambda: self._store.sleep(self.claim, asked.timers, hold=bool(asked.questions)), self._name
            )
        return await self._after(await self._ask(asked, hold=False) if answer.outcome == "SET" else answer)

    async def _ask(self, asked: Asked, *, hold: bool) -> Next:
        self.interrupt.answered.clear()
        # Without a hold to ask is to park: the run that goes on links to this one.
        trace = tracing.marked()
        with tracing.transition("ask" if hold else "park"):
            return await patiently(
                lambda: self._store.ask(self.claim, asked.questions, guard=asked.guard, hold=hold, trace=trace),
                self._name,
            )

    async def _journal(self) -> Journal:
        return await patiently(lambda: self._store.journal(self.claim.task_id), self._name)

    async def _after(self, answer: Next) -> Outcome | Journal:
        match answer.outcome:
            case "PARKED":
                return Parked(answer.hint)
            case "SLEEPING":
                return Sleeping(answer.hint)
            case "ANSWERED" | "DUE":
                return await self._journal()
            case "MISMATCH":
                return cannot_go_on(f"the question {answer.detail} was asked before with another text.{self._versions}")
            case "TOO_MANY":
                limit = self._store.settings.questions_max
                return cannot_go_on(f"{answer.detail} open questions; the limit is {limit} (MCPTASKS_QUESTIONS_MAX)")
            case _:
                return Superseded(answer.outcome)

    @property
    def _versions(self) -> str:
        return other_version(self.claim.record, self._store.settings.version or self._mcp.version)

    def _now_ms(self) -> int:
        """Never ahead of the store's clock: counted from the claim, which was a little before this run began."""
        return self.claim.at_ms + int((self._clock.time() - self._begun_s) * 1000)

    async def _answered_within(self, seconds: float) -> bool:
        """True when all answers came in time; False on a time-out or an interrupt."""
        loop = asyncio.get_running_loop()
        answered = loop.create_task(self.interrupt.answered.wait())
        stop = loop.create_task(self.interrupt.wait())
        started = self._clock.time()
        try:
            await first_of(self._clock, {answered, stop}, seconds)
            return answered.done()
        finally:
            self._held_s += self._clock.time() - started
            answered.cancel()
            stop.cancel()


async def _let_go(job: Job, one: ToolPass) -> End | None:
    """Nothing of the pass runs any more; or the end that came instead."""
    if not await one.steps_done():
        return await one.stop()
    await one.abandon()
    if one.stuck:
        return cannot_go_on(f"{job.submission.tool} asked, and then did not let go of its worker when it was to wait")
    return None
