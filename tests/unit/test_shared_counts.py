"""What forked children count: in as many files as there are children at a time, however many there have been."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import values

from mcptasks.observe import metrics_port
from mcptasks.settings import Settings
from mcptasks.store import scripts

#: In a process of its own: who forks must not do so in the midst of a test run.
BEGIN: Final = """
    import os, sys
    from pathlib import Path
    from mcptasks.observe.metrics import Metrics
    from mcptasks.observe.shared_counts import SharedCounts
    from mcptasks.store.scripts import Ran
    from prometheus_client import CollectorRegistry

    shared = SharedCounts()
    metrics = Metrics(CollectorRegistry(), forks=True)
    folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])


    def counted():
        samples = [one for family in shared.registry().collect() for one in family.samples]
        return sum(one.value for one in samples if one.name == "mcptasks_created_total")


    def count():
        metrics(Ran("create", {"tool": "report"}, ["CREATED", "1"], 0.01, None))


    def child(then=lambda: None):
        if pid := os.fork():
            return pid
        count()
        then()
        os._exit(0)
"""


def ran(program: str, tmp: Path) -> list[str]:
    """The lines that the program has printed. Its folder is made in `tmp`."""
    text = textwrap.dedent(BEGIN) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "TMPDIR": str(tmp)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_children_that_replace_each_other_go_on_with_one_file(tmp_path: Path) -> None:
    """Everything counts once, and nothing grows with the number of children there have been."""
    program = """
        count()
        sizes = []
        for _ in range(20):
            os.waitpid(child(), 0)
            sizes.append(len(list(folder.glob("*.db"))))
        print(int(counted()), sizes[0], sizes[-1])
    """
    total, first, last = map(int, ran(program, tmp_path))
    assert total == 21
    # A counter's and a histogram's, of the parent and of a child.
    assert first == last == 4


def test_children_that_live_at_a_time_count_apart(tmp_path: Path) -> None:
    """Two that wrote one file would overwrite each other's numbers."""
    program = """
        import signal
        reading, writing = os.pipe()


        def stay():
            for _ in range(100):
                count()
            os.write(writing, b".")
            signal.pause()

        children = [child(stay) for _ in range(3)]
        heard = b""
        while len(heard) < 3:
            heard += os.read(reading, 3)
        print(int(counted()), len(list(folder.glob("counter_*.db"))))
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.waitpid(child(), 0)
        print(int(counted()))
    """
    assert ran(program, tmp_path) == ["303", "3", "304"]


def test_the_folder_of_a_process_that_was_killed_goes_with_the_next_one(tmp_path: Path) -> None:
    """Also where both have the same process id, as in a container; that of one that lives stays."""
    ran("os._exit(0)", tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    program = """
        import subprocess
        another = "from mcptasks.observe.shared_counts import SharedCounts; SharedCounts().close()"
        subprocess.run([sys.executable, "-c", another], check=True)
        print(folder.name, folder.is_dir())
        os._exit(0)
    """
    name, stays = ran(program, tmp_path)
    assert stays == "True"
    assert [one.name for one in tmp_path.iterdir()] == [name], "the lost one's is gone"


def test_no_port_leaves_prometheus_client_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Metrics that a tool makes later would be kept in a folder that is not there, and fail the tool."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, observed = values.ValueClass, list(scripts.observers)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(metrics_port=str(taken.getsockname()[1]))
        assert metrics_port.serve(settings, forks=True) is None
    assert values.ValueClass is before
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ
    assert (list(tmp_path.iterdir()), scripts.observers) == ([], observed)


def test_a_port_that_is_closed_leaves_it_as_it_was_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And the folder that somebody else had named."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "theirs")
    before = values.ValueClass
    port = metrics_port.serve(Settings(metrics_port=f"{free_port()}"), forks=True)
    assert port is not None and values.ValueClass is not before
    port.close()
    assert values.ValueClass is before
    assert os.environ["PROMETHEUS_MULTIPROC_DIR"] == "theirs"
    assert list(tmp_path.iterdir()) == []


def free_port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
