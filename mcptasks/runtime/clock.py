"""By what a run measures its own time: its event loop's clock, or one that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol


class Alarm(Protocol):
    """A call that has not been made yet."""

    def cancel(self) -> None:
        """It will not be made."""
        ...


class Clock(Protocol):
    """What a run needs of a clock; every event loop is one."""

    def time(self) -> float:
        """Seconds since some moment; never goes back."""
        ...

    def call_later(self, delay: float, callback: Callable[[], Any]) -> Alarm:
        """The callback is called on the running loop once so many seconds are over."""
        ...


async def first_of(clock: Clock, waits: Iterable[asyncio.Future[Any]], timeout_s: float | None) -> None:
    """Returns when one of them is done, or so many seconds are over; None: whenever one is."""
    over = asyncio.Event()
    late = asyncio.get_running_loop().create_task(over.wait())
    alarm = None if timeout_s is None else clock.call_later(timeout_s, over.set)
    try:
        await asyncio.wait({*waits, late}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        late.cancel()
        if alarm is not None:
            alarm.cancel()
