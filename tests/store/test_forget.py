"""forget: nothing is left in the indexes of tasks whose keys Redis has dropped."""

from __future__ import annotations

import pytest

from mcptasks.fleet.sweeper import sweep
from mcptasks.policy import Policy
from mcptasks.store.base import FORGET_BATCH
from mcptasks.store.keys import NEVER
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.test_sweeper import Outbox
from tests.support.peek import Peek
from tests.support.tasks import TERMINAL, Terminal, ended, queued

pytestmark = pytest.mark.anyio


@covers("R7")
@pytest.mark.parametrize("status", TERMINAL)
async def test_a_dropped_tasks_entries_go_and_no_others(store: TaskStore, peek: Peek, status: Terminal) -> None:
    """Whichever lists it stood in."""
    left = (await ended(store, status)).task_id
    before = {name for name in peek.all_keys() if peek.holds(name, left)}
    for task_id in ((await ended(store, status)).task_id, await queued(store)):
        peek.drop(task_id)
    assert await store.run_script("forget", store.fleet("ids"), {"batch": 1}) == ["MORE", "1"]
    assert await store.run_script("forget", store.fleet("ids"), {"batch": 2}) == ["FORGOTTEN", "1"]
    assert {name for name in peek.all_keys() if peek.holds(name, left)} == before
    for name in (peek.keys.ids, peek.keys.drops, f"{peek.keys.tasks}{status}"):
        assert peek.raw.zcard(name) == 1
    assert peek.raw.zcard(f"{peek.keys.tasks}active") == 0


@pytest.mark.unlimited
async def test_what_is_there_is_not_forgotten(store: TaskStore, peek: Peek) -> None:
    """Neither an unlimited task nor one whose time is not over."""
    await queued(store, policy=Policy(unlimited=True))
    await ended(store)
    assert await store.forget() is False
    assert peek.raw.zcard(peek.keys.ids) == 2
    assert peek.raw.zcount(peek.keys.drops, NEVER, "+inf") == 1, "the doctor counts it"


@covers("R7")
async def test_the_sweeper_forgets_all_that_is_gone_and_only_the_sweeper(store: TaskStore, peek: Peek) -> None:
    """More than a batch of them, in one round."""
    for _ in range(FORGET_BATCH + 1):
        peek.drop(await queued(store))
    await store.sweep("another")
    await sweep(store, "me", Outbox())
    assert peek.raw.zcard(peek.keys.drops) == FORGET_BATCH + 1
    await sweep(store, "another", Outbox())
    assert peek.raw.zcard(peek.keys.drops) == peek.raw.zcard(peek.keys.ids) == 0
