"""The processes of one run: started with their logs kept, awaited, accounted for and stopped, children included."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

ROOT: Final = Path(__file__).parent.parent
START_S: Final = 60.0


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Service:
    """One running process group of ours; its output is in `log`."""

    def __init__(self, name: str, command: Sequence[str | Path], env: dict[str, str], log: Path) -> None:
        self.name, self.log = name, log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                cwd=ROOT,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, what: str, ready: Callable[[], bool]) -> None:
        """`ready()` has said yes.

        Raises:
            RuntimeError: the process ended before, or a minute went by; with the end of its log.
        """
        deadline = time.monotonic() + START_S
        while not ready():
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} exited with {self._process.returncode} before {what}:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: {what} did not happen within {START_S:.0f} s:\n{self._tail()}")
            time.sleep(0.05)

    def wait_for_port(self, port: int) -> None:
        """Somebody listens on the port. Errors as `wait_for`."""

        def listening() -> bool:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
            return False

        self.wait_for(f"listening on {port}", listening)

    def signal(self, number: signal.Signals) -> None:
        """The signal has been sent to the process and all its children."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """No process of the group is left, and none had time to do anything about it."""
        self.signal(signal.SIGKILL)
        self._process.wait()

    def owns(self, pid: int) -> bool:
        """The process with that number is this one or a child of it."""
        return pid in {process.pid for process in self._family()}

    def stop(self) -> None:
        """No process of the group is left: asked first, killed after ten seconds."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self.kill()

    def output(self) -> str:
        """What it has said so far."""
        return self.log.read_text(errors="replace")

    def cpu_ms(self) -> float:
        """CPU time used so far by the process and its living children, in milliseconds."""
        times = [process.cpu_times() for process in self._family()]
        return sum(each.user + each.system for each in times) * 1000

    def rss_mib(self) -> float:
        """Resident memory of the process and its children, in MiB (shared pages count once per process)."""
        return sum(process.memory_info().rss for process in self._family()) / 2**20

    def _family(self) -> list[psutil.Process]:
        process = psutil.Process(self._process.pid)
        return [process, *process.children(recursive=True)]

    def _tail(self) -> str:
        return self.output()[-2000:]


@contextmanager
def running(name: str, command: Sequence[str | Path], env: dict[str, str], logs: Path) -> Generator[Service]:
    """The process runs inside the block and is gone after it."""
    service = Service(name, command, env, logs / f"{name.replace(' ', '-')}.log")
    try:
        yield service
    finally:
        service.stop()
