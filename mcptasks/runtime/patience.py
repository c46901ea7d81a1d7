"""What a run owes the store while the store is away: it waits, and writes when it is back (behaviours.md W10)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from mcptasks.errors import StoreUnavailable

log: Final = logging.getLogger("mcptasks.runtime")

T = TypeVar("T")

_FIRST_S: Final = 0.1
_LONGEST_S: Final = 2.0
#: A store that is away for longer has lost its tasks' leases long ago; the worker must not hang on for ever.
_PATIENCE_S: Final = 600.0


def _never() -> bool:
    return False


async def patiently(transition: Callable[[], Awaitable[T]], what: str, *, unless: Callable[[], bool] = _never) -> T:
    """The transition's answer, tried again while the store is away. A repeated transition is refused or the same.

    Raises:
        StoreUnavailable: it was away for ten minutes, or `unless()` says that there is no time to wait.
    """
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + _PATIENCE_S, _FIRST_S
    while True:
        try:
            return await transition()
        except StoreUnavailable as exc:
            if loop.time() > deadline or unless():
                raise
            if pause == _FIRST_S:
                log.warning("%s waits for the store: %s", what, exc)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_S)
