"""Puts a tracker into the workers of a Celery app.

It lives in a daemon thread of the worker's main process, as the sweeper does and for its reasons. There is no message
per batch: the index of what is due is the queue, and claims in the store share it out among all workers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from celery import bootsteps

from mcptasks.fleet.app import App
from mcptasks.fleet.threads import LoopThread


def attach(app: App, run: Callable[[], Awaitable[None]]) -> None:
    """The app's workers run this coroutine from their start to their end."""

    class Tracking(bootsteps.StartStopStep):
        """Starts and stops the tracker with the worker's main process."""

        requires = {"celery.worker.components:Timer"}  # noqa: RUF012 - Celery's own convention

        def __init__(self, parent: Any, **options: Any) -> None:
            super().__init__(parent, **options)
            self.thread = LoopThread("mcptasks-tracker", [run])

        def start(self, parent: Any) -> None:
            self.thread.start()

        def stop(self, parent: Any) -> None:
            self.thread.close()

        terminate = stop

    cast("dict[str, set[Any]]", app.steps)["worker"].add(Tracking)
