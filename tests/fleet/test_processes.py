"""The supervisor of `mcptasks dev`: it stops all its children cleanly and leaves no orphan (issue 2: the command line;
R9: shutdown leaves no orphan), whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.cli.processes import Child, Processes
from mcptasks.errors import ConfigurationError
from tests.support.processes import living
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]

ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to its parent's life")

#: Ends at once when asked to.
WILLING = ["sh", "-c", "echo up; exec sleep 600"]
#: A leader and a child of its own that both ignore SIGTERM: only SIGKILL to the whole group ends them.
STUBBORN = ["sh", "-c", "trap '' TERM; sleep 600 & echo up; sleep 600; :"]

#: Notes SIGTERM in a file and goes on.
SLOW = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[1]).touch())
print("up")
while True:
    signal.pause()
"""

SUPERVISOR = """
import sys
from mcptasks.cli.interrupts import interrupt_on_termination
from mcptasks.cli.processes import Processes

with interrupt_on_termination(), Processes(grace_ms=int(sys.argv[1])) as processes:
    processes.start("child", sys.argv[2:])
    processes.wait()
"""


@dataclass
class Supervisor:
    """A process that supervises one child, and all that was seen running below it."""

    process: psutil.Popen
    family: list[psutil.Process] = field(default_factory=list[psutil.Process])

    def await_family(self, size: int) -> None:
        """The child has said that it is up, and `size` processes run below the supervisor, its lifeline included."""
        said: list[str] = []
        for line in self.process.stderr:
            said.append(line.decode())
            if said[-1] == "child | up\n":
                break
        else:
            raise AssertionError(f"the supervisor ended: {''.join(said)}")
        wait_until(lambda: len(self.look()) == size, description=f"{size} processes run below the supervisor")

    def look(self) -> list[psutil.Process]:
        """The processes below the supervisor now."""
        self.family = self.process.children(recursive=True)
        return self.family

    def await_gone(self) -> None:
        """Neither the supervisor nor any of its family lives."""
        await_gone([self.process, *self.family])


@contextmanager
def supervisor(grace_ms: int, argv: list[str], **env: str) -> Generator[Supervisor]:
    """`argv` runs as the only child of a supervisor in a process of its own."""
    argv = [sys.executable, "-c", SUPERVISOR, str(grace_ms), *argv]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    process = psutil.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    supervised = Supervisor(process)
    try:
        yield supervised
    finally:
        for survivor in living([process, *supervised.family]):
            survivor.kill()
        process.wait()
        process.stderr.close()


def await_gone(processes: list[psutil.Process]) -> None:
    wait_until(lambda: not living(processes), description=f"none of {[process.pid for process in processes]} lives")


def lines_of(text: str) -> list[list[str]]:
    """Name and text of each prefixed line."""
    return [[part.strip() for part in line.split("|", 1)] for line in text.splitlines()]


def test_each_line_of_a_child_appears_under_its_name(capfd: pytest.CaptureFixture[str]) -> None:
    """Issue 2: one terminal shows what every process of `dev` says; the ready line on stdout stays alone there."""
    with Processes() as processes:
        processes.start("web", ["sh", "-c", "echo out; echo [bold]err >&2; printf unended"])
        assert processes.wait() is not None
    shown = capfd.readouterr()
    assert lines_of(shown.err) == [["web", "out"], ["web", "[bold]err"], ["web", "unended"]]
    assert shown.out == ""


def test_a_child_that_died_is_told_with_its_fate_after_its_last_words(capfd: pytest.CaptureFixture[str]) -> None:
    with Processes() as processes:
        child = processes.start("worker", ["sh", "-c", "echo last words; exit 3"])
        assert processes.wait() is child
        assert "last words" in capfd.readouterr().err
        assert (child.returncode, child.fate) == (3, "exited with code 3")


def test_a_child_that_was_killed_is_told_so() -> None:
    with Processes() as processes:
        child = processes.start("worker", WILLING)
        os.kill(child.pid, signal.SIGKILL)
        assert processes.wait() is child
        assert child.fate == "was ended by signal 9 (Killed)"


def test_waiting_ends_with_nothing_when_no_child_died_in_time() -> None:
    with Processes() as processes:
        child = processes.start("worker", WILLING)
        assert processes.wait(timeout_ms=1) is None
        assert child.fate == "is running"


def test_a_program_that_is_not_there_is_named() -> None:
    with Processes() as processes, pytest.raises(ConfigurationError, match=r"web could not be started: nosuchprogram"):
        processes.start("web", ["nosuchprogram"])


def test_a_child_gets_the_environment_and_folder_it_was_given(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Processes() as processes:
        env = {"PATH": os.environ["PATH"], "COLOUR": "red"}
        processes.start("web", ["sh", "-c", "echo $COLOUR; pwd"], env=env, cwd=tmp_path)
        processes.wait()
    assert [text for _, text in lines_of(capfd.readouterr().err)] == ["red", str(tmp_path.resolve())]


def test_sigterm_goes_to_the_named_ones_first_then_to_the_last_started(monkeypatch: pytest.MonkeyPatch) -> None:
    terminated: list[str] = []
    really = Child.terminate

    def terminate(child: Child) -> None:
        terminated.append(child.name)
        really(child)

    monkeypatch.setattr(Child, "terminate", terminate)
    with Processes() as processes:
        for name in ("worker-1", "worker-2", "flower", "web"):
            processes.start(name, WILLING)
        processes.stop(order=["web", "flower"])
        assert terminated == ["web", "flower", "worker-2", "worker-1"]


def test_a_child_that_ignores_sigterm_is_killed_with_its_own_children_after_the_grace() -> None:
    with Processes(grace_ms=100) as processes:
        child = processes.start("worker", STUBBORN)
        family = [psutil.Process(child.pid)]
        wait_until(lambda: len(family[0].children()) == 2, description="the stubborn child has two children of its own")
        family += family[0].children()
        processes.stop()
        assert child.returncode == -signal.SIGKILL
        await_gone(family)


def test_what_a_dead_child_left_behind_is_killed_at_once() -> None:
    """A worker that crashed must not leave the subprocesses of its tools running beside its successor."""
    with Processes() as processes:
        child = processes.start("worker", STUBBORN)
        leader = psutil.Process(child.pid)
        wait_until(lambda: len(leader.children()) == 2, description="the stubborn child has two children of its own")
        strays = leader.children()
        leader.kill()
        assert processes.wait() is child
        await_gone(strays)


def test_an_exception_leaves_no_child() -> None:
    children: list[Child] = []

    def fail_after_a_start() -> None:
        with Processes() as processes:
            children.append(processes.start("worker", WILLING))
            raise EOFError

    with pytest.raises(EOFError):
        fail_after_a_start()
    assert not psutil.pid_exists(children[0].pid)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda s: s.name)
def test_no_signal_to_the_supervisor_leaves_an_orphan(signum: signal.Signals) -> None:
    """The worst children: neither they nor theirs heed SIGTERM."""
    with supervisor(100, STUBBORN) as supervised:
        supervised.await_family(size=4)
        supervised.process.send_signal(signum)
        supervised.await_gone()


def test_a_second_ctrl_c_ends_the_grace(tmp_path: Path) -> None:
    told = tmp_path / "told"
    with supervisor(3_600_000, [sys.executable, "-c", SLOW, str(told)]) as supervised:
        supervised.await_family(size=2)
        supervised.process.send_signal(signal.SIGINT)
        wait_until(told.exists, description="the child has been told to end, and goes on")
        supervised.process.send_signal(signal.SIGINT)
        supervised.await_gone()


@ONLY_LINUX
def test_a_supervisor_killed_together_with_its_lifeline_still_takes_its_children_along() -> None:
    with supervisor(3_600_000, WILLING) as supervised:
        supervised.await_family(size=2)
        (lifeline,) = [process for process in supervised.family if "lifeline" in " ".join(process.cmdline())]
        lifeline.kill()
        supervised.process.kill()
        supervised.await_gone()


@ONLY_LINUX
def test_a_child_outlives_the_thread_that_asked_for_it(capfd: pytest.CaptureFixture[str]) -> None:
    """PR_SET_PDEATHSIG is about the parent THREAD: forked there, the child would get SIGTERM as soon as it ends."""
    children: list[Child] = []
    said: list[str] = []

    def shown(text: str) -> bool:
        said.append(capfd.readouterr().err)
        return text in "".join(said)

    with Processes() as processes:
        script = "trap 'echo alive' USR1; echo up; while :; do sleep 0.05; done"
        starter = threading.Thread(target=lambda: children.append(processes.start("worker", ["sh", "-c", script])))
        starter.start()
        starter.join()
        kernel_thread = Path(f"/proc/self/task/{starter.native_id}")
        wait_until(lambda: not kernel_thread.exists(), description="the kernel has ended the thread too")
        wait_until(lambda: shown("up"), description="the child is up")
        os.kill(children[0].pid, signal.SIGUSR1)
        wait_until(lambda: shown("alive"), description="the child answers a signal")


CELERY_APP = """
import os, pathlib, subprocess, time
from celery import Celery

app = Celery("killed", broker=os.environ["BROKER"])
app.conf.task_ignore_result = True

@app.task
def tool(marker):
    subprocess.Popen(["sleep", "600"])
    pathlib.Path(marker).touch()
    while True:
        time.sleep(1)
"""


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_supervisor_killed_by_kill_9_takes_a_busy_celery_worker_along(pool: str, tmp_path: Path) -> None:
    """The master, its pool, and what a tool started. SIGTERM alone would not do: a warm shutdown waits for the tool."""
    (tmp_path / "killed.py").write_text(CELERY_APP)
    marker = tmp_path / "running"
    celery = [sys.executable, "-m", "celery", "-A", "killed"]
    worker = [*celery, "worker", "--pool", pool, "--concurrency", "1", "--loglevel", "INFO"]
    with EmbeddedValkey(tmp_path / "valkey") as valkey:
        env = {"BROKER": valkey.url, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
        call = [*celery, "call", "killed.tool", "--args", f'["{marker}"]']
        with supervisor(100, worker, **env) as supervised:
            subprocess.run(call, env={**os.environ, **env}, check=True, stdout=subprocess.DEVNULL)
            wait_until(marker.exists, description="the tool runs")
            assert len(supervised.look()) == (4 if pool == "prefork" else 3), "lifeline, worker (and its pool), sleep"
            supervised.process.kill()
            supervised.await_gone()
