"""FastMCP's client, a foreign one in a virtualenv of its own, calls durable tools of a real fleet like any tools."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks import fastmcp_env
from tests.fleet.conftest import Running, on_running
from tests.fleet.system import START_S, new_key
from tests.requirements import covers

PERSON: Final = Path(__file__).with_name("fastmcp_person.py")

#: What each tool comes to when every question is answered with itself.
IN_LINE: Final = {"ask1": "7 {key}?", "fan2": "one? two?"}
RETURNING: Final = {"ask_by_resolver": "{key}?", "ask_by_returning": "first? second?"}
#: FastMCP's client answers these to a server that asks it, and not to a task that does.
OLDER: Final = {"ask_the_model": "ha", "ask_for_roots": "file:///home"}
KINDS: Final = {
    "tasks": {**IN_LINE, **RETURNING},
    "plain": {**IN_LINE, **RETURNING, **OLDER},
    "legacy": {**IN_LINE, **RETURNING, **OLDER},
}


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    """`.venv-fastmcp` is there, as the benchmark's pins have it."""
    fastmcp_env.ensure()


def call(url: str, kind: str, *calls: tuple[str, Any]) -> list[str]:
    """What the client says its calls came to."""
    done = subprocess.run(
        [fastmcp_env.PYTHON, PERSON, url, kind, json.dumps(calls)], capture_output=True, text=True, timeout=START_S
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@on_running
@covers("P32", "R3")
@pytest.mark.parametrize("kind", KINDS)
def test_a_durable_tool_that_asks_is_called_like_any_other(with_threads: Running, kind: str) -> None:
    """Issue 4: transparent `call_tool` with an elicitation, whatever the client knows of tasks."""
    key, expected, before = new_key(), KINDS[kind], len(with_threads.fleet.task_ids())
    arguments = {tool: {"key": key} | ({"x": 7} if tool == "ask1" else {}) for tool in expected}
    came_to = call(with_threads.url, kind, *arguments.items())
    assert came_to == [text.format(key=key) for text in expected.values()]
    assert len(with_threads.fleet.task_ids()) == before + len(expected), "each of them was a task on the fleet"


@on_running
@covers("R2")
def test_a_task_is_started_watched_and_cancelled(with_threads: Running, tmp_path: Path) -> None:
    """Issue 4: FastMCP's own handle works on our tasks."""
    key = new_key()
    gate = ("gate", {"key": key, "path": str(tmp_path / "never")})
    assert call(with_threads.url, "tasks", ("cancel", gate)) == ["cancelled"]
    assert with_threads.fleet.ledger.count(key, "end") == 0
