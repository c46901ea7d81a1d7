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
from contextlib import suppress
from typing import Any, Final, Self

from mcptasks.model import Claim, label
from mcptasks.observe import tracing
from mcptasks.store import scripts

log: Final = logging.getLogger("mcptasks.fleet")

#: How the lines begin that are for the parent, beside whatever the tool prints: a task's end, and the run's word.
_ENDED: Final = b"mcptasks ended "
_WORD: Final = b"mcptasks came to "
#: Bytes of what it prints that are looked at at a time.
_CHUNK: Final = 65_536
#: The store knows of a run's end before its process can say its word: so long at most, unless it was not its end.
_SAYS_S: Final = 1.0
#: For its last spans and messages.
_LEAVES_S: Final = 5.0

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
        self._word: str | None = None
        self._said = asyncio.Event()

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
        """The word that the run came to, once the process has ended; None: it died before it had one."""
        assert self._process.stdout is not None
        rest = b""
        while chunk := await self._process.stdout.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_CHUNK:]  # a tool may print what it likes
            for line in lines:
                self._hear(line)
        if code := await self._process.wait():
            log.warning("Task %s: its lone process ended with %d", label(self._claim.task_id), code)
        return self._word

    async def last_word(self) -> str | None:
        """The same, of a process that has lost the claim; None: it does not say one, and another has the claim.

        Most often it has just let go of the task, because the run is over. Then it had time to leave.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_SAYS_S):
                await self._said.wait()
        if self._word is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEAVES_S):
                    await self._process.wait()
        return self._word

    def _hear(self, line: bytes) -> None:
        if line.startswith(_ENDED):
            ran: dict[str, Any] = json.loads(line.removeprefix(_ENDED))
            # Counted here: that process has nobody who scrapes it.
            scripts.tell(scripts.Ran(args={}, **ran))
        elif line.startswith(_WORD):
            self._word = line.removeprefix(_WORD).decode()
            self._said.set()

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
            _say(_ENDED, json.dumps(told))

    scripts.observers.append(report)


def report_word(word: str) -> None:
    """The parent hears of what this process's run came to, before whatever is done until it ends."""
    _say(_WORD, word)


def _say(what: bytes, text: str) -> None:
    with suppress(BrokenPipeError):
        # On a line of its own, whatever the tool has printed.
        os.write(1, b"\n%b%b\n" % (what, text.encode()))


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
