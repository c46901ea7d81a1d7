"""The numbers of processes that are forked off each other, in files of one folder, as prometheus-client keeps them.

Its files are named by process ids, and stay when a process is gone, because what it counted still counts. Where
children are replaced (`--max-tasks-per-child`, a tool that does not stop) they would grow without end, and with them
each scrape. Here a file is named by a place: a process takes the lowest one that is free, and goes on counting where
the one before it ended.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from itertools import count
from pathlib import Path
from typing import IO, Final

from prometheus_client import CollectorRegistry, values
from prometheus_client.multiprocess import MultiProcessCollector

_FOLDER: Final = "mcptasks-metrics-"
#: Where prometheus-client looks for the folder.
_SHARED: Final = "PROMETHEUS_MULTIPROC_DIR"


class SharedCounts:
    """From now on what this process and its forked children count is in files of their own folder."""

    def __init__(self) -> None:
        home = Path(tempfile.gettempdir())
        for left in home.glob(f"{_FOLDER}*"):
            if _abandoned(left):
                shutil.rmtree(left, ignore_errors=True)
        # Under its name only once it is locked, or a worker that starts at the same time would take it for abandoned.
        new = Path(tempfile.mkdtemp(prefix=f".{_FOLDER}", dir=home))
        self._folder = home / new.name.removeprefix(".")
        self._place = Place(self._folder)
        self._place.take(new)
        new.rename(self._folder)
        self._before = values.ValueClass, os.environ.get(_SHARED)
        os.environ[_SHARED] = str(self._folder)
        # Decided by prometheus_client when it was imported, which the user's module may have done before.
        values.ValueClass = values.MultiProcessValue(self._place)

    def registry(self) -> CollectorRegistry:
        """What all of them have counted."""
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(self._folder))
        return registry

    def close(self) -> None:
        """The folder is gone, and metrics that are made later are kept as before."""
        values.ValueClass, folder = self._before
        if folder is None:
            os.environ.pop(_SHARED, None)
        else:
            os.environ[_SHARED] = folder
        self._place.leave()
        shutil.rmtree(self._folder, ignore_errors=True)


class Place:
    """A number that this process has for as long as it lives, and no other process of the folder meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = self._number = -1
        self._lock: IO[str] | None = None

    def __call__(self) -> int:
        """The number; after a fork the child has another one."""
        if self._pid != os.getpid():
            self.take(self._folder)
        return self._number

    def take(self, folder: Path) -> None:
        """The lowest number that is free is this process's. `folder`: where the folder is now."""
        for number in count():
            if (lock := _locked(folder / f"place-{number}")) is not None:
                # A child lets go of its copy of the parent's file here; the lock is still the parent's.
                self._pid, self._number, self._lock = os.getpid(), number, lock
                return

    def leave(self) -> None:
        """The number is free, as it is when the process ends, however it does."""
        if self._lock is not None:
            self._lock.close()


def _locked(file: Path) -> IO[str] | None:
    """The file with its lock, which the kernel takes back when the last process that has it open is gone."""
    lock = file.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _abandoned(folder: Path) -> bool:
    """The process that made it is gone. Process ids would not tell: in a container each is number 1."""
    try:
        lock = _locked(folder / "place-0")
    except OSError:
        return False  # another user's
    if lock is not None:
        lock.close()
    return lock is not None
