"""When an attempt is made in a process of its own, and how that process finds the app it belongs to."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from mcptasks.fleet import isolation
from mcptasks.fleet.isolation import LoneProcess, app_argument, wants_isolation
from mcptasks.model import Claim, Journal, Record, Status
from mcptasks.store import scripts
from tests.requirements import covers


def claim(attempt: int, max_attempts: int) -> Claim:
    """The claim of that attempt."""
    record = Record(
        task_id="t",
        tool="report",
        owner="",
        status=Status.RUNNING,
        created_ms=0,
        updated_ms=0,
        ttl_ms=None,
        poll_ms=1,
        revision=1,
        token=attempt,
        attempt=attempt,
        max_attempts=max_attempts,
    )
    return Claim(record=record, submission=None, journal=Journal(), progress=None, at_ms=0)


@pytest.mark.parametrize(
    ("words", "app"),
    [
        (["celery", "-A", "shop.server:celery", "worker"], "shop.server:celery"),
        (["celery", "-Ashop.server:celery", "worker"], "shop.server:celery"),
        (["celery", "--app", "shop.server", "worker", "-c", "2"], "shop.server"),
        (["celery", "--app=shop.server", "worker"], "shop.server"),
        (["celery", "-q", "-A", "a.b", "worker", "-A", "late"], "a.b"),
        (["celery", "worker", "-A"], None),
        (["celery", "worker", "--application", "x"], None),
        (["mcptasks"], None),
        ([], None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_app_is_what_celery_was_given(monkeypatch: pytest.MonkeyPatch, words: list[str], app: str | None) -> None:
    """In every spelling that Celery's own command line takes."""
    monkeypatch.delenv("APP", raising=False)
    monkeypatch.delenv("CELERY_APP", raising=False)
    assert app_argument(words) == app


@pytest.mark.parametrize("name", ["APP", "CELERY_APP"])
def test_the_environment_names_the_app_where_the_command_line_does_not(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Celery reads it there, too."""
    monkeypatch.delenv("APP", raising=False)
    monkeypatch.delenv("CELERY_APP", raising=False)
    monkeypatch.setenv(name, "shop.server")
    assert app_argument(["celery", "worker"]) == "shop.server"
    assert app_argument(["celery", "-A", "other", "worker"]) == "other"


@covers("A05")
@pytest.mark.parametrize(
    ("attempt", "max_attempts", "alone"),
    [
        (1, 3, False),
        (2, 3, False),
        (3, 3, True),
        (4, 3, True),
        (1, 2, False),
        (2, 2, True),
        (1, 1, False),
        (2, 1, False),
    ],
)
def test_the_last_of_several_attempts_is_made_alone(attempt: int, max_attempts: int, alone: bool) -> None:
    """A05: when a shared process dies nobody knows who killed it; a first attempt has killed nobody yet."""
    assert wants_isolation(claim(attempt, max_attempts)) is alone


# ------------------------------------------------------------------------------------------------ what the process says


@asynccontextmanager
async def lone(script: str) -> AsyncGenerator[tuple[LoneProcess, asyncio.Task[str | None], Process]]:
    """A process with this in place of a run."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-c",
            f"from mcptasks.fleet.isolation import *\nfrom mcptasks.store.scripts import *\n{script}",
        ),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    one = LoneProcess(claim(3, 3), process)
    word = asyncio.ensure_future(one.word())
    try:
        yield one, word, process
    finally:
        await one.kill()
        await word


@pytest.mark.anyio
async def test_an_end_and_a_word_are_heard_while_the_process_still_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its tool prints, and with whatever code it ends then."""
    heard: list[scripts.Ran] = []
    monkeypatch.setattr(scripts, "observers", [heard.append])
    script = """
import sys
print("a tool's own words, " * 10_000, end="", flush=True)
report_ends()
tell(Ran("finish", {}, ["FINISHED"], 0.5, ["report", "completed", "completed", "7"]))
report_word("completed")
print("and more", end="", flush=True)
sys.stdin.read()
sys.exit(1)
"""
    monkeypatch.setattr(isolation, "_SAYS_S", 30.0)
    monkeypatch.setattr(isolation, "_LEAVES_S", 0.01)
    async with lone(script) as (one, word, process):
        assert await one.last_word() == "completed"
        assert process.returncode is None and not word.done()
        assert heard == [scripts.Ran("finish", {}, ["FINISHED"], 0.5, ["report", "completed", "completed", "7"])]
        one.let_go()
        assert await word == "completed"


@pytest.mark.anyio
async def test_a_process_that_has_lost_its_claim_and_says_nothing_has_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one has the task; nor has one that was killed."""
    monkeypatch.setattr(isolation, "_SAYS_S", 0.01)
    async with lone("import time; print('completed', flush=True); time.sleep(60)") as (one, word, process):
        assert await one.last_word() is None
        process.kill()
        assert await word is None
