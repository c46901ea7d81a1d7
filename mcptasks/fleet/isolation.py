"""A task's last attempt runs in a process of its own, where runs share one (threads).

When a process with many runs dies, nobody knows which of them killed it, and each loses an attempt. The guilty one must
not take the others' last attempt along: so the last attempt is made alone. If that process dies, the task in it did it.
Prefork needs none of this: each child runs one task at a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final

from mcptasks.model import Claim, label

log: Final = logging.getLogger("mcptasks.fleet")


def app_argument(argv: Sequence[str]) -> str | None:
    """What `celery -A` was given on this command line; None when the worker was not started by it."""
    for position, word in enumerate(argv):
        if word in ("-A", "--app") and position + 1 < len(argv):
            return argv[position + 1]
        for spelling in ("--app=", "-A"):
            if word.startswith(spelling) and word != spelling:
                return word.removeprefix(spelling)
    return os.environ.get("CELERY_APP") or os.environ.get("APP")


def wants_isolation(claim: Claim) -> bool:
    """This attempt is the task's last one, and it lost its worker before."""
    return claim.record.attempt >= claim.record.max_attempts > 1


async def run_alone(app: str, claim: Claim) -> str | None:
    """The word that the run came to, in a process of its own; None: that process died.

    The claim stays this process's: it goes on renewing the lease, and writes the end if the lone process cannot.
    """
    log.info("Task %s: attempt %d runs in a process of its own", label(claim.task_id), claim.record.attempt)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mcptasks.fleet.lone_run",
        app,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    # By standard input, not on the command line: an id is a secret, and everyone on the machine reads command lines.
    process.stdin.write(json.dumps({"task_id": claim.task_id, "token": claim.token}).encode() + b"\n")
    try:
        await process.stdin.drain()
        out = await process.stdout.read()
        code = await process.wait()
    except (asyncio.CancelledError, OSError):
        process.kill()
        await process.wait()
        raise
    if code != 0:
        log.warning("Task %s: its lone process ended with %d", label(claim.task_id), code)
        return None
    return out.decode().strip().rpartition("\n")[2]


def end_with_parent() -> None:
    """This process ends as soon as its standard input does: nobody waits for its run any more."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="mcptasks-parent", daemon=True).start()


def read_order() -> dict[str, Any]:
    """The task and token that the parent wrote."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return json.loads(line)
