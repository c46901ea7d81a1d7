"""What may stop a run from outside, and how long the run may then take to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import StrEnum

from mcptasks.policy import DEFAULT_GRACE_MS, Policy


class Stop(StrEnum):
    """Why a run is asked to stop."""

    #: The caller cancelled.
    CANCEL = "cancel"
    #: The time limit passed.
    WALL = "wall"
    #: The worker goes down; the run gives its claim back, unfinished, for another worker.
    SHUTDOWN = "shutdown"
    #: The claim is gone: another run has it, or the task ended. Nothing this run does counts any more.
    LOST = "lost"


class Interrupt:
    """Asks one run to stop. Any thread may ask; the run's loop is woken, a sync tool sees the flag."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._woken = asyncio.Event()
        self._kinds: list[Stop] = []
        self.answered = asyncio.Event()

    @property
    def requested(self) -> bool:
        """The run is to stop."""
        return bool(self._kinds)

    @property
    def kinds(self) -> tuple[Stop, ...]:
        """Everything that asked, in order."""
        return tuple(self._kinds)

    @property
    def kind(self) -> Stop | None:
        """The reason: whatever asked first, except that a lost claim overrules it, because it forbids writing."""
        return None if not self._kinds else Stop.LOST if Stop.LOST in self._kinds else self._kinds[0]

    def request(self, kind: Stop) -> None:
        """The run knows that it is to stop, and why. Asking twice for one reason is asking once."""
        if kind not in self._kinds:
            self._kinds.append(kind)
            self._call(self._woken.set)

    def wake(self) -> None:
        """A held run looks for its answers."""
        self._call(self.answered.set)

    async def wait(self, seen: int = 0) -> None:
        """Returns when more than `seen` reasons have asked."""
        while len(self._kinds) <= seen:
            self._woken.clear()
            await self._woken.wait()

    def _call(self, wake: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(wake)


def grace_s(kinds: Iterable[Stop], policy: Policy) -> float | None:
    """How long the run may take to stop before its slot is taken from it. None: as long as it wants."""
    graces = [_grace_ms(kind, policy) for kind in kinds]
    bounded = [grace for grace in graces if grace is not None]
    return min(bounded) / 1000 if bounded else None


def _grace_ms(kind: Stop, policy: Policy) -> int | None:
    match kind:
        case Stop.CANCEL:
            return policy.cancel_grace_ms
        case Stop.WALL:
            return policy.grace_ms
        case Stop.SHUTDOWN:
            # As long as it likes: given back while it still ran, it would run twice at once. The cold stop ends it.
            return None
        case Stop.LOST:
            return DEFAULT_GRACE_MS
