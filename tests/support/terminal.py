"""A program in a real terminal: a pty of its own, and what stands on its screen."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

import pyte

from tests.support.waiting import wait_until

COLUMNS: Final = 110
LINES: Final = 30


class Terminal:
    """The program and its screen; made by `terminal`."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self._process, self._ours = process, ours
        self._screen: Any = pyte.Screen(COLUMNS, LINES)
        self._stream: Any = pyte.ByteStream(self._screen)
        #: Everything that the program wrote.
        self.raw = b""

    def screen(self) -> str:
        """What a person sees now."""
        while select.select([self._ours], [], [], 0)[0]:
            try:
                data = os.read(self._ours, 65_536)
            except OSError:  # the other end is closed: the program has ended
                break
            if not data:
                break
            self.raw += data
            self._stream.feed(data)
        return "\n".join(line.rstrip() for line in cast("list[str]", self._screen.display)).rstrip()

    def await_text(self, text: str) -> str:
        """The screen, once the text stands on it."""

        def seen() -> str | None:
            shown = self.screen()
            if text in shown:
                return shown
            assert self._process.poll() is None or text in self.screen(), f"it ended without {text!r}:\n{shown}"
            return None

        try:
            return wait_until(seen, description=f"the screen says {text!r}")
        except AssertionError as exc:
            raise AssertionError(f"{exc}; it says:\n{self.screen()}") from None

    def type(self, text: str) -> None:
        """A person typed this, and Return."""
        os.write(self._ours, f"{text}\r".encode())

    def interrupt(self) -> None:
        """A person pressed Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def end(self, within_s: float = 60.0) -> int:
        """The program's exit code, once it has ended; its last words are on the screen."""

        def code() -> list[int] | None:
            self.screen()  # a full terminal would hold it up
            found = self._process.poll()
            return None if found is None else [found]

        found = wait_until(code, description="the program has ended", within_s=within_s)
        self.screen()
        return found[0]


@contextmanager
def terminal(*words: str, env: Mapping[str, str]) -> Generator[Terminal]:
    """`mcptasks WORDS` runs in a terminal; it does not outlive the block."""
    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        others = ("MCPTASKS_", "COLUMNS", "LINES")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        process = subprocess.Popen(
            [sys.executable, "-m", "mcptasks.cli.main", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**clean, "TERM": "xterm-256color", **env},
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        os.close(ours)
