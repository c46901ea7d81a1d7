"""The byte in which a worker's main process tells its prefork children that it goes down."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from mcptasks.fleet.shutdown import Shutdown
from tests.support.waiting import wait_until

LONG_MS = 3_600_000

#: Forks before anything is said, as Celery does; each child ends with 0 once it has seen what it waits for.
FORKS = """
    def child(name):
        pid = os.fork()
        if pid == 0:
            deadline = time.monotonic() + 60
            while not getattr(shutdown, name) and time.monotonic() < deadline:
                time.sleep(0.01)
            os._exit(0 if getattr(shutdown, name) else 1)
        return pid

    children = [child("draining"), child("letting_go")]
    shutdown.begin(1)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    print(codes)
"""

#: A tool that does not stop, in a worker that is told to end at once.
CLINGS = """
    shutdown.end_cold()
    while not shutdown.letting_go:
        time.sleep(0.01)
    print("letting go", flush=True)
    time.sleep(60)
"""


def in_a_process(body: str) -> tuple[int, str]:
    """Exit code and output of a process that has a `shutdown` and no threads yet."""
    script = "import os, time\nfrom mcptasks.fleet.shutdown import Shutdown\nshutdown = Shutdown()\n"
    words = [sys.executable, "-W", "error", "-c", script + textwrap.dedent(body)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout.strip() or done.stderr


def state(shutdown: Shutdown) -> tuple[bool, bool]:
    """What a keeper looks at."""
    return shutdown.draining, shutdown.letting_go


def test_at_first_nothing_is_said() -> None:
    """Runs are claimed and go on."""
    assert state(Shutdown()) == (False, False)


def test_first_nothing_new_is_taken_and_after_the_grace_runs_are_let_go() -> None:
    """The grace is the runs' time to finish."""
    shutdown = Shutdown()
    shutdown.begin(LONG_MS)
    assert state(shutdown) == (True, False)
    shutdown = Shutdown()
    shutdown.begin(1)
    assert shutdown.draining
    wait_until(lambda: shutdown.letting_go, description="the grace is over")


def test_a_second_word_does_not_call_the_first_back() -> None:
    """SIGTERM and SIGINT may both come: who was told to let go is not told to go on."""
    shutdown = Shutdown()
    shutdown.begin(1)
    wait_until(lambda: shutdown.letting_go, description="the grace is over")
    shutdown.begin(LONG_MS)
    assert state(shutdown) == (True, True)


def test_a_child_that_was_forked_before_sees_what_its_parent_says_later() -> None:
    """Prefork children get no signal when their master is told to go down."""
    assert in_a_process(FORKS) == (0, "[0, 0]")


def test_two_workers_on_one_machine_have_a_byte_each() -> None:
    """Anonymous memory: nothing of it has a name that another could share by accident."""
    one, other = Shutdown(), Shutdown()
    one.begin(LONG_MS)
    assert state(other) == (False, False)


def test_a_cold_stop_lets_go_at_once_and_does_not_wait_for_a_tool_that_clings() -> None:
    """No orphan, ever: what cannot be stopped ends with its process, and runs again when its lease is over."""
    assert in_a_process(CLINGS) == (1, "letting go")
