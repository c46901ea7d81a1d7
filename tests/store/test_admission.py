"""The fleet's door: create refuses new tasks before any record exists; active lists what was admitted and goes on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Literal

import pytest

from mcptasks.model import Status
from mcptasks.policy import Policy
from mcptasks.store.callers import Created, Refused
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import (
    ANN,
    TERMINAL,
    Terminal,
    claimed,
    create,
    end,
    ended,
    offer,
    parked,
    queued,
    running,
    submission,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def door(store: TaskStore) -> AsyncGenerator[TaskStore]:
    """The store, whose admission is open again in the end: a closed one has no expiry, on purpose."""
    yield store
    await store.open_admission()


# ------------------------------------------------------------------------------------------------ open and closed


async def test_a_closed_door_refuses_new_tasks_with_its_reason_and_stores_nothing(
    door: TaskStore, open_store: OpenStore, peek: Peek
) -> None:
    """T1: before any record exists; on every server of the store, until it is opened again."""
    assert await door.admission() is None
    await door.close_admission("Upgrade until noon")
    assert await open_store().admission() == "Upgrade until noon"
    before = peek.all_keys()
    assert await offer(open_store(), key="k") == Refused("closed", "Upgrade until noon")
    assert peek.all_keys() == before
    await door.open_admission()
    await create(open_store(), key="k")


@covers("P23")
async def test_what_was_admitted_goes_on_behind_a_closed_door(door: TaskStore) -> None:
    """T1; a retried call finds its task, a cancel and an answer reach theirs."""
    known = await create(door, key="k")
    waits = await parked(door, "q")
    await door.close_admission("Upgrade")
    assert await offer(door, key="k") == Created("EXISTS", known.task_id)
    assert await end(door, await claimed(door, known.task_id)) == "FINISHED"
    assert (await door.answer(waits.task_id, ANN, {"q": 1})).outcome == "QUEUED"
    assert (await claimed(door, waits.task_id, run=2)).token == 2


# ------------------------------------------------------------------------------------------------ limits


@pytest.mark.parametrize(
    ("limit", "what", "free"),
    [("owner_max", "owner", {"owner": "bob"}), ("tool_max", "tool", {"call": submission("my other tool")})],
)
async def test_one_task_over_a_limit_is_refused_and_others_are_not(
    open_store: OpenStore, peek: Peek, limit: str, what: Literal["owner", "tool"], free: dict[str, Any]
) -> None:
    """One caller or tool must not take the fleet from all others. Nothing is left of the refused call."""
    store = open_store(**{limit: 2})
    for _ in range(2):
        await create(store)
    before = peek.all_keys()
    assert await offer(store, key="k") == Refused(what, "2")
    assert peek.all_keys() == before
    await create(store, **free)


@pytest.mark.parametrize("status", TERMINAL)
@pytest.mark.parametrize("tool", ["report", "a tool with spaces"])
async def test_an_ended_task_makes_room(open_store: OpenStore, tool: str, status: Terminal) -> None:
    """T5: every way to end releases what admission reserved."""
    store = open_store(owner_max=1, tool_max=1)
    for _ in range(3):
        made = await create(store, call=submission(tool))
        assert isinstance(await offer(store, call=submission(tool)), Refused)
        await end(store, await claimed(store, made.task_id), status)


async def test_a_task_that_redis_dropped_makes_room(open_store: OpenStore, peek: Peek) -> None:
    """A limit must not be used up by what no longer exists."""
    store = open_store(owner_max=1)
    task_id = await queued(store)
    peek.drop(task_id)
    await create(store)


async def test_a_full_queue_takes_no_more_until_a_worker_claims(open_store: OpenStore) -> None:
    """Better a clear refusal than a wait nobody can foresee."""
    store = open_store(queue_max=1)
    task_id = await queued(store)
    assert await offer(store) == Refused("queue", "1")
    await claimed(store, task_id)
    await create(store)


@covers("F03")
async def test_an_odd_owner_has_a_share_too(open_store: OpenStore) -> None:
    """F03: owners are strings of a configured function."""
    store = open_store(owner_max=1)
    await create(store, owner="\ud83d")
    assert await offer(store, owner="\ud83d") == Refused("owner", "1")
    await create(store, owner="\ud83e")


# ------------------------------------------------------------------------------------------------ active


async def test_what_is_admitted_and_unfinished_is_listed_in_order(store: TaskStore) -> None:
    """T2: queued work included; lexical order, for stable logs."""
    assert await store.run_script("active", store.fleet("ids"), {"batch": 1}) == ["ACTIVE"]
    tasks = [await queued(store), (await running(store)).task_id, (await parked(store)).task_id]
    for status in TERMINAL:
        await ended(store, status)
    assert await store.active() == sorted(tasks)


async def test_a_drain_ends_when_the_last_task_has_settled(store: TaskStore, peek: Peek) -> None:
    """T4: whichever way it ends."""
    finished, cancelled, expired = await running(store), await queued(store), await parked(store)
    await end(store, finished)
    await store.cancel(cancelled, ANN, "No more")
    assert await store.active() == [expired.task_id]
    peek.expire(expired.task_id)
    await store.reap(expired.task_id)
    assert await store.active() == []


async def test_a_dropped_task_is_not_waited_for(store: TaskStore, peek: Peek) -> None:
    """Nobody would ever settle it. Many of them are cleared away in several goes."""
    for _ in range(3):
        peek.drop(await queued(store))
    assert await store.run_script("active", store.fleet("ids"), {"batch": 2}) == ["AGAIN"]
    assert await store.active() == []


@pytest.mark.unlimited
async def test_an_unlimited_task_is_active_until_it_ends(store: TaskStore) -> None:
    """However old it is."""
    claim = await running(store, policy=Policy(unlimited=True))
    await queued(store)
    assert claim.task_id in await store.active()
    await end(store, claim)
    assert claim.task_id not in await store.active()


# ------------------------------------------------------------------------------------------------ the operator's cancel


async def test_the_operator_cancels_anybodys_task_and_says_why(store: TaskStore) -> None:
    """T3: the reason becomes the status message, at once or when the run has stopped."""
    waits, runs = await queued(store, owner="bob"), await running(store, owner="carol")
    assert await store.cancel(waits, None, "Datacentre moves") == "CANCELLED"
    assert await store.cancel(runs.task_id, None, "Datacentre moves") == "REQUESTED"
    await end(store, runs, Status.CANCELLED)
    for task_id in (waits, runs.task_id):
        record = await store.read(task_id, None)
        assert record is not None
        assert (record.status, record.status_message) == (Status.CANCELLED, "Datacentre moves")


async def test_a_caller_is_not_the_operator(store: TaskStore) -> None:
    """W9: an empty owner is the anonymous caller and nobody else."""
    task_id = await queued(store, owner="bob")
    assert await store.cancel(task_id, "", "No more") == "GONE"
