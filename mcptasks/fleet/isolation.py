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
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from mcptasks.model import Claim, label
from mcptasks.observe import tracing
from mcptasks.store import scripts

log: Final = logging.getLogger("mcptasks.fleet")

#: How a line begins that tells the parent of a task's end, beside whatever the tool prints.
_ENDED: Final = b"mcptasks ended "
#: Bytes of what it prints that are looked at at a time.
_CHUNK: Final = 65_536

#: What the lone process may take to import the app; one that has lost its parent by then and takes longer just ends.
_READY_S: Final = 30.0


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


class LoneProcess:
    """A process that has one run to itself. The claim stays its parent's, which goes on renewing the lease."""

    def __init__(self, claim: Claim, process: Process) -> None:
        self._claim, self._process = claim, process
        #: The task has ended, and the process is about to.
        self.told_end = False

    @classmethod
    async def start(cls, app: str, claim: Claim) -> Self:
        """It is starting, and has its order."""
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
        order = {"task_id": claim.task_id, "token": claim.token, "trace": tracing.carried()}
        # By standard input: an id is a secret, and everyone on the machine reads command lines. It fits into any pipe.
        process.stdin.write(json.dumps(order).encode() + b"\n")
        return cls(claim, process)

    async def word(self) -> str | None:
        """The word that the run came to, once the process has ended; None: it died, and its end is not stored."""
        assert self._process.stdout is not None
        last = rest = b""
        while chunk := await self._process.stdout.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_CHUNK:]  # a tool may print what it likes
            for line in lines:
                last = line.strip() or last
                self._hear(line)
        if code := await self._process.wait():
            log.warning("Task %s: its lone process ended with %d", label(self._claim.task_id), code)
            return None
        return (rest.strip() or last).decode(errors="replace")

    def _hear(self, line: bytes) -> None:
        if line.startswith(_ENDED):
            ran: dict[str, Any] = json.loads(line.removeprefix(_ENDED))
            self.told_end = True
            # Counted here: that process has nobody who scrapes it.
            scripts.tell(scripts.Ran(args={}, **ran))

    def let_go(self) -> None:
        """The run is stopped and given back by the process itself, which ends within seconds, whatever the run does."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def kill(self) -> None:
        """The process does not live."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def report_ends() -> None:
    """From now on the parent hears of each task that a script of this process ends, at once: it may die any moment."""

    def report(ran: scripts.Ran) -> None:
        if ran.ended is not None:
            told = {"name": ran.name, "reply": ran.reply[:1], "seconds": ran.seconds, "ended": ran.ended}
            # On a line of its own, whatever the tool has printed.
            os.write(1, b"\n%b%b\n" % (_ENDED, json.dumps(told).encode()))

    scripts.observers.append(report)


def end_with_parent(ready: threading.Event, leave: Callable[[], None]) -> None:
    """When the standard input of this process ends, nobody waits for its run any more: it leaves, once it is ready.

    The parent may have been killed by another task. So the run is not dropped but given back: this last attempt is not
    lost, because this process, which the task has to itself, lives.
    """

    def watch() -> None:
        while os.read(0, 1024):
            pass
        if not ready.wait(_READY_S):
            os._exit(1)
        leave()

    threading.Thread(target=watch, name="mcptasks-parent", daemon=True).start()


def read_order() -> dict[str, Any]:
    """The task, the token and the trace context that the parent wrote."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return json.loads(line)
