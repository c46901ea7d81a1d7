"""Forks a submitter per line of stdin ("task id"), and prints its process id: each is a process that tests may kill.

Forked, because a fresh Python takes longer to import the SDK than all 30 kills together.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from mcptasks.tracker.model import Intent
from mcptasks.tracker.tracker import Tracker


async def submit(task_id: str) -> None:
    """The task is submitted under that id."""
    intent = Intent(task_id=task_id, server="stub", tool="export", arguments={"n": 1}, key=task_id, consumers=("hook",))
    async with Tracker() as tracker:
        await tracker.submit_intent(intent)


def main() -> None:
    """Until stdin ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            asyncio.run(submit(line.strip()))
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
