"""The processes that chaos is done to, and the small supervisor that starts again what died.

Two servers, three workers (threads and prefork) and a Valkey that fsyncs every write. Why always and not everysec: an
acknowledged write is then on disk whatever happens, so the accounting is exact: what is missing at the end was lost by
mcptasks. With everysec a `kill -9` may cost the writes of the last two seconds whenever an fsync is slow.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil
import redis

from mcptasks.cli import lifeline
from mcptasks.cli.embedded import CONFIG, find_binary
from mcptasks.cli.spawn import spawn
from mcptasks.cli.worker import worker_argv
from tests.chaos.ledger import Ledger
from tests.fleet.system import MCPTASKS, ROOT, Proc

TARGET: Final = "tests.chaos.tools:mcp"
CELERY: Final = "tests.chaos.tools:celery"
PREFIX: Final = "chaos:"

LEASE_MS: Final = 3_000
GRACE_MS: Final = 2_000
SETTINGS: Final = {
    "MCPTASKS_LEASE_MS": str(LEASE_MS),
    "MCPTASKS_RENEW_MS": "1000",
    "MCPTASKS_SWEEP_MS": "300",
    "MCPTASKS_RESEND_MS": "700",
    "MCPTASKS_POLL_MS": "500",
    "MCPTASKS_POLL_PARKED_MS": "500",
    "MCPTASKS_TTL_MS": "7200000",
    "MCPTASKS_SHUTDOWN_GRACE_MS": str(GRACE_MS),
}

#: A child whose worker died may finish what it has in hand: the longest job, and a busy machine.
ORPHAN_S: Final = 30.0
#: So long after SIGTERM a process is gone: the grace, Celery's warm shutdown, and a busy machine.
STOP_S: Final = 25.0
_LOOK_S: Final = 0.05
#: After an end of its own, as a supervisor does it.
_BACKOFF_S: Final = 0.5


@dataclass
class Member:
    """One place in the fleet, and the process that fills it now."""

    name: str
    argv: list[str]
    ready_when: str
    proc: Proc | None = None
    #: Some fault has it in hand.
    taken: bool = False
    #: It is to stay down until a fault lets it up again.
    held_down: bool = False
    #: Its end was ordered, at that time.
    told_at: float | None = None
    logs: list[Path] = field(default_factory=list[Path])
    _ready: bool = False
    _retry_at: float = 0.0

    @property
    def alive(self) -> bool:
        """Its process runs."""
        return self.proc is not None and self.proc.exit_code is None

    @property
    def ready(self) -> bool:
        """Its process runs and has said that it works."""
        if not self.alive or self.proc is None:
            return False
        if not self._ready:
            self._ready = re.search(self.ready_when, self.proc.output) is not None
        return self._ready

    def fill(self, env: dict[str, str], cwd: Path) -> Proc:
        """The place has a new process."""
        self.proc = Proc(self.name, self.argv, env=env, cwd=cwd)
        self.told_at, self._ready = None, False
        self.logs.append(self.proc.log)
        return self.proc

    def back_off(self) -> None:
        """It is not started again at once."""
        self._retry_at = time.monotonic() + _BACKOFF_S

    @property
    def due(self) -> bool:
        """It is to be started."""
        return not self.held_down and time.monotonic() >= self._retry_at


class Herd:
    """All processes of one run. None of them lives after the `with` block, nor after this process."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self.folder, self.ledger = folder, ledger
        self.logs = folder / "logs"
        self.logs.mkdir()
        (folder / "valkey").mkdir()
        ports = _free_ports(3)
        self.store_url = f"redis://127.0.0.1:{ports[0]}/0"
        self.store = Member("valkey", _store_argv(folder / "valkey", ports[0]), r"Ready to accept connections")
        self.servers = [_server(f"server{n}", port) for n, port in enumerate(ports[1:], 1)]
        self.workers = [
            _worker("worker1", "prefork", 3),
            _worker("worker2", "prefork", 2),
            _worker("worker3", "threads", 6),
        ]
        self.urls = [f"http://127.0.0.1:{port}/mcp" for port in ports[1:]]
        #: What went wrong with processes, in words.
        self.complaints: list[str] = []
        #: Ends that nobody had ordered.
        self.own_ends = 0
        self._leftovers: list[tuple[psutil.Process, float, str]] = []
        self._lifeline = _Lifeline()
        self._stopping = False

    def __enter__(self) -> Self:
        self._lifeline.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.kill_all()
        self._lifeline.close()

    @property
    def members(self) -> list[Member]:
        """Every place."""
        return [self.store, *self.servers, *self.workers]

    def environment(self) -> dict[str, str]:
        """What the processes see: nothing of a developer's own MCPTASKS_*."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MCPTASKS_")}
        mine = {
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            # A process that hangs says where, when it is aborted.
            "PYTHONFAULTHANDLER": "1",
            "CHAOS_LEDGER": str(self.ledger.path),
            "MCPTASKS_REDIS_URL": self.store_url,
            "MCPTASKS_PREFIX": PREFIX,
        }
        return {**clean, **SETTINGS, **mine}

    # -------------------------------------------------------------------------------------------- supervision

    async def start(self) -> None:
        """The store answers; everything else is starting."""
        self._fill(self.store)
        await self.until(self.store_answers, "the store answers")

    async def supervise(self) -> None:
        """Never returns: whatever died is started again, whatever does not die when told is complained of."""
        while True:
            for member in self.members:
                self._look_after(member)
            self._look_after_leftovers()
            await asyncio.sleep(_LOOK_S)

    async def until(self, condition: Callable[[], bool], what: str, within_s: float = 120.0) -> None:
        """The condition holds.

        Raises:
            TimeoutError: it did not within the time.
        """
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {within_s:g} s in vain until {what}")
            await asyncio.sleep(_LOOK_S)

    def store_answers(self) -> bool:
        """The store's PING works."""
        if not self.store.alive:
            return False
        with suppress(redis.RedisError), redis.Redis.from_url(self.store_url, socket_timeout=0.5) as client:
            return bool(client.ping())
        return False

    def _look_after(self, member: Member) -> None:
        proc = member.proc
        if proc is not None and proc.exit_code is not None:
            self._buried(member, proc, proc.exit_code)
        elif proc is not None and member.told_at is not None and time.monotonic() - member.told_at > STOP_S:
            self.complaints.append(f"{member.name}, told to end, lived on {STOP_S:g} s (log {proc.log.name})")
            self._note_family(member)
            _abort([proc.pid, *proc.children()])
            proc.kill()
        if member.proc is None and member.due and not self._stopping:
            self._fill(member)

    def _buried(self, member: Member, proc: Proc, code: int) -> None:
        told = member.told_at is not None
        self.ledger.add("exits", member.name, time.time(), code, told)
        if not told:
            self.own_ends += 1
            if code == 0:
                self.complaints.append(f"{member.name} ended by itself as if all were well (log {proc.log.name})")
            member.back_off()
        member.proc = None
        if not _group_lives(proc.pid):
            self._lifeline.release(proc.pid)

    def _fill(self, member: Member) -> None:
        self._lifeline.guard(member.fill(self.environment(), self.logs).pid)

    def _note_family(self, member: Member) -> None:
        """What the member has started is watched from now on: it must not live on for long without it."""
        if member.proc is None:
            return
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(member.proc.pid).children(recursive=True)
            self._leftovers += [(child, time.monotonic(), member.name) for child in family]

    def _look_after_leftovers(self) -> None:
        kept: list[tuple[psutil.Process, float, str]] = []
        for child, since, name in self._leftovers:
            if not _runs(child):
                continue
            if time.monotonic() - since < ORPHAN_S:
                kept.append((child, since, name))
                continue
            self.complaints.append(f"a child of {name} (pid {child.pid}) lived on {ORPHAN_S:g} s after its worker")
            _abort([child.pid])
            child.kill()
        self._leftovers = kept

    # -------------------------------------------------------------------------------------------- faults

    def kill_leader(self, member: Member) -> None:
        """The main process alone got `kill -9`; its children are on their own."""
        self._note_family(member)
        self._signal(member, signal.SIGKILL)

    def kill_group(self, member: Member) -> None:
        """The process and all it has started got `kill -9`."""
        if member.proc is not None and member.alive:
            member.told_at = time.monotonic()
            os.killpg(member.proc.pid, signal.SIGKILL)

    def terminate(self, member: Member) -> None:
        """The main process was told to end in order."""
        self._note_family(member)
        self._signal(member, signal.SIGTERM)

    def _signal(self, member: Member, signum: int) -> None:
        if member.proc is not None and member.alive:
            member.told_at = time.monotonic()
            os.kill(member.proc.pid, signum)

    # -------------------------------------------------------------------------------------------- the end

    async def stop_in_order(self) -> None:
        """Everything was told to end and has; what did not is complained of."""
        self._stopping = True
        for member in [*self.workers, *self.servers]:
            self.terminate(member)
        gone = lambda: not any(m.alive for m in [*self.workers, *self.servers])  # noqa: E731
        with suppress(TimeoutError):
            await self.until(gone, "all have ended", STOP_S + 5)
        await asyncio.sleep(1)
        left = [f"{name}'s {child.pid}" for child, _, name in self._leftovers if _runs(child)]
        if left:
            self.complaints.append(f"after an orderly stop these processes were left: {', '.join(left)}")

    def kill_all(self) -> None:
        """No process of this run lives."""
        self._stopping = True
        for member in self.members:
            if member.proc is not None:
                member.proc.kill()
                self._lifeline.release(member.proc.pid)
        for child, _, _ in self._leftovers:
            with suppress(psutil.NoSuchProcess):
                child.kill()


class _Lifeline:
    """A process that kills the guarded groups if this one is gone before it released them."""

    def __init__(self) -> None:
        self._process: list[subprocess.Popen[bytes]] = []

    def open(self) -> None:
        argv = [sys.executable, "-I", "-S", lifeline.__file__, "1000"]
        # Untied: it must live on when this process dies.
        spawn(argv, self._process.append, cwd=Path("/"), stdin=subprocess.PIPE, tied=False)

    def guard(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def release(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """The groups that are still guarded are ended too."""
        stdin = self._process[0].stdin
        assert stdin is not None
        stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process[0].wait(10)

    def _tell(self, line: str) -> None:
        stdin = self._process[0].stdin
        assert stdin is not None
        with suppress(OSError):
            os.write(stdin.fileno(), line.encode())


def _abort(pids: Sequence[int]) -> None:
    """The processes have written to their logs where they hang."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGABRT)
    time.sleep(0.5)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _store_argv(folder: Path, port: int) -> list[str]:
    options = {**CONFIG, "port": str(port), "dir": str(folder), "appendfsync": "always", "logfile": ""}
    return [str(find_binary()), *(word for name, value in options.items() for word in (f"--{name}", value))]


def _server(name: str, port: int) -> Member:
    return Member(name, [*MCPTASKS, "serve", TARGET, "--port", str(port)], r"serving http")


def _worker(name: str, pool: str, slots: int) -> Member:
    # What `mcptasks worker` turns into, without importing everything twice for it.
    argv = worker_argv(CELERY, pool=pool, concurrency=slots, name=f"{name}@chaos", log_level="INFO")
    return Member(name, argv, r"\sready\.")
