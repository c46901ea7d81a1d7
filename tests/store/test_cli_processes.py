"""Each operators' command as the process that people start: its exit code, and what it says where."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import anyio.to_thread
import pytest

from mcptasks.model import Status
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.support.command import environment
from tests.support.tasks import ended, parked, queued

pytestmark = pytest.mark.anyio


async def _queued(store: TaskStore) -> str:
    return await queued(store)


async def _parked(store: TaskStore) -> str:
    return (await parked(store)).task_id


async def _ended(store: TaskStore) -> str:
    return (await ended(store)).task_id


async def _failed(store: TaskStore) -> str:
    return (await ended(store, Status.FAILED)).task_id


#: Command -> the task that it is about, the words (ID is its beginning), and what is said.
COMMANDS: Final[dict[str, tuple[Callable[[TaskStore], Awaitable[str]], list[str], str]]] = {
    "ps": (_queued, [], "queued"),
    "show": (_ended, ["ID"], "completed"),
    "answer": (_parked, ["ID", "--decline"], "moves on"),
    "logs": (_ended, ["ID", "--follow"], "status completed"),
    "retry": (_failed, ["ID"], "does it again"),
    "cancel": (_queued, ["ID"], "cancelled"),
    "extend": (_queued, ["ID", "--by", "30d"], "it is kept until"),
    "purge": (_ended, ["--before", "2999-01-01", "--yes"], "removed 1 tasks"),
    "top": (_queued, ["--once", "--interval", "0.1"], "queued 1"),
}


def run(words: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`mcptasks WORDS` has ended."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "mcptasks.cli.main", *words],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_works_as_a_process(store: TaskStore, settings: Settings, command: str) -> None:
    """In a pipe, without colours; warnings of Python's would be errors of somebody's script."""
    make, words, said = COMMANDS[command]
    task_id = await make(store)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MCPTASKS_")}
    told = [task_id[:8] if word == "ID" else word for word in words]
    done = await anyio.to_thread.run_sync(lambda: run([command, *told], {**clean, **environment(settings)}))
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout and "\x1b" not in done.stdout
