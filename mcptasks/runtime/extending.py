"""More time for a task, asked for from inside it."""

from __future__ import annotations

from mcptasks.errors import ClaimLost
from mcptasks.runtime.current import current_run
from mcptasks.runtime.patience import patiently
from mcptasks.times import Duration, duration_ms


async def extend(ttl: Duration) -> None:
    """The task this code runs in is kept for at least so long from now, and does not expire before.

    Its end never comes nearer: a shorter time changes nothing, nor does any for a task without a ttl. The client reads
    the new `ttlMs` from then on, and after its end the task is kept for that long again. A time limit is not a ttl and
    stays. A run from the top asks again. Outside a task nothing happens.

    Raises:
        ConfigurationError: it is no duration.
        ClaimLost: this run may not write any more.
    """
    ttl_ms = duration_ms(ttl)
    if (run := current_run.get()) is None:
        return
    answer = await patiently(lambda: run.store.extend(run.claim, ttl_ms), "An extension")
    if answer.outcome in ("STALE", "TERMINAL", "GONE"):
        raise ClaimLost("The run lost its claim; the time of its task was not extended")
