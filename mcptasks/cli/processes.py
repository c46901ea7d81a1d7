"""A small supervisor for `mcptasks dev`: named children, their output under their names, and never an orphan.

What ends the children depends on what ends the supervisor:

- it leaves its `with` block (return, exception, Ctrl-C, and SIGTERM inside `interrupt_on_termination`): `stop`;
- `kill -9`, a crash: `lifeline.py`, a process of its own that sees its pipe close;
- both killed at once: on Linux the kernel sends each child SIGTERM, which lets a Celery worker finish its runs first.

A child leads a session of its own: a Ctrl-C in the terminal reaches the supervisor alone, and one signal to the group
reaches what the child started too. What a tool starts in yet another session is that tool's to stop.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Self

from rich.console import Console
from rich.text import Text

from mcptasks.cli import lifeline
from mcptasks.cli.spawn import spawn
from mcptasks.errors import ConfigurationError

GRACE_MS: Final = 10_000
#: SIGKILL works at once unless the kernel holds the process in I/O; past this the process is left to the kernel.
KILLED_MS: Final = 5_000
#: How long the output of a child that ended is waited for: a stray process may hold the pipe open for ever.
LAST_WORDS_MS: Final = 1_000
#: A line longer than this is shown in pieces, so that a child that never ends a line costs no memory.
LINE_MAX: Final = 64 * 1024
COLOURS: Final = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


class Child:
    """One process that `Processes.start` started, dead or alive."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name, self.pid = name, process.pid
        self.ended = threading.Event()
        self._process = process
        self._reaping = threading.Lock()

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the signal's number when a signal ended it, None while it lives."""
        return self._process.returncode

    @property
    def fate(self) -> str:
        """How it ended, for people: "exited with code 1", "was ended by signal 9 (Killed)", "is running"."""
        if (code := self.returncode) is None:
            return "is running"
        return f"exited with code {code}" if code >= 0 else f"was ended by signal {-code} ({signal.strsignal(-code)})"

    def terminate(self) -> None:
        """The leader has SIGTERM if it lives; a Celery pool's children do not, or their runs would die of it."""
        self._send(os.kill, signal.SIGTERM)

    def kill(self) -> None:
        """The whole group has SIGKILL if its leader is not reaped yet."""
        self._send(os.killpg, signal.SIGKILL)

    def bury(self) -> None:
        """The child has ended and so has everything in its group; blocks until then."""
        if sys.platform == "linux":
            # Not reaped yet: while it is a zombie its number can belong to nobody else, so the kill hits no stranger.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        with self._reaping:
            _send_to(os.killpg, self.pid, signal.SIGKILL)
            self._process.wait()

    def lines(self) -> Iterator[str]:
        """What it prints, line by line, until it and all that share its output have ended."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while line := output.readline(LINE_MAX):
                yield line.decode(errors="replace").rstrip("\r\n")

    def _send(self, send: Callable[[int, int], None], signum: int) -> None:
        with self._reaping:
            if self._process.returncode is None:
                _send_to(send, self.pid, signum)


class Processes:
    """No child that was started through this lives after the `with` block, nor after this process."""

    def __init__(self, *, grace_ms: int = GRACE_MS, log: IO[str] | None = None, held: Sequence[int] = ()) -> None:
        """The children's output goes to `log`, None: to our stderr. A log must stay open for longer than this.

        The file descriptors in `held` stay open until the last child has ended, even if this process is killed.
        """
        self._grace_ms = grace_ms
        self._children: list[Child] = []
        self._news: queue.Queue[Child | Exception] = queue.Queue()
        self._lifeline = _Lifeline(grace_ms, held)
        self._console = _Stderr(file=log, stderr=True, force_terminal=None if log is None else False, highlight=False)
        #: Where people find what the children said, as the end of a sentence.
        self.output = "above" if log is None else f"in {log.name}"

    def __enter__(self) -> Self:
        self._lifeline.open()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._lifeline.close()

    def start(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Child:
        """The child runs, its output appears under `name`. `env` is its whole environment; None: ours.

        Raises:
            ConfigurationError: its program cannot be started.
        """
        # A pipe makes Python hold its output back by the block: the lines would come minutes late, or not at all.
        env = {**(os.environ if env is None else env), "PYTHONUNBUFFERED": "1"}
        try:
            spawn(argv, lambda process: self._adopt(name, process), env=env, cwd=cwd, output=subprocess.PIPE)
        except OSError as error:
            raise ConfigurationError(f"{name} could not be started: {argv[0]}: {error.strerror}") from error
        return self._children[-1]

    def wait(self, timeout_ms: int | None = None) -> Child | None:
        """The next child that ended, in the order of their ends; None when none did within the time.

        Raises:
            Exception: what `fail` was given.
        """
        try:
            news = self._news.get(timeout=None if timeout_ms is None else timeout_ms / 1000)
        except queue.Empty:
            return None
        if isinstance(news, Exception):
            raise news
        return news

    def fail(self, error: Exception) -> None:
        """`wait` raises the error: what ended is no child, but they cannot go on without it. From any thread."""
        self._news.put(error)

    def stop(self, order: Sequence[str] = ()) -> None:
        """No child lives. Each had SIGTERM, then one grace for all of them, then SIGKILL with its whole group.

        SIGTERM goes first to those named in `order`, then to the rest, last started first.
        """
        rank = {name: number for number, name in enumerate(order)}
        children = self._children[::-1]
        children.sort(key=lambda child: rank.get(child.name, len(rank)))
        try:
            for child in children:
                child.terminate()
            _await_all(children, self._grace_ms)
        finally:
            # Also after a second Ctrl-C: whoever presses it twice wants out now.
            for child in children:
                child.kill()
            _await_all(children, KILLED_MS)

    def _adopt(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self._lifeline.guard(process.pid)
        child = Child(name, process)
        self._children.append(child)
        colour = COLOURS[(len(self._children) - 1) % len(COLOURS)]
        # Daemons: a reader whose pipe a stray process holds open must not keep the supervisor from ending.
        reader = threading.Thread(target=self._show, args=(child, colour), name=f"read-{name}", daemon=True)
        reader.start()
        threading.Thread(target=self._attend, args=(child, reader), name=f"attend-{name}", daemon=True).start()

    def _attend(self, child: Child, reader: threading.Thread) -> None:
        child.bury()
        self._lifeline.release(child.pid)
        # Its last words are on the screen before anyone says that it ended.
        reader.join(timeout=LAST_WORDS_MS / 1000)
        child.ended.set()
        self._news.put(child)

    def _show(self, child: Child, colour: str) -> None:
        for line in child.lines():
            width = max(len(other.name) for other in self._children)
            # A terminal that went away is no reason to stop reading: the child would block on a full pipe.
            with suppress(OSError):
                self._console.print(
                    Text.assemble((f"{child.name:<{width}} | ", colour), Text.from_ansi(line)), soft_wrap=True
                )


class _Stderr(Console):
    def on_broken_pipe(self) -> None:
        # Rich would exit the thread and point stdout at /dev/null.
        self.quiet = True


class _Lifeline:
    """The process that kills the guarded groups if this one is gone before it released them."""

    def __init__(self, grace_ms: int, held: Sequence[int]) -> None:
        # A file, not `-m`, and -I -S: it starts in a moment, and nothing of the user's is imported.
        self._argv = [sys.executable, "-I", "-S", lifeline.__file__, str(grace_ms)]
        self._held = held
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        # Untied, for it must live on when this process dies.
        spawn(self._argv, self._adopt, cwd=Path("/"), stdin=subprocess.PIPE, pass_fds=self._held, tied=False)

    def guard(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def release(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def close(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        # It stays only if something outlived SIGKILL or a third Ctrl-C, and then it is right to.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=KILLED_MS / 1000)

    def _adopt(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def _tell(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        # Someone killed it, or it is closed: what it would have done is a second line of defence.
        with suppress(OSError, ValueError):
            os.write(self._process.stdin.fileno(), line.encode())


def _await_all(children: Sequence[Child], timeout_ms: int) -> None:
    deadline = time.monotonic() + timeout_ms / 1000
    for child in children:
        child.ended.wait(max(0.0, deadline - time.monotonic()))


def _send_to(send: Callable[[int, int], None], number: int, signum: int) -> None:
    # PermissionError: macOS says so of a group in which only a zombie is left.
    with suppress(ProcessLookupError, PermissionError):
        send(number, signum)
