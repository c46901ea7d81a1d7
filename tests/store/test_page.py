"""page: an owner's tasks, or everybody's, newest first, page by page; whatever is created or ends meanwhile."""

from __future__ import annotations

import itertools

import pytest

from mcptasks.errors import BadCursor
from mcptasks.model import Reason, Status, new_task_id
from mcptasks.policy import Policy
from mcptasks.store import lists
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import (
    ANN,
    claimed,
    create,
    end,
    ended,
    parked,
    queued,
    read,
    running,
    sleeping,
    submission,
)

pytestmark = pytest.mark.anyio


async def pages(store: TaskStore, owner: str | None = ANN, *, limit: int = 2, **how: object) -> list[list[str]]:
    """The ids, page by page."""
    found: list[list[str]] = []
    cursor = None
    while True:
        page = await store.page(owner, limit=limit, cursor=cursor, **how)  # pyright: ignore[reportArgumentType]
        found.append([task.task_id for task in page.tasks])
        if page.cursor is None:
            return found
        cursor = page.cursor


def flat(found: list[list[str]]) -> list[str]:
    """The ids of all pages."""
    return list(itertools.chain(*found))


def newest_first(peek: Peek, tasks: list[str]) -> list[str]:
    """In the order of their creation, and of their ids where that is the same millisecond."""
    return sorted(tasks, key=lambda task_id: (int(peek.field(task_id, "created") or 0), task_id), reverse=True)


@covers("W8")
async def test_pages_hold_all_tasks_once_newest_first(store: TaskStore, peek: Peek) -> None:
    """W8: unfinished and ended ones together, each page as full as it can be."""
    tasks = [await queued(store), (await parked(store)).task_id, (await ended(store)).task_id]
    tasks += [(await ended(store, Status.FAILED)).task_id, (await running(store)).task_id]
    found = await pages(store)
    assert flat(found) == newest_first(peek, tasks)
    assert [len(page) for page in found] == [2, 2, 1]


@covers("W8")
async def test_tasks_of_one_millisecond_are_neither_lost_nor_told_twice(store: TaskStore, peek: Peek) -> None:
    """More of them than are read at once."""
    tasks = [await queued(store) for _ in range(120)]
    moment = peek.now_ms()
    for name in (peek.keys.tasks, peek.keys.tasks_of_owner(ANN), peek.keys.tasks_of_tool("report")):
        peek.raw.zadd(f"{name}active", dict.fromkeys(tasks, moment))
    for limit in (7, 50, 60, 120):
        assert flat(await pages(store, limit=limit)) == sorted(tasks, reverse=True), limit


@covers("W8")
async def test_what_is_created_or_ends_between_two_pages_moves_nothing(store: TaskStore, peek: Peek) -> None:
    """W8: no task appears twice or is skipped."""
    claims = [await running(store) for _ in range(6)]
    order = newest_first(peek, [claim.task_id for claim in claims])
    first = await store.page(ANN, limit=3)
    peek.tick()
    for _ in range(4):
        await queued(store)
    for claim in claims[::2]:
        await end(store, claim)
    second = await store.page(ANN, limit=10, cursor=first.cursor)
    assert [task.task_id for task in (*first.tasks, *second.tasks)] == order
    assert second.cursor is None


@covers("W8")
async def test_a_status_and_a_tool_are_picked_before_the_page_is_cut(
    store: TaskStore, peek: Peek, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W8: scoped before limited, also where more are passed over than one script looks at."""
    monkeypatch.setattr(lists, "_LOOKS", 3)
    wanted = [(await create(store, call=submission("rare"))).task_id for _ in range(3)]
    sleeps = (await sleeping(store)).task_id
    for _ in range(10):
        await queued(store)
        await ended(store)
    assert flat(await pages(store, tool="rare")) == newest_first(peek, wanted)
    assert flat(await pages(store, None, tool="rare")) == newest_first(peek, wanted)
    assert flat(await pages(store, statuses=[Status.SLEEPING])) == [sleeps]
    await end(store, await claimed(store, wanted[0]))
    assert flat(await pages(store, tool="rare", statuses=[Status.COMPLETED])) == [wanted[0]]
    assert len(flat(await pages(store, statuses=[Status.COMPLETED, Status.SLEEPING]))) == 12


@covers("W8")
async def test_an_owner_sees_no_other_and_the_operator_sees_all(store: TaskStore) -> None:
    """W8: a foreign task does not even take a place on the page."""
    mine, yours, nobodys = await queued(store), await queued(store, owner="bob"), await queued(store, owner="")
    assert flat(await pages(store, ANN, limit=1)) == [mine]
    assert flat(await pages(store, "bob", limit=1)) == [yours]
    assert sorted(flat(await pages(store, None))) == sorted([mine, yours, nobodys])


@covers("W8", "P81")
async def test_what_has_no_owner_is_listed_for_operators_alone(store: TaskStore) -> None:
    """P81: without authentication an id is a secret, and everybody is the same caller."""
    await queued(store, owner="")
    assert (await store.page("", limit=10)).tasks == []


@covers("F11", "W8")
@pytest.mark.parametrize(
    "cursor", ["", ".", "1", "*", "-1.x", "zz." + "x" * 32, "1." + "x" * 33, "1." + "x" * 31 + "\n", "f" * 13 + ".a"]
)
async def test_a_cursor_that_is_none_of_ours_is_refused(store: TaskStore, cursor: str) -> None:
    """It comes from outside, and says nothing but a place in a list."""
    with pytest.raises(BadCursor):
        await store.page(ANN, limit=10, cursor=cursor)


async def test_a_cursor_of_one_caller_gives_another_only_his_own(store: TaskStore, peek: Peek) -> None:
    """It is a place, not a permit."""
    yours = await queued(store, owner="bob")
    peek.tick()
    await queued(store)
    await queued(store)
    cursor = (await store.page(ANN, limit=1)).cursor
    assert [task.task_id for task in (await store.page("bob", limit=10, cursor=cursor)).tasks] == [yours]


@covers("W8")
async def test_a_summary_says_what_the_record_says(store: TaskStore, peek: Peek) -> None:
    """Of a task that asks, and of one that has ended."""
    claim = await parked(store, "a", "b", policy=Policy(queue="slow"))
    peek.tick()
    done = await running(store, worker="w9")
    await store.progress(done, "Half way (1/2)", 1, 2)
    await store.finish(done, Status.COMPLETED, Reason.COMPLETED, message="Done", payload="{}")
    newest, oldest = (await store.page(ANN, limit=10)).tasks
    for summary in (newest, oldest):
        record = await read(store, summary.task_id)
        for name in lists.Summary.__slots__:
            if name not in ("questions", "progress"):
                assert getattr(summary, name) == getattr(record, name), name
        assert summary.questions == len(record.questions)
        assert summary.progress == record.progress
    assert (oldest.task_id, oldest.questions, newest.questions) == (claim.task_id, 2, 0)


@covers("W8", "W9")
async def test_records_that_are_gone_or_too_new_are_left_out(store: TaskStore, peek: Peek) -> None:
    """W9: never misread; what is only an entry any more is cleared away."""
    newer, gone, left = await queued(store), await queued(store), await queued(store)
    peek.put(newer, v="2", status="a status of the future")
    peek.raw.delete(peek.keys.task(gone))
    page = await store.page(ANN, limit=10)
    assert ([task.task_id for task in page.tasks], page.newer, page.cursor) == ([left], 1, None)
    assert not {name for name in peek.all_keys() if peek.holds(name, gone)} - {peek.keys.unsent, peek.keys.expiry}


async def test_one_script_looks_at_no_more_than_it_is_told(store: TaskStore, peek: Peek) -> None:
    """However many there are that do not fit; the place where it stopped is where the next one begins."""
    tasks = newest_first(peek, [await queued(store) for _ in range(5)])
    args = {"list": "list:", "after_ms": None, "after_id": None, "owner": None, "operator": "1", "tool": "other"}
    args |= {"room": 9, "looks": 3, "columns": "id", "statuses": ["queued"]}
    reply = await store.run_script("page", store.fleet("ids"), args)
    assert reply == ["MORE", "0", [], peek.field(tasks[2], "created"), tasks[2]]
    args |= {"after_ms": reply[3], "after_id": reply[4], "tool": None}
    answer, _, rows = await store.run_script("page", store.fleet("ids"), args)
    assert (answer, [row[0] for row in rows]) == ("END", tasks[3:])


async def test_other_stores_lists_are_other_lists(store: TaskStore, open_store: OpenStore) -> None:
    """Everything stands below the prefix."""
    await queued(store)
    assert (await open_store(prefix="other:").page(None, limit=10)).tasks == []


async def test_an_unknown_status_filter_finds_nothing(store: TaskStore) -> None:
    """No status at all is not every status."""
    await queued(store)
    assert (await store.page(ANN, limit=10, statuses=[])).tasks == []
    assert new_task_id() not in flat(await pages(store))
