"""Commands that look again and again: how often, and what they keep in mind meanwhile."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Any, Final, cast

import pytest

from mcptasks.cli import logs
from mcptasks.observe.timeline import Entry
from mcptasks.operations import Operations
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore

pytestmark = pytest.mark.anyio

TOOK_S: Final = 0.1


async def test_a_drain_of_very_many_tasks_leaves_the_store_to_those_who_work_on_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A list of a million ids takes a second: ten looks a second would be the end of every worker's turn."""
    looks, left, told = list[tuple[float, float]](), [["a", "b"], ["a"], ["a"], []], list[int]()

    async def active(_: TaskStore) -> list[str]:
        began_s = time.monotonic()
        await asyncio.sleep(TOOK_S)
        looks.append((began_s, time.monotonic()))
        return left.pop(0)

    monkeypatch.setattr(TaskStore, "active", active)
    async with Operations(Settings()) as fleet:
        await fleet.drained(told.append)
    assert told == [2, 1, 1]
    for (began_s, ended_s), (next_s, _) in pairwise(looks):
        assert next_s - ended_s >= 3 * (ended_s - began_s)


def test_followed_logs_keep_in_mind_what_is_still_there_and_no_more() -> None:
    """A task that reports its progress for a week has a timeline of 256 entries, and this command no more."""
    fresh, told = cast("Any", logs)._fresh, set[str]()
    first = newest = Entry(at_ms=0, what="claim", about={"run": 1})
    for number in range(1_000):
        newest = Entry(at_ms=number, what="progress", about={"reports": number})
        found, told = fresh([first, newest], told)
        assert found == ([first, newest] if number == 0 else [newest])
        assert len(told) == 2
    assert fresh([], told) == ([], told)
    assert fresh([first, newest], told)[0] == []
