"""When to ask the server again: the back-off, what wakes it early, and what to make of a request that failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, PARSE_ERROR, REQUEST_TIMEOUT
from pydantic import ValidationError

from mcptasks.client.errors import TaskUnreachable
from mcptasks.model import label
from mcptasks.wire import DetailedTask

#: The first pause, and the shortest one whatever the server hints.
FLOOR_MS: Final = 10
#: The ceiling where the server gives no usable hint.
DEFAULT_MS: Final = 1_000
#: The longest pause whatever the server hints.
CAP_MS: Final = 3_600_000
#: A hint beyond a day is no pace but a mistake (seconds since 1970, a wrong unit).
JUNK_MS: Final = 86_400_000

#: The pause of a wait that is told of every change: it asks all the same, because what is told can get lost.
QUIET_MS: Final = 30_000

#: Failures in a row after which waiting gives up; with the pauses between them, a restart of half a minute is survived.
MAX_FAILURES: Final = 8
FIRST_RETRY_MS: Final = 250

#: The connection broke, nobody answered, the server had a problem (its store away), or a proxy answered in its place.
_TRANSIENT: Final = frozenset({CONNECTION_CLOSED, REQUEST_TIMEOUT, INTERNAL_ERROR, PARSE_ERROR})

T = TypeVar("T")


class Bell:
    """What a pause between two polls can be woken by: an answer that was sent, a cancel, a notification.

    Rings are counted: a ring that falls between a poll and the pause after it is not lost.
    """

    def __init__(self) -> None:
        self.rings = 0
        self._event = anyio.Event()

    def ring(self) -> None:
        """Everyone who waits is awake, and so is everyone who had not heard of this ring before waiting."""
        self.rings += 1
        self._event.set()
        self._event = anyio.Event()

    async def wait(self, heard: int) -> None:
        """Return once it has rung more than `heard` times."""
        while self.rings <= heard:
            await self._event.wait()


class Ear:
    """What one handle hears of its task without asking."""

    def __init__(self, see: Callable[[DetailedTask], DetailedTask]) -> None:
        """`see` is given each state that is pushed, and gives the newest one that is known."""
        self._see = see
        self.bell = Bell()
        #: A push has come, and there is no reason to doubt that the next one will.
        self.live = False
        #: The newest state at the time of the latest push, and how many there were.
        self.pushed: DetailedTask | None = None
        self.pushes = 0

    def hear(self, task: DetailedTask) -> None:
        """This state was pushed; whoever waits looks at it."""
        self.pushed, self.live = self._see(task), True
        self.pushes += 1
        self.bell.ring()

    def doubt(self) -> None:
        """Pushes may have been missed; whoever waits asks."""
        if self.live:
            self.live = False
            self.bell.ring()


class Pause(Protocol):
    """Returns after `delay_ms`, or once `bell` has rung more than `heard` times."""

    async def __call__(self, delay_ms: int, bell: Bell, heard: int) -> None: ...


async def pause(delay_ms: int, bell: Bell, heard: int) -> None:
    """The real `Pause`, by the event loop's clock."""
    with anyio.move_on_after(delay_ms / 1000):
        await bell.wait(heard)


def ceiling_ms(hint: int | None) -> int:
    """The longest pause that a server's `pollIntervalMs` allows: 10 ms to one hour, 1,000 ms where the hint is junk.

    Junk is: absent, zero, negative, beyond a day.
    """
    if hint is None or not 0 < hint <= JUNK_MS:
        return DEFAULT_MS
    return max(FLOOR_MS, min(hint, CAP_MS))


class Backoff:
    """Pauses that start at 10 ms and double up to the server's `pollIntervalMs`."""

    def __init__(self) -> None:
        self._next_ms = FLOOR_MS

    def restart(self) -> None:
        """The next pause is the shortest again: something is about to move."""
        self._next_ms = FLOOR_MS

    def next_ms(self, hint: int | None) -> int:
        """The pause to make now."""
        delay_ms = min(self._next_ms, ceiling_ms(hint))
        self._next_ms = delay_ms * 2
        return delay_ms


async def persist(call: Callable[[], Awaitable[T]], bell: Bell, pause: Pause, task_id: str) -> T:
    """The call's answer, asked for again after each transient failure: 250 ms, then twice as long each time.

    Transient are a broken connection, a time-out, -32603, and an answer that cannot be read.

    Raises:
        TaskUnreachable: eight transient failures in a row.
        MCPError: a failure that asking again does not mend, such as -32602 for an unknown task.
    """
    failures = 0
    while True:
        try:
            return await call()
        except (MCPError, ValidationError, OSError) as exc:
            if isinstance(exc, MCPError) and exc.code not in _TRANSIENT:
                raise
            failures += 1
            if failures == MAX_FAILURES:
                # `from None`: what the server sent stands in these errors and does not belong in a traceback.
                raise _unreachable(task_id, exc) from None
        await pause(FIRST_RETRY_MS << (failures - 1), bell, bell.rings)


def _unreachable(task_id: str, last: MCPError | ValidationError | OSError) -> TaskUnreachable:
    match last:
        case MCPError(code=code, data=data) if code != PARSE_ERROR:
            why = last.message
        case OSError():
            code, data, why = CONNECTION_CLOSED, None, type(last).__name__
        case _:
            code, data, why = PARSE_ERROR, None, "an answer that cannot be read"
    message = (
        f"The server could not be asked about task {label(task_id)}: {MAX_FAILURES} requests failed in a row, "
        f"the last with: {why}. The task itself goes on; attach to its id again later."
    )
    return TaskUnreachable(code, message, data, task_id=task_id)


class Polls:
    """One wait's view of a task: each `next` is what was pushed meanwhile, or a poll after the pause that is due."""

    def __init__(
        self,
        look: Callable[[], Awaitable[DetailedTask]],
        task_id: str,
        ear: Ear,
        pause: Pause,
        *,
        hint_ms: int | None = None,
        due: bool = False,
    ) -> None:
        """`due`: a pause stands before the first poll too, because the task was made just now."""
        self._look, self._task_id, self._ear, self._pause = look, task_id, ear, pause
        self._hint_ms, self._due = hint_ms, due
        self._backoff, self._heard, self._pushes = Backoff(), ear.bell.rings, ear.pushes

    async def next(self) -> DetailedTask:
        """The task as it is now.

        Raises:
            TaskUnreachable: eight polls in a row failed.
            MCPError: polling again would not help, such as -32602 for an unknown task.
        """
        ear = self._ear
        trusting = self._due and await self._rest()
        self._heard = ear.bell.rings
        if ear.pushed is not None and ear.pushes > self._pushes:
            task = ear.pushed
        else:
            task = await persist(self._look, ear.bell, self._pause, self._task_id)
            if trusting and ear.pushed is not None and task.looks != ear.pushed.looks:
                ear.live = False  # it should have been told of this
        self._pushes = ear.pushes
        self._hint_ms, self._due = task.poll_interval_ms, True
        return task

    async def _rest(self) -> bool:
        """The pause is over; whether it was the long one of who trusts to be told, and nothing cut it short."""
        ear = self._ear
        live = ear.live
        delay_ms = max(QUIET_MS, ceiling_ms(self._hint_ms)) if live else self._backoff.next_ms(self._hint_ms)
        await self._pause(delay_ms, ear.bell, self._heard)
        if ear.bell.rings > self._heard:
            self._backoff.restart()
            return False
        return live
