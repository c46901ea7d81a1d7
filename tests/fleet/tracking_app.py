"""A Celery app whose workers track: servers from the environment, a consumer that writes down what it is told."""

from __future__ import annotations

import json
import os
from pathlib import Path

from mcptasks.tracker import Event, Tracked, Tracker

_TOLD = Path(os.environ.get("TRACKING_TOLD", "told.jsonl"))


async def write_down(event: Event, task: Tracked) -> None:
    """One line per delivery: a single write, so that two processes never mix theirs."""
    line = json.dumps({**event.as_json(), "result": task.result}) + "\n"
    with _TOLD.open("ab", buffering=0) as file:  # noqa: ASYNC230 - a line into a local file
        file.write(line.encode())


tracker = Tracker(consumers={"book": write_down})
celery = tracker.celery()
