"""The chaos program itself, bounded: a fleet is killed, frozen and cut off under load, and every task accounted for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Final

import pytest

from tests.fleet.system import ROOT
from tests.requirements import covers

#: Start, storm, settling (bounded in the program) and the orderly end, on a busy machine.
WITHIN_S: Final = 900
#: What the program needs to end its processes after SIGTERM.
CLEANUP_S: Final = 60


@pytest.mark.slow
@covers("A03", "B06", "N5", "N6", "R9", "W1", "W3")
def test_a_fleet_under_chaos_loses_nothing_and_commits_nothing_twice() -> None:
    """Issue 3.7: exact accounting against a ledger outside the store."""
    env = {**os.environ, "CHAOS_MINUTES": "1.5"}
    argv = [sys.executable, "-m", "tests.chaos"]
    with subprocess.Popen(argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            output, _ = run.communicate(timeout=WITHIN_S)
        except BaseException:
            # In order, so that the program ends what it has started.
            run.send_signal(signal.SIGTERM)
            try:
                run.wait(CLEANUP_S)
            except subprocess.TimeoutExpired:
                run.kill()
            raise
    assert run.returncode == 0, output
