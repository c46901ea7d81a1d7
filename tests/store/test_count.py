"""count: how many tasks there are in each status, of everybody, an owner, a tool; exactly."""

from __future__ import annotations

import pytest

from mcptasks.model import Status
from mcptasks.store import lists
from mcptasks.store.lists import Counts
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import (
    ANN,
    TERMINAL,
    claimed,
    create,
    end,
    ended,
    parked,
    queued,
    running,
    sleeping,
    submission,
)

pytestmark = pytest.mark.anyio


async def counted(store: TaskStore, owner: str | None = ANN, tool: str | None = None) -> dict[str, int]:
    """The numbers that are not nought."""
    counts = await store.count(owner, tool)
    return {str(status): number for status, number in counts.by_status.items() if number}


@covers("W8")
async def test_every_task_counts_in_its_status_and_in_its_owners_numbers_alone(store: TaskStore) -> None:
    """W8: by owner, by tool, and all together."""
    for make in (queued, running, running, parked, sleeping):
        await make(store)
    for status in TERMINAL:
        await ended(store, status)
    await queued(store, owner="bob")
    await create(store, call=submission("other"), owner="")
    mine = {"queued": 1, "running": 2, "parked": 1, "sleeping": 1, "completed": 1, "failed": 1, "cancelled": 1}
    assert await counted(store) == mine
    assert await counted(store, "bob") == {"queued": 1}
    assert await counted(store, None) == mine | {"queued": 3}
    assert await counted(store, None, "report") == mine | {"queued": 2}
    assert await counted(store, None, "other") == {"queued": 1}
    assert (await store.count(ANN)).unfinished == 5
    assert set((await store.count("nobody")).by_status.values()) == {0}


@covers("W8", "P81")
async def test_nobodys_tasks_are_counted_for_operators_alone(store: TaskStore) -> None:
    """P81: the anonymous caller is everybody."""
    await queued(store, owner="")
    assert await counted(store, "") == {}
    assert await counted(store, None) == {"queued": 1}


async def test_more_tasks_than_one_script_looks_at_are_counted_once_each(
    store: TaskStore, peek: Peek, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where several are of one millisecond."""
    monkeypatch.setattr(lists, "_LOOKS", 2)
    tasks = [await queued(store) for _ in range(7)]
    await ended(store)
    peek.raw.zadd(f"{peek.keys.tasks_of_owner(ANN)}active", dict.fromkeys(tasks[:5], peek.now_ms()))
    reply = await store.run_script(
        "count",
        store.fleet("ids"),
        {
            "list": peek.keys.tasks_of_owner(ANN).removeprefix(peek.keys.prefix),
            "tool": None,
            "after_ms": None,
            "after_id": None,
            "looks": 2,
            "batch": 9,
        },
    )
    assert (reply[:3], reply[3][:2]) == (["MORE", "0", "0"], ["queued", "2"])
    assert await counted(store) == {"queued": 7, "completed": 1}


@covers("R7")
async def test_an_overdue_task_counts_in_no_status(store: TaskStore, peek: Peek) -> None:
    """R7: running tasks never include overdue ones, and it has not failed yet."""
    peek.expire((await running(store)).task_id)
    await running(store)
    counts = await store.count(ANN)
    assert (counts.by_status[Status.RUNNING], counts.overdue, counts.unfinished) == (1, 1, 2)


@covers("W8", "R7")
async def test_what_redis_has_dropped_is_never_counted(store: TaskStore, peek: Peek) -> None:
    """Neither ended nor unfinished, however many have gone since anybody looked."""
    for _ in range(3):
        peek.drop((await ended(store)).task_id)
        peek.drop(await queued(store))
    await ended(store)
    args = {"list": "list:", "tool": None, "after_ms": None, "after_id": None, "looks": 9, "batch": 4}
    assert await store.run_script("count", store.fleet("ids"), args) == ["AGAIN"]
    assert (await store.run_script("count", store.fleet("ids"), args | {"batch": 99}))[0] == "COUNTED"
    assert await counted(store) == await counted(store, None) == {"completed": 1}


@covers("W9")
async def test_a_record_of_a_newer_schema_is_counted_as_that(store: TaskStore, peek: Peek) -> None:
    """W9: its status may mean something else."""
    peek.put(await queued(store), v="2", status="a status of the future")
    counts = await store.count(None)
    assert (counts.newer, counts.unfinished, sum(counts.by_status.values())) == (1, 1, 0)
    assert isinstance(counts, Counts)


@covers("W8")
@pytest.mark.parametrize("looks", [2, 1_000])
async def test_one_tool_of_one_owner_is_counted_exactly(
    store: TaskStore, peek: Peek, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """W8: in every status, whatever else the owner has, and whoever else has the tool; a few looks at a time."""
    monkeypatch.setattr(lists, "_LOOKS", looks)
    for tool in ("report", "other"):
        for owner in (ANN, "bob"):
            for status in TERMINAL:
                task_id = (await create(store, call=submission(tool), owner=owner)).task_id
                await end(store, await claimed(store, task_id), status)
            await create(store, call=submission(tool), owner=owner)
    await queued(store)
    peek.expire(await queued(store))
    peek.drop((await ended(store)).task_id)
    peek.put(await queued(store), v="2", status="a status of the future")
    ends = {"completed": 1, "failed": 1, "cancelled": 1}
    assert await counted(store, ANN, "report") == ends | {"queued": 2}
    assert await counted(store, "bob", "report") == ends | {"queued": 1}
    assert await counted(store, ANN, "none") == await counted(store, "nobody", "report") == {}
    counts = await store.count(ANN, "report")
    assert (counts.overdue, counts.newer, counts.unfinished) == (1, 1, 4)
    assert await counted(store, ANN) == dict.fromkeys(ends, 2) | {"queued": 3}
