"""Tells a cancel of ours from one that other people's code brings along."""

from __future__ import annotations

import asyncio


def told_to_stop() -> bool:
    """Somebody has cancelled the task that runs this, so a CancelledError in it has to go on.

    Else it comes out of what was awaited: a future that was cancelled elsewhere, a connection that was closed. Then it
    is a failure like any other, and whoever takes it for a cancel forgets his work without a word.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
