"""What monitors are told of a message: two events, under the tool's name, runs counted as retries, a reason to read."""

from __future__ import annotations

from typing import Any, Final

import pytest

from mcptasks.fleet.request import TaskRequest

#: What `perform` may return -> the event of it, and what the monitor reads.
ENDS: Final = {
    "completed": ("task-succeeded", "completed"),
    "failed": ("task-failed", "`mcptasks show` says why"),
    "cancelled": ("task-revoked", ""),
    "parked": ("task-retried", "waits for a person"),
    "retrying": ("task-retried", "run again later"),
    "sleeping": ("task-retried", "a timer of the tool"),
    "released": ("task-retried", "another one continues"),
    "deferred": ("task-retried", "has not got its tool"),
    "error": ("task-retried", "the store did not answer"),
    "draining": ("task-retried", "another one takes it"),
    "unreleased": ("task-retried", "after the lease"),
    "lost": ("task-retried", "another run has the task"),
    "stuck: completed": ("task-succeeded", "completed"),
    "stale": ("task-succeeded", "nothing to do: stale"),
}


class Eventer:
    """A dispatcher of events that notes them."""

    enabled = True

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, type: str, **fields: Any) -> None:
        self.sent.append((type, fields))


def request_of(**kwargs: Any) -> tuple[TaskRequest, Eventer]:
    """A request with those arguments, as the worker has one; it was made of no message."""
    made, eventer = TaskRequest.__new__(TaskRequest), Eventer()
    made.id, made.name, made._kwargs, made._eventer = "label-3", "report", kwargs, eventer  # pyright: ignore[reportPrivateUsage]
    return made, eventer


def test_the_runs_of_a_task_are_counted_as_retries() -> None:
    """Each run has a message of its own, of which Celery would say that it is the first."""
    made, eventer = request_of(task_id="secret", run=3, look=0)
    made.send_event("task-started")
    assert [type for type, _ in eventer.sent] == ["task-received", "task-started"]
    received = eventer.sent[0][1]
    assert received == {"uuid": "label-3", "name": "report", "args": "()", "kwargs": "{}", "retries": 2, "eta": None}


@pytest.mark.parametrize("kwargs", [{}, {"run": "3"}, {"c": 1}])
def test_a_message_that_is_none_of_ours_does_not_end_the_worker(kwargs: dict[str, Any]) -> None:
    """The event leaves before anybody has looked at the arguments."""
    made, eventer = request_of(**kwargs)
    made.send_event("task-started")
    assert eventer.sent[0][1]["retries"] == 0


@pytest.mark.parametrize(("word", "told"), ENDS.items(), ids=list(ENDS))
def test_every_end_of_a_message_has_its_event_and_words(word: str, told: tuple[str, str]) -> None:
    made, eventer = request_of(run=1)
    made.send_event("task-succeeded", result=f"'{word}'", runtime=0.1)
    [(type, fields)] = eventer.sent
    assert type == told[0]
    assert told[1] in str(fields.get("exception", fields.get("result", "")))
