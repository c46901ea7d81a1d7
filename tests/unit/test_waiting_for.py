"""Why a task that could run does not."""

from __future__ import annotations

from typing import Any

import pytest

from mcptasks.model import Record, Status
from mcptasks.observe.waiting import waits_for
from mcptasks.store.registry import WorkerPulse


def worker(**changed: Any) -> WorkerPulse:
    """One that is well."""
    usual: dict[str, Any] = {
        "at_ms": 1,
        "host": "h",
        "pid": 2,
        "slots": 4,
        "active": 1,
        "received": 9,
        "waiting": 0,
        "deaf_ms": 0,
        "queues": ("mcptasks",),
    }
    return WorkerPulse(**usual | changed)


def queued(**changed: Any) -> Record:
    """A task that no worker has yet."""
    usual: dict[str, Any] = {
        "task_id": "t",
        "tool": "report",
        "owner": "",
        "status": Status.QUEUED,
        "queue": "mcptasks",
        "created_ms": 0,
        "updated_ms": 0,
        "ttl_ms": None,
        "poll_ms": 1,
        "revision": 1,
        "token": 0,
        "attempt": 0,
        "max_attempts": 1,
    }
    return Record(**usual | changed)


@pytest.mark.parametrize(
    ("workers", "why"),
    [
        ({}, "a worker: none is heard of"),
        ({"a": worker(queues=("gpu",)), "b": worker(queues=("cpu", "x"))}, "queue 'mcptasks': none of 2 does"),
        ({"a": worker(active=4), "b": worker(active=2, slots=2), "c": worker(queues=("gpu",))}, "all 6 that serve"),
        ({"a": worker(deaf_ms=20_000), "b": worker(active=4)}, "takes messages: a takes none"),
        ({"a": worker(deaf_ms=2_000)}, None),
        ({"a": worker(queues=("gpu",)), "old": worker(queues=())}, None),
        ({"a": worker(), "b": worker(queues=("gpu",), deaf_ms=20_000)}, None),
    ],
)
def test_a_queued_task_waits_for_what_is_missing(workers: dict[str, WorkerPulse], why: str | None) -> None:
    """A worker that says nothing of its queues may serve any."""
    found = waits_for(queued(), workers)
    assert found is None if why is None else found is not None and why in found


@pytest.mark.parametrize("status", [Status.RUNNING, Status.PARKED, Status.SLEEPING, Status.COMPLETED, Status.FAILED])
def test_whatever_waits_for_no_worker_has_no_reason(status: Status) -> None:
    """It runs, waits for somebody else, or has ended."""
    assert waits_for(queued(status=status), {}) is None
