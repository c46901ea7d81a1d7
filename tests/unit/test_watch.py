"""Waiting for a task: soon after it changed, ever more cheaply the longer it takes, also while the store is away."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, cast

import anyio
import pytest
from mcp.shared.exceptions import MCPError

from mcptasks.errors import StoreUnavailable
from mcptasks.model import Record, Status
from mcptasks.server import refusals, watch
from mcptasks.server.watch import Watch, pause_s

pytestmark = pytest.mark.anyio

RECORD = Record(
    task_id="t",
    tool="tool",
    owner="",
    status=Status.QUEUED,
    created_ms=0,
    updated_ms=0,
    ttl_ms=None,
    poll_ms=1_000,
    revision=1,
    token=0,
    attempt=0,
)


class Reads:
    """A store that answers each read with the next of these; the last one for ever."""

    def __init__(self, *answers: Record | Exception | None) -> None:
        self._answers = itertools.chain(answers, itertools.repeat(answers[-1]))
        self.count = 0

    async def read(self, task_id: str, owner: str) -> Record | None:
        self.count += 1
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def watching(*answers: Record | Exception | None) -> tuple[Watch, Reads]:
    """A watch of a store that answers so."""
    reads = Reads(*answers)
    return Watch(cast("Any", reads), RECORD), reads


def looks(seconds: float, poll_ms: int) -> list[float]:
    """When a task is looked at that does not change for that long."""
    times, now = list[float](), 0.0
    while (now := now + pause_s(now, poll_ms)) <= seconds:
        times.append(now)
    return times


def test_a_change_is_seen_a_tenth_late_and_waiting_is_cheap() -> None:
    """A call that waits for twenty seconds reads its task a hundred times, not two thousand; an hour, once a second."""
    times, hour = looks(20, poll_ms=1_000), looks(3_600, poll_ms=1_000)
    assert len(times) < 100 and len(hour) < 3_700
    for earlier, later in itertools.pairwise(hour):
        assert later - earlier <= min(max(watch.FLOOR_S, 0.1 * earlier), 1) + 1e-9


async def test_a_change_is_what_the_record_calls_one() -> None:
    """Reads that show the same revision are no news."""
    changed = replace(RECORD, revision=2)
    one, reads = watching(RECORD, RECORD, changed)
    assert await one.change() == changed
    assert reads.count == 3


async def test_the_deadline_comes_without_a_change() -> None:
    """The caller says how long; nothing is raised."""
    one, _ = watching(RECORD)
    assert await one.change(anyio.current_time() + 0.05) is None
    assert await one.change(anyio.current_time() - 1) is None


async def test_a_nudge_brings_what_there_is_at_once() -> None:
    """Also one that came before anybody waited."""
    one, reads = watching(RECORD)
    one.nudge()
    assert await one.change() == RECORD
    assert reads.count == 1


async def test_a_task_that_is_gone_is_an_error() -> None:
    """The text is that of every task that is not there."""
    one, _ = watching(None)
    with pytest.raises(MCPError, match="Task not found"):
        await one.change()


async def test_a_store_that_comes_back_was_never_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call must not fail for a restart of the store; the task does not."""
    monkeypatch.setattr(refusals, "_AWAY_S", 0.01)
    changed = replace(RECORD, revision=2)
    one, _ = watching(StoreUnavailable("away"), StoreUnavailable("away"), changed)
    assert await one.change() == changed


async def test_a_store_that_stays_away_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """-32603, in the words of every other request."""
    monkeypatch.setattr(refusals, "_AWAY_S", 0.01)
    monkeypatch.setattr(watch, "PATIENCE_S", 0.05)
    one, _ = watching(StoreUnavailable("away"))
    with pytest.raises(MCPError, match="The task store is not available") as away:
        await one.change()
    assert away.value.error.code == -32603
