"""Waits for conditions, never for time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

#: Generous, because the machine is shared; a condition that holds is seen within milliseconds all the same.
WITHIN_S = 30.0


def wait_until(predicate: Callable[[], T | None], *, description: str, within_s: float = WITHIN_S) -> T:
    """The predicate's first truthy value; fails with the description when there is none in time."""
    deadline = time.monotonic() + within_s
    while not (value := predicate()):
        assert time.monotonic() < deadline, f"waited {within_s:g} s in vain until {description}"
        time.sleep(0.01)
    return value


async def eventually(
    predicate: Callable[[], Awaitable[T | None]], *, description: str, within_s: float = WITHIN_S
) -> T:
    """The async predicate's first truthy value; fails with the description when there is none in time."""
    deadline = time.monotonic() + within_s
    while not (value := await predicate()):
        assert time.monotonic() < deadline, f"waited {within_s:g} s in vain until {description}"
        await asyncio.sleep(0.005)
    return value
