"""defer: the task waits for a worker that can run it, each time longer; in the end it has failed with an error."""

from __future__ import annotations

import pytest

from mcptasks.model import Hint, Reason, Status
from mcptasks.policy import Policy
from mcptasks.store.base import Next
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import ANN, asking, claimed, parked, question, read, running

pytestmark = pytest.mark.anyio

NOBODY = {"code": -32603, "message": "no worker has the tool"}


@covers("E08")
async def test_the_sweeper_offers_it_again_when_its_time_has_come(store: TaskStore, peek: Peek) -> None:
    """E08: no loop of claims and releases; no attempt is used up, and no message sits in a worker's memory."""
    claim = await running(store, policy=Policy(queue="slow"))
    peek.age(claim.task_id)
    first, *_ = store.settings.deferrals_ms
    before = peek.now_ms()
    assert await store.defer(claim, "Waits for a worker", NOBODY) == Next("DEFERRED", detail=str(first))
    record = await read(store, claim.task_id)
    assert (record.status, record.status_message, record.worker) == (Status.RETRYING, "Waits for a worker", None)
    assert peek.updated(claim.task_id), "the message is new to the client"
    found = peek.stored(claim.task_id)
    assert found.indexes.keys() == {"unsent", "expiry"}
    assert before <= found.indexes["unsent"] - first <= peek.now_ms()
    peek.put(claim.task_id, due="1")
    peek.make_due("unsent", claim.task_id)
    message = Hint(task_id=claim.task_id, run=2, tool="report", queue="slow")
    assert await store.reap(claim.task_id) == Next("DUE", message)
    assert (await claimed(store, claim.task_id, run=2)).record.attempt == 1


@covers("E08")
async def test_when_nobody_took_it_in_time_it_fails_with_the_error(open_store: OpenStore, peek: Peek) -> None:
    """E08: bounded attempts, then an end that says why."""
    store = open_store(deferrals_ms=(1_000, 2_000))
    claim = await running(store)
    for run, delay in ((1, "1000"), (2, "2000")):
        assert (await store.defer(claim, "Waits", NOBODY)).detail == delay
        peek.put(claim.task_id, due="1")
        claim = await claimed(store, claim.task_id, run=run + 1)
    assert await store.defer(claim, "Waits", NOBODY) == Next("EXHAUSTED")
    record = await read(store, claim.task_id)
    assert (record.status, record.reason, record.error) == (Status.FAILED, Reason.FAILED, NOBODY)
    assert record.status_message == NOBODY["message"]


async def test_a_run_that_parks_begins_the_count_anew(open_store: OpenStore, peek: Peek) -> None:
    """The next deploy, days later, is another one."""
    store = open_store(deferrals_ms=(1_000,))
    claim = await running(store)
    await store.defer(claim, "Waits", NOBODY)
    peek.put(claim.task_id, due="1")
    claim = await claimed(store, claim.task_id, run=2)
    assert (await store.ask(claim, asking(question("sure")), guard=None, hold=False)).outcome == "PARKED"
    await store.answer(claim.task_id, ANN, {"sure": 1})
    claim = await claimed(store, claim.task_id, run=3)
    assert (await store.defer(claim, "Waits", NOBODY)).outcome == "DEFERRED"


async def test_a_held_task_goes_on_waiting_for_its_answers(store: TaskStore) -> None:
    claim = await parked(store, "sure", hold=True)
    assert await store.defer(claim, "Waits", NOBODY) == Next("COLD")
    assert (await read(store, claim.task_id)).status is Status.PARKED


@covers("A08")
async def test_one_that_was_to_be_cancelled_is(store: TaskStore) -> None:
    claim = await running(store)
    await store.cancel(claim.task_id, ANN, "No more")
    assert await store.defer(claim, "Waits", NOBODY) == Next("CANCELLED")
    assert (await read(store, claim.task_id)).status_message == "No more"


async def test_a_run_that_is_over_puts_nothing_off(store: TaskStore, peek: Peek) -> None:
    """STALE, TERMINAL and GONE are every fenced script's; here the first of them."""
    claim = await running(store)
    await store.defer(claim, "Waits", NOBODY)
    before = peek.stored(claim.task_id)
    assert await store.defer(claim, "Waits", NOBODY) == Next("STALE")
    assert peek.stored(claim.task_id) == before
