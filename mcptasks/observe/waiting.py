"""Why a task that could run does not: what operators ask first of one that is stuck."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcptasks.model import Record, Status
from mcptasks.store.registry import WorkerPulse

_WAITING: Final = frozenset({Status.QUEUED, Status.RETRYING})


def waits_for(task: Record, workers: Mapping[str, WorkerPulse]) -> str | None:
    """What a queued or retrying task waits for, in words, as far as the live workers tell; None: nothing unusual."""
    if task.status not in _WAITING:
        return None
    if not workers:
        return "a worker: none is heard of"
    # One of an older version does not say which queues are its.
    theirs = [pulse for pulse in workers.values() if not pulse.queues or task.queue in pulse.queues]
    if not theirs:
        return f"a worker that serves queue {task.queue!r}: none of {len(workers)} does"
    if all(pulse.active >= pulse.slots for pulse in theirs):
        return f"a free slot: all {sum(pulse.slots for pulse in theirs)} that serve its queue are busy"
    if deaf := [name for name, pulse in workers.items() if pulse in theirs and pulse.deaf]:
        return f"a worker that takes messages: {', '.join(sorted(deaf))} takes none"
    return None
