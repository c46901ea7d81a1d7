"""read: the task as it is now, for its owner; writes nothing."""

from __future__ import annotations

import pytest

from mcptasks.errors import SchemaTooNew
from mcptasks.model import Status
from mcptasks.policy import Policy
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN, TERMINAL, Terminal, ended, parked, queued, read, running

pytestmark = pytest.mark.anyio


@covers("P60", "P80", "R2", "B01")
async def test_a_foreign_task_and_no_task_are_one_answer(store: TaskStore) -> None:
    """Invariant 9: missing and not-yours are the same to the caller."""
    task_id = await queued(store)
    for owner in ("bob", "", "ANN"):
        assert await store.read(task_id, owner) is None
    assert await store.read("nobody", ANN) is None


async def test_the_anonymous_callers_tasks_are_not_everybodys(store: TaskStore) -> None:
    """W9: an absent owner never raises privileges."""
    task_id = await queued(store, owner="")
    assert await store.read(task_id, ANN) is None
    assert await store.read(task_id, "") is not None


async def test_the_operator_sees_every_task(store: TaskStore) -> None:
    """W8: and only the operator; None is no owner a caller can have."""
    task_id = await queued(store)
    record = await store.read(task_id, None)
    assert record is not None
    assert record.owner == ANN


@covers("P35")
async def test_reading_writes_nothing(store: TaskStore, peek: Peek) -> None:
    """SEP-2663: a poll never changes lastUpdatedAt. One script, and none of its commands is a write."""
    tasks = [await queued(store), (await running(store)).task_id, (await parked(store)).task_id]
    tasks += [(await ended(store, status)).task_id for status in TERMINAL]
    before = [peek.stored(task_id) for task_id in tasks]
    peek.raw.config_resetstat()
    for task_id in tasks:
        await store.read(task_id, ANN)
        await store.read(task_id, "bob")
    commands = {name for name in peek.raw.info("commandstats") if "|" not in name} - {"cmdstat_hello", "cmdstat_info"}
    assert commands == {f"cmdstat_{name}" for name in ("evalsha", "time", "hget", "hgetall", "get")}
    assert [peek.stored(task_id) for task_id in tasks] == before


@covers("P34")
async def test_the_poll_interval_is_longer_while_a_person_is_waited_for(store: TaskStore) -> None:
    """SEP-2663: an honest pollIntervalMs."""
    claim = await running(store)
    assert (await read(store, claim.task_id)).poll_ms == store.settings.poll_ms
    waits = await parked(store)
    assert (await read(store, waits.task_id)).poll_ms == store.settings.poll_parked_ms


async def test_a_task_keeps_the_intervals_it_was_created_with(store: TaskStore, peek: Peek) -> None:
    """They are the task's, whichever server answers."""
    task_id = await queued(store, policy=Policy(ttl_ms=70_000))
    peek.put(task_id, poll="123")
    record = await read(store, task_id)
    assert (record.poll_ms, record.ttl_ms) == (123, 70_000)


@covers("W9")
async def test_a_record_of_a_newer_schema_is_refused_with_what_to_do(store: TaskStore, peek: Peek) -> None:
    """W9: never misread."""
    task_id = await queued(store)
    peek.put(task_id, v="2", status="a status of the future")
    with pytest.raises(SchemaTooNew, match=r"schema 2, this one reads 1.*upgrade this process") as refused:
        await store.read(task_id, ANN)
    assert task_id not in str(refused.value), "an id is a secret where there is no authentication"
    assert await store.read(task_id, "bob") is None, "and it is nobody else's business which schema it has"


@covers("F11")
@pytest.mark.parametrize(
    "task_id",
    ["", " ", "*", "a:b", "../x", "x\r\nX: y", "\x00", "{x}", "x}:call", "é", "e\u0301", "\ud83d", "x" * 1_000_000],
    ids=["empty", "space", "star", "colon", "path", "header", "nul", "tag", "own", "nfc", "nfd", "surrogate", "1MB"],
)
async def test_an_odd_id_is_no_task_and_no_error(store: TaskStore, peek: Peek, task_id: str) -> None:
    """F11: ids come from outside. No odd one finds another task, costs a scan, or breaks the client."""
    await queued(store)
    peek.raw.config_resetstat()
    assert await store.read(task_id, ANN) is None
    assert (await store.answer(task_id, ANN, {"q": 1})).outcome == "GONE"
    assert await store.cancel(task_id, ANN, "No more") == "GONE"
    assert not {"cmdstat_scan", "cmdstat_keys"} & set(peek.raw.info("commandstats"))


@pytest.mark.parametrize("status", TERMINAL)
async def test_an_ended_task_has_its_own_payload_and_no_other(store: TaskStore, status: Terminal) -> None:
    """P12: a result, or an error, or nothing."""
    record = await read(store, (await ended(store, status)).task_id)
    assert (record.result is not None, record.error is not None) == (
        status is Status.COMPLETED,
        status is Status.FAILED,
    )
