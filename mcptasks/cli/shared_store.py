"""The embedded Valkey of a folder, as one of those who use it at a time: begun by the first, ended after the last."""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from mcptasks.cli import steward
from mcptasks.cli.embedded import FOLDER, HOST, STOP_MS, log_of, private
from mcptasks.cli.spawn import spawn
from mcptasks.errors import ConfigurationError, MCPTasksError, StoreUnavailable

#: A steward answers at once; who does not is a stranger on a port that a steward had before it was killed.
DOOR_S: Final = 10.0
#: Besides the time that Valkey is given to end.
STEWARD_MS: Final = 2_000


class SharedValkey:
    """A Valkey server runs on `folder` inside the `with` block, and goes on while others use it; its data stays.

    On 127.0.0.1 only. `target` names whose tasks they are: two servers' fleets cannot share a queue. Whoever holds a
    duplicate of `fileno()`, is a user too.
    """

    def __init__(self, folder: Path, target: str) -> None:
        self.folder, self._target = folder.absolute(), target
        #: What MCPTASKS_REDIS_URL must be to use the server; valid inside the block.
        self.url = ""
        self._leaving = False

    def __enter__(self) -> Self:
        """The server answers PING.

        Raises:
            ConfigurationError: no binary, the folder cannot be used, or the tasks of another target are served from it.
            StoreUnavailable: the server ended or did not answer in time; the message has the end of its log.
        """
        private(self.folder)
        with _alone(self.folder):
            self._connection, word = _join(self.folder) or self._begin()
        if (refusal := self._refusal(word)) is not None:
            self._connection.close()
            raise refusal
        self.url = word["url"]
        return self

    def __exit__(self, *_: object) -> None:
        """The server has ended with its data written out, unless others use it."""
        self._leaving = True
        with self._connection, suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            # Not recv with a timeout, which would be the watching thread's too.
            select.select([self._connection], [], [], (STOP_MS + STEWARD_MS) / 1000)

    def fileno(self) -> int:
        """The file descriptor that makes a user."""
        return self._connection.fileno()

    @property
    def log(self) -> Path:
        """The server's log."""
        return log_of(self.folder)

    def watch(self, lost: Callable[[], object]) -> None:
        """`lost` is called, in a thread of its own, if the server ends inside the block."""

        def wait() -> None:
            with suppress(OSError):
                self._connection.recv(1)
            if not self._leaving:
                lost()

        threading.Thread(target=wait, name="watch-store", daemon=True).start()

    def _begin(self) -> tuple[socket.socket, dict[str, Any]]:
        """Connected to a new steward."""
        ours, theirs = socket.socketpair()
        argv = [sys.executable, "-m", steward.__name__, str(self.folder), self._target]
        with theirs:
            # Untied and silent: it may outlive this process, and whoever reads our output waits for its end.
            spawn(argv, _reap, stdin=theirs.fileno(), tied=False)
        return ours, _heard(ours) or {"error": f"Valkey did not start; its log is {self.log}.", "usage": False}

    def _refusal(self, word: dict[str, Any]) -> MCPTasksError | None:
        if "error" in word:
            return (ConfigurationError if word["usage"] else StoreUnavailable)(word["error"])
        if word["target"] != self._target:
            return ConfigurationError(
                f"{self.folder} holds the tasks of {word['target']}, which runs at the moment; "
                f"give {self._target} a folder of its own with --data."
            )
        return None


def _join(folder: Path) -> tuple[socket.socket, dict[str, Any]] | None:
    """Connected to the steward that there is; None: there is none, or it has just closed its door."""
    try:
        port = int((folder / steward.DOOR).read_text())
        connection = socket.create_connection((HOST, port), timeout=DOOR_S)
    except (OSError, ValueError):
        return None
    word = _heard(connection)
    if word is None or word.get("folder") != str(folder):
        connection.close()
        return None
    connection.settimeout(None)
    return connection, word


def running_on(folder: Path = FOLDER) -> str | None:
    """The URL of the embedded server that runs on the folder now, for whoever only looks; None: none does."""
    if (joined := _join(folder.absolute())) is None:
        return None
    connection, word = joined
    connection.close()
    return word.get("url")


def _reap(process: subprocess.Popen[bytes]) -> None:
    # It may end long before this process does, and would stay a zombie.
    threading.Thread(target=process.wait, name="reap-steward", daemon=True).start()


def _heard(connection: socket.socket) -> dict[str, Any] | None:
    try:
        with connection.makefile("rb") as stream:
            word = json.loads(stream.readline())
    except (OSError, ValueError):
        return None
    return word if isinstance(word, dict) else None


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Nobody else begins or joins at the same time."""
    door = os.open(folder / "arrivals", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(door, fcntl.LOCK_EX)
        yield
    finally:
        os.close(door)
