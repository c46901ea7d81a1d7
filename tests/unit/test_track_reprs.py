"""What a server or a caller said stands in no repr: reprs end in logs, tracebacks and error trackers."""

from __future__ import annotations

from typing import Any

import pytest

from mcptasks.tracker.model import Claimed, Delivery, Event, EventKind, Intent, Observation, Tracked, TrackStatus
from mcptasks.tracker.remote import Accepted, RemoteStatus, Snapshot
from mcptasks.tracker.store.polls import Polled

SECRET = "hunter2"
SAID: dict[str, Any] = {"k": {"method": "m", "params": {"message": SECRET}}}

TASK = Tracked(
    task_id="t1",
    owner="ann",
    server="crm",
    tool="export",
    status=TrackStatus.WORKING,
    reason=None,
    message=SECRET,
    handle=SECRET,
    questions=SAID,
    created_ms=1,
    updated_ms=2,
    revision=3,
    failures=1,
    last_error=SECRET,
    polls=1,
    cancel_requested=False,
    cancel_delivered=False,
    consumers=("hook",),
    result=SAID,
    error=SAID,
)
SNAPSHOT = Snapshot(status=RemoteStatus.WORKING, message=SECRET, questions=SAID, result=SAID, error=SAID, hint=SECRET)
SEEN = Observation(
    status=TrackStatus.WORKING, message=SECRET, questions=SAID, result=SAID, error=SAID, pace_ms=1, next_ms=1
)
EVENT = Event(event_id="t1:3", kind=EventKind.COMPLETED, task_id="t1", server="crm", tool="export", owner="ann")


@pytest.mark.parametrize(
    "value",
    [
        TASK,
        SNAPSHOT,
        SEEN,
        Accepted(handle=SECRET, snapshot=SNAPSHOT),
        Polled(seen=SEEN, error_text=SECRET, next_ms=1, answered=[SECRET], refused=[SECRET]),
        Intent(task_id="t1", server="crm", tool="export", arguments=SAID, key=SECRET),
        Claimed(task=TASK, token=1, late_ms=0, pace_ms=0, key=SECRET, arguments=SAID, answers=SAID, to_cancel=False),
        Delivery(event=EVENT, consumer="hook", task=TASK, token=1, revision=3, failed=0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_repr_shows_nothing_that_was_said(value: Any) -> None:
    """Ids, names, statuses and numbers do."""
    assert SECRET not in repr(value)
    assert type(value).__name__ in repr(value)
