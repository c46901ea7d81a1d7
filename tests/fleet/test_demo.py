"""`mcptasks demo` (issue 2, command line: the tour, driven by a real client over HTTP; five scenes, a table of what
happened, exit code 0, no service needed before; cleanup: nothing left behind)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.support.processes import living
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
#: A cold start of five Pythons and five scenes, on a machine that has other things to do.
WITHIN_S: Final = 240

SCENES: Final = ("A long job", "An approval", "A cancel", "The same call again", "A killed worker")

#: The tour with one scene that cannot come out.
BROKEN_TOUR: Final = """
from mcptasks.cli.demo import command
from mcptasks.cli.demo.scenes import Scene
from mcptasks.cli.demo.stage import check
from mcptasks.cli.main import main

async def play(stage):
    check(False, "pigs fly")

command.SCENES = (Scene("A broken promise", "It is not kept.", play),)
main()
"""


@dataclass
class Tour:
    """A tour that runs in an empty folder, with a folder for temporary files of its own."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: subprocess.Popen[str] = field(init=False)

    def start(self, *argv: str) -> None:
        """The tour is running; the store that its environment names is none."""
        self.here.mkdir(parents=True)
        self.temporary.mkdir()
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.temporary),
            "TOUR": self.mark,
            "MCPTASKS_REDIS_URL": "redis://127.0.0.1:1/0",
        }
        self.process = subprocess.Popen(
            [sys.executable, *argv],
            env=env,
            cwd=self.here,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def here(self) -> Path:
        return self.folder / "here"

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    def family(self) -> list[psutil.Process]:
        """Every living process that was started by the tour or by what it started, whoever its parent is now."""
        return living(process for process in psutil.process_iter() if _environment(process).get("TOUR") == self.mark)

    def await_scene(self, name: str) -> None:
        """The scene has begun."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if name in line:
                return
        raise AssertionError(f"the tour ended before {name!r}: {self.process.communicate(timeout=WITHIN_S)[1]}")

    def end(self) -> tuple[str, str]:
        """What it had printed on stdout and on stderr once it ended."""
        return self.process.communicate(timeout=WITHIN_S)

    def left_behind(self) -> list[str]:
        """Files in its working directory and among the temporary ones."""
        return [path.name for folder in (self.here, self.temporary) for path in folder.iterdir()]


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


@contextmanager
def started(tour: Tour, *argv: str) -> Generator[None]:
    tour.start(*argv)
    with tour.process:
        try:
            yield
        finally:
            tour.process.terminate()


@pytest.fixture
def tour(tmp_path: Path) -> Tour:
    return Tour(tmp_path)


@pytest.mark.slow
def test_the_tour_shows_its_five_scenes_and_leaves_nothing_behind(tour: Tour) -> None:
    """Issue 2, Shows: `make demo` exits 0 and shows all five scenes. No service was running before."""
    with started(tour, "-m", "mcptasks.cli.main", "demo"):
        tour.await_scene("A long job")
        assert len(tour.family()) >= 5, "the tour, a store, two workers and a server run"
        said, complaints = tour.end()
    assert (tour.process.returncode, complaints) == (0, "")
    headings, table = said.split("What happened")
    for name in SCENES[1:]:  # the first heading was read above
        assert name in headings
    for name in SCENES:
        assert name in table
    assert headings.count("checked ") == len(SCENES)
    assert "refused (-32602)" in headings
    assert "\x1b" not in said, "no terminal, no control codes"
    assert tour.family() == []
    assert tour.left_behind() == []


@pytest.mark.slow
def test_a_scene_that_does_not_come_out_is_one_clear_line_and_keeps_the_log(tour: Tour) -> None:
    with started(tour, "-c", BROKEN_TOUR, "demo"):
        said, complaint = tour.end()
    assert tour.process.returncode == 1
    assert "What happened" not in said
    [log] = tour.temporary.iterdir()
    assert complaint == (
        "mcptasks: 'A broken promise' did not come out: it is not true that pigs fly. "
        f"What the processes said is in {log}\n"
    )
    assert "worker1 | " in log.read_text(), "the workers' log"
    assert "Traceback" in log.read_text(), "and where the scene broke"
    assert tour.family() == []


@pytest.mark.slow
def test_a_tour_that_is_told_to_end_leaves_nothing_behind(tour: Tour) -> None:
    """R9: shutdown leaves no orphan."""
    with started(tour, "-m", "mcptasks.cli.main", "demo"):
        tour.await_scene("A long job")
        tour.process.send_signal(signal.SIGTERM)
        _, complaint = tour.end()
    assert tour.process.returncode != 0
    assert "Traceback" not in complaint
    wait_until(lambda: not tour.family(), description="none of its processes lives")
    assert tour.left_behind() == []


def test_without_the_sample_tools_it_says_where_they_are(tour: Tour) -> None:
    """As after `pip install mcptasks`; a package called workers is somebody else's here."""
    script = "import sys; sys.path.insert(0, ''); from mcptasks.cli.main import main; main()"
    tour.here.mkdir(parents=True)
    (tour.here / "workers.py").touch()
    refused = subprocess.run(
        [sys.executable, "-c", script, "demo"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tour.here,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert refused.returncode == 2
    assert "Clone the repository and run `make demo` in it." in refused.stderr
    assert "Traceback" not in refused.stderr
