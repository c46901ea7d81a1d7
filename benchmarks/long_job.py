"""The job that both systems run while their workers are killed: it notes each of its starts in a file of its own.

The file is the only witness: neither store nor broker is asked when the job began again.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

_LOOK_S = 0.01


class Start(NamedTuple):
    """The job's body began, in that process, at that wall-clock time (seconds)."""

    pid: int
    at: float


def note_start(folder: str) -> None:
    """The start stands in the file, in one write, so that no reader sees half of it."""
    line = json.dumps({"pid": os.getpid(), "at": time.time()}) + "\n"
    with (Path(folder) / "starts").open("a") as starts:
        starts.write(line)


def released(folder: str) -> bool:
    """The job may end."""
    return (Path(folder) / "release").exists()


def release(folder: Path) -> None:
    """Whoever runs the job now ends it."""
    (folder / "release").touch()


async def started(folder: Path, times: int, patience_s: float) -> Start:
    """The job's `times`-th start.

    Raises:
        TimeoutError: it did not happen in time.
    """
    starts = folder / "starts"
    async with asyncio.timeout(patience_s):
        while True:
            lines = starts.read_text().splitlines() if starts.exists() else []
            if len(lines) >= times:
                return Start(**json.loads(lines[times - 1]))
            await asyncio.sleep(_LOOK_S)
