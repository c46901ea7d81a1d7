"""Whether real processes live."""

from __future__ import annotations

from collections.abc import Iterable

import psutil


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run. A zombie does not: only its parent, which may be a lazy init, still has to look at it."""
    return [process for process in processes if _lives(process)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
