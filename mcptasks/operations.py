"""The fleet in an operator's hand: all tasks, one and its questions, admission, cancel, drain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import copy
from types import TracebackType
from typing import Any, Final, Literal, Self, cast

from mcptasks.errors import BadAnswer, RetryRefused, SchemaTooNew, UnknownTask
from mcptasks.model import Status, label, new_task_id
from mcptasks.scope import PAGE, PAGE_MAX, Scope, size, unknown
from mcptasks.settings import Settings
from mcptasks.store.callers import Refused
from mcptasks.store.lists import Counts, Page
from mcptasks.store.registry import FRESH_MS, WorkerPulse
from mcptasks.store.retention import PURGE_BATCH
from mcptasks.store.store import TaskStore
from mcptasks.times import Duration, duration_ms

#: The statuses of what has ended.
ENDS: Final = tuple(status for status in Status if status.terminal)
#: Between two looks at what is left.
_LOOK_S: Final = 0.1
#: And so many times as long as the look took: a long list is read by those who still work on it.
_PAUSE: Final = 4


class Operations(Scope):
    """A connection to the fleet's store; `async with Operations() as fleet`. Sees and touches every owner's tasks.

    Lists, numbers and single tasks are as `Scope` has them.

    Every method raises `StoreUnavailable` when the store does not answer.
    """

    def __init__(self, settings: Settings | None = None, *, operator: str = "") -> None:
        """`operator` is who acts; a task's timeline names them with what they did to it."""
        super().__init__(TaskStore(settings or Settings.load()), None)
        self._operator = operator

    def acting(self, operator: str) -> Self:
        """The same connection in another operator's hand."""
        other = copy(self)
        other._operator = operator
        return other

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._store.aclose()

    async def close_admission(self, reason: str) -> None:
        """New durable calls are refused with this reason, before any record exists; admitted ones go on."""
        await self._store.close_admission(reason)

    async def open_admission(self) -> None:
        """New durable calls are accepted again."""
        await self._store.open_admission()

    async def admission(self) -> str | None:
        """Why durable calls are refused; None while they are accepted."""
        return await self._store.admission()

    async def active(self) -> list[str]:
        """The ids of all unfinished tasks, those not yet started included, in lexical order."""
        return await self._store.active()

    async def page(
        self,
        *,
        owner: str | None = None,
        statuses: Collection[Status] = tuple(Status),
        tool: str | None = None,
        limit: int = PAGE,
        cursor: str | None = None,
        looks: int | None = None,
    ) -> Page:
        """As `Scope.page`: of everybody's tasks, or of that owner's.

        `looks` bounds how many tasks are looked at for it, in thousands; then a page may have fewer, or none.
        """
        return await self._store.page(
            owner, statuses=statuses, tool=tool, limit=size(limit), cursor=cursor, looks=looks
        )

    def listen(self, hear: Callable[[], None]) -> None:
        """`hear` is called whenever some task has changed so that its caller could see it. It must not raise or wait.

        That a task was created, or has a worker now, is not heard of. What was missed while the store was away is one
        call.
        """
        self._store.watch.listen(hear)

    def leave(self, hear: Callable[[], None]) -> None:
        """`hear` is not called any more."""
        self._store.watch.leave(hear)

    async def count(self, tool: str | None = None, *, owner: str | None = None) -> Counts:
        """How many tasks there are in each status: of all tools or of one, of everybody or of one owner.

        Both together are counted by looking at each of the owner's tasks: some ten seconds for a million.
        """
        return await self._store.count(owner, tool)

    async def answer(self, task: str, answers: Mapping[str, Any]) -> bool:
        """All these answers are stored, in the name of the task's caller; True: the task moves on, no question is open.

        Each is by the key that it has in `read().questions`, and what a client would send: for an elicitation
        `{"action": "accept", "content": {...}}`, "decline" or "cancel". A task that waits without a worker is sent to
        one by the next sweep.

        Raises:
            BadAnswer: an answer does not satisfy its question, or its question is not open; nothing was stored. Only
                if somebody else answers at the same moment, the others may have been. (One whose time is up, and
                which no sweep has closed, is passed over without a word if others are answered with it.)
            TooLarge: one is over `settings.answer_max`.
            UnknownTask, AmbiguousTask: as `read`.
        """
        # It brings the SDK along, a second of every start of those who answer nothing.
        from mcptasks.answers import checked  # noqa: PLC0415

        record = await self.read(task)
        open_ones = record.questions
        if closed := sorted(answers.keys() - open_ones.keys()):
            raise BadAnswer(_not_open(closed))
        valid = checked(answers, open_ones)
        outcome = (await self._store.answer(record.task_id, None, valid, operator=self._operator)).outcome
        if outcome in ("IGNORED", "GONE"):
            raise BadAnswer(_not_open(sorted(answers)))
        return outcome != "PARTIAL"

    async def extend(self, task: str, ttl: Duration) -> int | None:
        """The task is kept for at least so long from now, never for less than before. Returns until when (Unix ms).

        None: for ever. An unfinished task does not expire before that; one that has ended is only kept longer.

        Raises:
            UnknownTask, AmbiguousTask, SchemaTooNew: as `read`.
            ConfigurationError: it is no duration.
        """
        ttl_ms, task_id = duration_ms(ttl), await self._whole(task)
        answer = await self._store.extend(task_id, ttl_ms, operator=self._operator)
        if answer.outcome == "GONE":
            raise UnknownTask(unknown(task_id))
        return answer.until_ms

    async def extend_by(self, task: str, longer: Duration) -> int | None:
        """The task is kept for so much longer than it would be. Returns until when (Unix ms); None: for ever.

        Of two operators who do so at the same moment, one may go unnoticed.

        Raises:
            UnknownTask, AmbiguousTask, SchemaTooNew, Sealed: as `read`.
            ConfigurationError: it is no duration.
        """
        longer_ms, record = duration_ms(longer), await self.read(task)
        if record.ttl_ms is None:
            return None
        # An unfinished task's own end; what is kept of it beyond that is for the sweeper.
        stands_ms: int | None = record.created_ms + record.ttl_ms
        if record.status.terminal:
            stands_ms = await self._store.kept_until(record.task_id)
        now_ms = await self._store.now_ms()
        return await self.extend(record.task_id, ((stands_ms or now_ms) + longer_ms - now_ms) / 1000)

    async def ended_before(
        self, before_ms: int, *, tool: str | None = None, owner: str | None = None, statuses: Collection[Status] = ENDS
    ) -> AsyncGenerator[list[str]]:
        """The ids of all tasks that ended before that moment, in lists of up to 500. Unix ms, by the store's clock."""
        cursor = None
        while True:
            page = await self.page(statuses=statuses, tool=tool, owner=owner, limit=PAGE_MAX, cursor=cursor)
            if found := [task.task_id for task in page.tasks if task.updated_ms < before_ms]:
                yield found
            if (cursor := page.cursor) is None:
                return

    async def purge(self, tasks: Sequence[str], before_ms: int) -> int:
        """Those of these tasks that ended before that moment are gone, before their time. Returns how many they were.

        In batches of 100, each one script. Their callers are told that there is no such task. Files go with the next
        sweep.
        """
        batches = [tasks[start : start + PURGE_BATCH] for start in range(0, len(tasks), PURGE_BATCH)]
        return sum([await self._store.purge(batch, before_ms) for batch in batches])

    async def now_ms(self) -> int:
        """The store's clock, by which all times are; Unix ms."""
        return await self._store.now_ms()

    async def oldest(self) -> tuple[str, int] | None:
        """The unfinished task that was created first: its id, and when (Unix ms); None: there is none."""
        return await self._store.oldest()

    async def workers(self) -> dict[str, WorkerPulse]:
        """What each live worker says of itself, by node name."""
        now_ms, pulses = await self._store.now_ms(), await self._store.workers()
        return {name: pulse for name, pulse in pulses.items() if now_ms - pulse.at_ms <= FRESH_MS}

    async def retry(self, task: str) -> str:
        """A new task does what the failed one was to do, from the top; returns its id.

        It has the same tool, arguments, caller, time to live, queue, attempts and retries. Nothing of the failed one's
        steps and answers is kept: what the tool asks, it asks again. The failed task stays as it is; their timelines
        name each other. The next sweep sends it to a worker. Two calls make two tasks.

        Raises:
            RetryRefused: it has not failed, its call is not kept (an earlier mcptasks failed it), or no task is taken
                now (admission is closed, or a limit is reached).
            UnknownTask, AmbiguousTask, SchemaTooNew, Sealed: as `read`.
        """
        task_id = await self._whole(task)
        kept = await self._store.kept(task_id)
        if kept is None:
            raise UnknownTask(unknown(task_id))
        record, name = kept.record, f"Task {label(task_id)}"
        if record.status is not Status.FAILED:
            raise RetryRefused(f"{name} is {record.status}; only a task that has failed can be retried.")
        if kept.call is None:
            raise RetryRefused(f"{name} has failed, but what was called is not kept; let its caller call again.")
        answer = await self._store.create(
            new_task_id(),
            kept.call,
            owner=record.owner,
            policy=kept.policy,
            version=record.version,
            origin=task_id,
            operator=self._operator,
        )
        if isinstance(answer, Refused):
            raise UnknownTask(unknown(task_id)) if answer.what == "final" else RetryRefused(_full(name, answer))
        return answer.task_id

    async def cancel(
        self, task: str, reason: str = "Cancelled by an operator"
    ) -> Literal["CANCELLED", "REQUESTED", "FINISHED"]:
        """The task has ended (CANCELLED), its run is told to stop (REQUESTED), or it had ended before (FINISHED).

        `reason` is the status message of the cancelled task, which its caller reads, too.

        Raises:
            UnknownTask, AmbiguousTask, SchemaTooNew: as `read`.
        """
        task_id = await self._whole(task)
        outcome = await self._store.cancel(task_id, None, reason, operator=self._operator)
        if outcome == "GONE":
            raise UnknownTask(unknown(task_id))
        return cast('Literal["CANCELLED", "REQUESTED", "FINISHED"]', outcome)

    async def cancel_all(self, reason: str) -> int:
        """Every unfinished task is cancelled or told to stop, with the reason as its status message.

        Returns how many were signalled. Admission stays as it is, and so do tasks of a newer mcptasks.
        """
        signalled, with_a_worker = 0, await self._store.in_hand()
        # Those that wait go first: a slot that a cancelled run frees must not begin what is to be cancelled next.
        for task_id in sorted(await self._store.active(), key=with_a_worker.__contains__):
            with suppress(SchemaTooNew):
                outcome = await self._store.cancel(task_id, None, reason, operator=self._operator)
                signalled += outcome in ("CANCELLED", "REQUESTED")
        return signalled

    async def drained(self, tell: Callable[[int], object] = lambda _: None) -> None:
        """Returns when every admitted task has ended, its last write included. The time-out is the caller's.

        `tell` hears how many are left, ten times a second, or more seldom where there are very many.
        """
        while True:
            began_s = time.monotonic()
            if not (left := await self._store.active()):
                return
            tell(len(left))
            await asyncio.sleep(max(_LOOK_S, _PAUSE * (time.monotonic() - began_s)))


def _full(name: str, answer: Refused) -> str:
    why = f"new tasks are not accepted now ({answer.detail})"
    if answer.what != "closed":
        why = f"the limit of {answer.detail} tasks ({answer.what}_max) is reached"
    return f"{name} is not retried: {why}. Nothing was stored."


def _not_open(keys: list[str]) -> str:
    names = ", ".join(repr(key[:80]) for key in keys[:3]) or "No key"
    return f"{names}: no open question of the task (never asked, answered, or out of time). Nothing was stored."
