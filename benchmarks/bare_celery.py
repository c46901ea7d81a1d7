"""Bare Celery: a task that does nothing on a worker with this project's profile; what Celery alone can do here.

Its end shows in the queue's length, because the profile has no result backend. At that moment at most one task per slot
is still in hand.
"""

from __future__ import annotations

import time

from celery import Celery

from benchmarks.driver import PATIENCE_S, now_ms
from benchmarks.systems import client
from mcptasks.fleet.app import make_app
from mcptasks.settings import Settings


def noop_app(settings: Settings) -> Celery:
    """A Celery app with the project's profile and one task, `noop`."""
    app = make_app(settings)
    app.task(name="noop", send_events=False)(_noop)
    return app


def _noop() -> None:
    pass


def publish(settings: Settings, count: int) -> None:
    """`count` messages lie in the queue, sent one by one with `apply_async`."""
    noop = noop_app(settings).tasks["noop"]
    for _ in range(count):
        noop.apply_async()


def drained(settings: Settings) -> float:
    """When the queue was first seen empty, on the `now_ms` clock.

    Raises:
        TimeoutError: it still was not after a minute.
    """
    deadline = time.monotonic() + PATIENCE_S
    with client(settings.redis_url) as store:
        while store.llen(settings.prefix + settings.queue):
            if time.monotonic() > deadline:
                raise TimeoutError("the bare Celery worker does not empty its queue")
            time.sleep(0.002)
    return now_ms()


app = noop_app(Settings())
