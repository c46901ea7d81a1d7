"""purge: tasks that have ended are gone before their time, with all that is stored of them."""

from __future__ import annotations

import pytest

from mcptasks.model import Status
from mcptasks.operations import Operations
from mcptasks.settings import Settings
from mcptasks.store import retention
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import ANN, TERMINAL, Terminal, artifact, claimed, create, end, ended, queued, running

pytestmark = pytest.mark.anyio

LATER: int = 9_000_000_000_000


@covers("R7")
@pytest.mark.parametrize("status", TERMINAL)
async def test_nothing_is_left_of_a_purged_task_but_its_files_for_the_sweeper(
    store: TaskStore, peek: Peek, status: Terminal
) -> None:
    """R7: every key and index entry, and a new call with its idempotency key makes a new task."""
    created = await create(store, key="k", digest="d")
    claim = await claimed(store, created.task_id)
    await store.reserve(claim)
    await store.artifact(claim, artifact())
    await store.step(claim, "s#1", "1")
    await end(store, claim, status)
    args = {"before_ms": LATER, "tasks": [claim.task_id]}
    assert await store.run_script("purge", store.fleet("ids"), args) == ["PURGED", "1"]
    assert {name for name in peek.all_keys() if claim.task_id in name} == set()
    assert {name for name in peek.all_keys() if peek.holds(name, claim.task_id)} == {peek.keys.artifacts}
    assert await store.discard() == [claim.task_id]
    assert (await create(store, key="k", digest="other")).outcome == "CREATED"
    assert await store.purge([claim.task_id], LATER) == 0


@covers("N5", "W9")
async def test_what_has_not_ended_or_ended_later_stays(store: TaskStore, peek: Peek) -> None:
    """Also where its id was given; and what a newer mcptasks wrote."""
    unfinished, old, new, future = await running(store), await ended(store), await ended(store), await ended(store)
    moment = int(peek.field(new.task_id, "updated") or 0)
    peek.put(old.task_id, updated=str(moment - 1))
    peek.put(future.task_id, updated="1", v="2")
    tasks = [claim.task_id for claim in (unfinished, old, new, future)]
    before = {key: peek.value(key) for key in peek.all_keys() if old.task_id not in key}
    assert await store.purge([*tasks, "u" * 32], moment) == 1
    assert await store.read(old.task_id, None) is None
    after = {key: peek.value(key) for key in peek.all_keys()}
    assert {key for key in before if after.get(key) != before[key]} <= {
        *(peek.keys.ids, peek.keys.drops, f"{peek.keys.tasks}completed"),
        *(f"{peek.keys.tasks_of_owner(ANN)}completed", f"{peek.keys.tasks_of_tool('report')}completed"),
    }
    assert (await store.count(None)).by_status[Status.COMPLETED] == 2


async def test_operators_purge_by_tool_owner_and_end_in_batches(
    settings: Settings, open_store: OpenStore, peek: Peek, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are."""
    monkeypatch.setattr(retention, "PURGE_BATCH", 3)
    monkeypatch.setattr("mcptasks.operations.PURGE_BATCH", 3)
    store = open_store()
    mine = [(await ended(store)).task_id for _ in range(7)]
    await ended(store, "failed")  # pyright: ignore[reportArgumentType]
    await ended(store, owner="bob")
    await queued(store)
    async with Operations(settings) as fleet:
        found = [
            task
            async for tasks in fleet.ended_before(LATER, owner=ANN, tool="report", statuses=[Status.COMPLETED])
            for task in tasks
        ]
        assert sorted(found) == sorted(mine)
        assert [tasks async for tasks in fleet.ended_before(peek.now_ms() - 60_000)] == []
        assert await fleet.purge(found, LATER) == 7
        counts = await fleet.count()
    assert {str(status): count for status, count in counts.by_status.items() if count} == {
        "queued": 1,
        "completed": 1,
        "failed": 1,
    }
