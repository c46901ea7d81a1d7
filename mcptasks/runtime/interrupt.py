"""One run's own clock, what has happened to it by that clock, and how it hears that it is to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from typing import Any

from mcptasks.runtime.clock import Clock, first_of
from mcptasks.runtime.watchdog import Decision, Do, Limits, Marks, Stop, decide


class Interrupt:
    """Asks one run to stop, from any thread; the run's loop is woken, a sync tool sees the flag.

    Its clock goes while the tool works and stands while the tool waits for a person or a timer. Only the run's own loop
    moves it; other threads read it, so whatever they read is one value.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock | None = None) -> None:
        """`clock`: None is the loop's."""
        self._loop, self._clock = loop, clock or loop
        self._woken = asyncio.Event()
        self._limits = Limits()
        self._asked = dict[Stop, float]()
        self._moved_s: float = 0.0
        self._ended_s: float | None = None
        self._high = float("-inf")
        #: Seconds that it had gone when it was last started or stopped, and when it was started; None: it stands.
        self._time: tuple[float, float | None] = (0.0, None)
        self.answered = asyncio.Event()

    # -------------------------------------------------------------------------------------------- the clock

    @property
    def now_s(self) -> float:
        """Seconds that the tool has worked in this run."""
        worked_s, since_s = self._time
        return worked_s if since_s is None else worked_s + self._clock.time() - since_s

    @contextmanager
    def work(self) -> Generator[None]:
        """Inside the block the clock goes."""
        worked_s, since_s = self._time
        if since_s is not None:  # it goes already, in a block around this one
            yield
            return
        self._time = worked_s, self._clock.time()
        try:
            yield
        finally:
            self._time = self.now_s, None

    # -------------------------------------------------------------------------------------------- what happened

    def begin(self, limits: Limits) -> None:
        """A pass over the tool begins. The time it has is what earlier passes of this run have left of it."""
        self._limits, self._high, self._ended_s = limits, float("-inf"), None
        self.moved()

    def moved(self) -> None:
        """The tool got on: a step was finished, an answer has come."""
        self._moved_s = self.now_s

    def progressed(self, done: float) -> None:
        """The tool reported this progress. It has got on if that is more than this pass has reported before."""
        if done > self._high:
            self._high = done
            self.moved()

    def ended(self) -> None:
        """The tool runs no more; the first look that sees it says when."""
        if self._ended_s is None:
            self._ended_s = self.now_s

    # -------------------------------------------------------------------------------------------- stopping it

    @property
    def requested(self) -> bool:
        """The run is to stop."""
        return bool(self._asked)

    @property
    def kinds(self) -> tuple[Stop, ...]:
        """Everything that asked."""
        return tuple(self._asked)

    def request(self, kind: Stop) -> None:
        """The run knows that it is to stop, and why. Asking twice for one reason is asking once."""
        self._ask(kind, self.now_s)

    def decision(self) -> Decision:
        """What is to be done with the run now; looks only."""
        marks = Marks(moved_s=self._moved_s, asked=tuple(self._asked.items()), ended_s=self._ended_s)
        return decide(self.now_s, self._limits, marks)

    def look(self) -> Decision:
        """What is to be done with the run now; a limit that has passed is told to the tool, and stays told."""
        decision = self.decision()
        for stop, at_s in decision.asked:
            self._ask(stop, at_s)
        return decision

    @property
    def ignored_s(self) -> float:
        """For how long the run should have been left, and was not: its loop does not turn. Any thread may ask."""
        decision = self.decision()
        if decision.do is not Do.LEAVE or decision.leave_s is None:
            return 0.0
        return self.now_s - decision.leave_s

    def wake(self) -> None:
        """A held run looks for its answers."""
        self._call(self.answered.set)

    async def wait(self, seen: int = 0) -> None:
        """Returns when more than `seen` reasons have asked."""
        while len(self._asked) <= seen:
            self._woken.clear()
            await self._woken.wait()

    async def news(self, decision: Decision, others: Collection[asyncio.Future[Any]]) -> None:
        """Returns when one of the others is done, another reason has asked, or it is time to look again."""
        reason = self._loop.create_task(self.wait(len(decision.asked)))
        left_s = None if decision.look_s is None else max(0.0, decision.look_s - self.now_s)
        try:
            await first_of(self._clock, {reason, *others}, left_s)
        finally:
            reason.cancel()

    def _ask(self, kind: Stop, at_s: float) -> None:
        self._asked.setdefault(kind, at_s)
        self._call(self._woken.set)

    def _call(self, wake: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(wake)
