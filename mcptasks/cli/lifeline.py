"""Ends what a supervisor leaves behind, whatever ended the supervisor.

A script of its own, for nothing inside a process can act after that process got `kill -9`. Its standard input is a pipe
whose other end only the supervisor holds: `+PID` and `-PID` lines say which process groups live, and the end of input
says that the supervisor is gone. It imports the standard library alone, so that it costs a few megabytes, not the SDK.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable

#: Nobody is waiting for the answer: often enough to be prompt, seldom enough to cost nothing.
POLL_MS = 50


def guarded(lines: Iterable[str]) -> set[int]:
    """The process groups that still lived when the lines ended."""
    groups: set[int] = set()
    for line in lines:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    return groups


def bury(groups: set[int], grace_ms: int) -> None:
    """No process of these groups lives. Their leaders had SIGTERM and `grace_ms` to end by themselves."""
    # Only the leaders: SIGTERM straight to a Celery pool's children would kill the runs the leader means to finish.
    leaders = {group for group in groups if _sent(os.kill, group, signal.SIGTERM)}
    _kill_groups(groups - leaders)
    deadline = time.monotonic() + grace_ms / 1000
    while leaders and time.monotonic() < deadline:
        time.sleep(POLL_MS / 1000)
        # Now, not at the end: once the rest of the group has ended too, its number may become a stranger's.
        ended = {leader for leader in leaders if not _sent(os.kill, leader, 0)}
        _kill_groups(ended)
        leaders -= ended
    _kill_groups(leaders)


def _kill_groups(groups: set[int]) -> None:
    for group in groups:
        _sent(os.killpg, group, signal.SIGKILL)


def _sent(send: Callable[[int, int], None], number: int, signum: int) -> bool:
    try:
        send(number, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main() -> None:
    """Nothing of what the supervisor started lives when this returns; argv[1] is the grace in milliseconds."""
    # Whoever stops "everything" with a signal must not take away the one process that cleans up after that.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    bury(guarded(sys.stdin), int(sys.argv[1]))


if __name__ == "__main__":
    main()
