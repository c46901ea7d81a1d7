"""How this command line starts a process: in a session of its own, and tied to the life of the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import IO, Final

_PR_SET_PDEATHSIG: Final = 1
#: Looked up before any fork: between fork and exec a child may make one call, but take no lock and import nothing.
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

#: Every fork happens in this one thread, for two reasons. The kernel ties PR_SET_PDEATHSIG to the THREAD that forked: a
#: child forked in a thread that ends is signalled then, so this one lives until the interpreter goes. And Python raises
#: a Ctrl-C in the main thread only, so here it cannot come between a fork and the note that the child exists.
_FORKER: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mcptasks-forker")


def spawn(
    argv: Sequence[str],
    adopt: Callable[[subprocess.Popen[bytes]], object],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    output: int | IO[bytes] = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    tied: bool = True,
) -> None:
    """The program runs as the leader of a new session, and `adopt` has been given its process.

    `adopt` is called in the forking thread, so that a Ctrl-C finds either no child or one that its owner knows.
    A `tied` child gets SIGTERM when this process ends, in whatever way (Linux only: macOS has nothing like it).

    Raises:
        OSError: the program is not there or may not be run.
    """
    start = partial(
        subprocess.Popen[bytes],
        list(argv),
        env=env,
        cwd=cwd,
        stdin=stdin,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
        preexec_fn=partial(_die_with, os.getpid()) if tied and _PRCTL else None,
    )
    forked = _FORKER.submit(lambda: adopt(start()))
    try:
        forked.result()
    except BaseException:
        # Ctrl-C while the fork was under way: whoever cleans up next must find it done.
        wait([forked])
        raise


def _die_with(parent: int) -> None:
    assert _PRCTL is not None
    _PRCTL(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    # The parent may have ended before that line; then the signal it would have caused never comes.
    if os.getppid() != parent:
        os._exit(1)
