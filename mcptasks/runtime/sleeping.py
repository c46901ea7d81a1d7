"""Durable sleep: a timer in the store, not in a worker."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import datetime

from mcptasks.errors import ConfigurationError
from mcptasks.runtime.current import current_run
from mcptasks.times import Duration, duration_ms


async def sleep(duration: Duration) -> None:
    """Returns when the time is over, by the store's clock and never before, whatever happens to workers meanwhile.

    The task has no worker while it sleeps and wakes by running again from the top; the moment is recorded at the first
    call and stands. Time asleep counts against no time limit and no attempts, but the task's ttl goes on. A cancel ends
    it at once. What is shorter than a second is slept on the worker, not recorded, and slept again by a later run.
    Outside a task: `asyncio.sleep`.

    Raises:
        ConfigurationError: it is no duration, or a negative one.
    """
    # Nought is no duration elsewhere, but what is left of some time may well be nought.
    delay_ms = duration_ms(duration) if isinstance(duration, str) or duration else 0
    if (run := current_run.get()) is None:
        await asyncio.sleep(delay_ms / 1000)
    else:
        await run.channel.sleep(delay_ms=delay_ms)


async def sleep_until(when: datetime | float) -> None:
    """Returns when it is that moment by the store's clock, or at once when it is past; otherwise as `sleep`.

    `when` is a datetime with a time zone, or Unix seconds. Outside a task the clock is this machine's.

    Raises:
        ConfigurationError: the datetime has no time zone, so it is no moment.
    """
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ConfigurationError(f"{when!r} has no time zone; write for instance datetime.now(UTC) + ...")
        when = when.timestamp()
    if (run := current_run.get()) is None:
        await asyncio.sleep(max(0.0, when - time.time()))
    else:
        await run.channel.sleep(until_ms=math.ceil(when * 1000))
