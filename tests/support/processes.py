"""Whether real processes live."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run. A zombie does not: only its parent, which may be a lazy init, still has to look at it."""
    return [process for process in processes if _lives(process)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Kin:
    """All processes that descend from those started with `environment()`, whoever is their parent now.

    They are told by what they inherited. Valkey, which writes over its environment, is told by its working directory,
    which is below the folder.
    """

    _NAME: Final = "TEST_KIN"

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._mark = uuid.uuid4().hex

    def environment(self) -> dict[str, str]:
        """What the first of them are to be started with: nothing of a developer's own MCPTASKS_*."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MCPTASKS_")}
        return {**clean, self._NAME: self._mark}

    def living(self) -> list[psutil.Process]:
        """Those that run now."""
        return living(process for process in psutil.process_iter() if self._has(process))

    def named(self, word: str) -> psutil.Process:
        """The one living that has the word in its command line."""
        [found] = self.all_named(word)
        return found

    def all_named(self, word: str) -> list[psutil.Process]:
        """Those living that have the word in their command lines."""
        return [process for process in self.living() if word in " ".join(process.cmdline())]

    def kill(self) -> None:
        """None of them lives, for tests that failed."""
        for process in self.living():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _has(self, process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            return process.environ().get(self._NAME) == self._mark or Path(process.cwd()).is_relative_to(self._folder)
        return False
