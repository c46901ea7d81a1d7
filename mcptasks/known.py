"""One task with all that operators see of it, in a terminal or a browser."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from mcptasks.links import Artifact
from mcptasks.model import Record
from mcptasks.observe.timeline import Timeline
from mcptasks.observe.waiting import waits_for
from mcptasks.operations import Operations
from mcptasks.store.registry import WorkerPulse


@dataclass(frozen=True, kw_only=True)
class Known:
    """What there is of one task."""

    task: Record
    artifacts: list[Artifact]
    #: The worker that has it, if that lives.
    worker: WorkerPulse | None
    #: Why it does not run, where that is unusual.
    waits_for: str | None
    timeline: Timeline
    now_ms: int


async def known(fleet: Operations, name: str) -> Known:
    """The task whose id begins so.

    Raises:
        UnknownTask, AmbiguousTask, SchemaTooNew, Sealed: as `Operations.read`.
    """
    task = await fleet.read(name)
    timeline, now_ms = await asyncio.gather(fleet.timeline(task.task_id), fleet.now_ms())
    artifacts = await fleet.artifacts(task.task_id) if task.artifacts else []
    workers = {} if task.status.terminal else await fleet.workers()
    # The record names the process, too, behind the node: "worker1@box:1412".
    pulse = workers.get((task.worker or "").rpartition(":")[0])
    why = waits_for(task, workers)
    return Known(task=task, artifacts=artifacts, worker=pulse, waits_for=why, timeline=timeline, now_ms=now_ms)
