"""The sweeper's round: how much of what is overdue it moves on at once."""

from __future__ import annotations

import asyncio

import pytest

from mcptasks.fleet.sweeper import Sweeper, sweep
from mcptasks.model import Envelope, Hint
from mcptasks.policy import Policy
from mcptasks.store.store import TaskStore
from mcptasks.store.upkeep import SWEEP_BATCH
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import queued, running
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

MANY = 2 * SWEEP_BATCH + 1


class Outbox:
    """Keeps the messages."""

    def __init__(self) -> None:
        self.sent: list[Hint] = []

    def send(self, hint: Hint) -> None:
        """It is kept."""
        self.sent.append(hint)

    def envelope(self, hint: Hint) -> Envelope | None:
        """There is no queue to push to."""


@covers("N4")
async def test_all_retries_that_are_due_go_out_in_one_round(store: TaskStore, peek: Peek) -> None:
    """At most a sweep late, however many have the same moment."""
    for _ in range(MANY):
        claim = await running(store, policy=Policy(retry_ms=(3_600_000,)))
        await store.retry(claim, "Busy", '{"code":-32051,"message":"Busy"}')
        peek.make_due("unsent", claim.task_id)
    outbox = Outbox()
    await sweep(store, "me", outbox)
    assert len(outbox.sent) == MANY


@covers("A03")
async def test_of_messages_that_nobody_claimed_a_batch_is_sent_again(store: TaskStore, peek: Peek) -> None:
    """The fleet may only be slow."""
    for _ in range(MANY):
        peek.make_due("unsent", await queued(store))
    outbox = Outbox()
    await sweep(store, "me", outbox)
    assert len(outbox.sent) == SWEEP_BATCH
    await sweep(store, "me", outbox)
    await sweep(store, "me", outbox)
    assert len({hint.task_id for hint in outbox.sent}) == len(outbox.sent) == MANY


@covers("W9")
async def test_tasks_of_a_newer_schema_do_not_hide_others_from_the_sweeper(store: TaskStore, peek: Peek) -> None:
    """Two batches of them, overdue for the longest, and one task that is to move on all the same; once a minute."""
    newer = [await queued(store) for _ in range(MANY)]
    for task_id in newer:
        peek.put(task_id, v="999")
        peek.make_due("unsent", task_id)
    before = [peek.stored(task_id).task for task_id in newer]
    outbox = Outbox()
    lost = await queued(store)
    peek.raw.zadd(peek.keys.unsent, {lost: 2})
    await sweep(store, "me", outbox)
    assert [hint.task_id for hint in outbox.sent] == [lost]
    assert [peek.stored(task_id).task for task_id in newer] == before, "their records are a newer worker's"
    assert await store.sweep("me") == []


@covers("W9")
async def test_a_sweeper_that_is_too_old_for_a_task_lets_a_newer_one_sweep(open_store: OpenStore, peek: Peek) -> None:
    """In the midst of an upgrade an old worker may have the sweep, and would keep it for as long as it lives."""
    # A term of three sweeps is far longer than this test's own pauses, so nobody gets the sweep by chance.
    store = open_store(sweep_ms=400)
    task_id = await queued(store)
    peek.put(task_id, v="999")
    peek.make_due("unsent", task_id)
    old = Sweeper(store.settings, Outbox())
    old.start()
    try:
        await eventually(lambda: _has_been_seen(peek, task_id), description="the old one has met the task")

        async def taken_over() -> bool:
            return await store.sweep("newer") is not None

        await eventually(taken_over, description="the newer one has the sweep")
    finally:
        await asyncio.to_thread(old.close)


async def _has_been_seen(peek: Peek, task_id: str) -> bool:
    return (peek.score("unsent", task_id) or 0) > 1


async def test_a_full_store_is_told_once_and_that_it_is_over(
    open_store: OpenStore, peek: Peek, caplog: pytest.LogCaptureFixture
) -> None:
    """Not at each sweep of each worker: the log of that night is what somebody has to read."""
    store = open_store(sweep_ms=10)
    await running(store)
    sweeps = count_of(peek, "evalsha")
    sweeper = Sweeper(store.settings, Outbox())
    peek.raw.config_set("maxmemory", 1)
    sweeper.start()
    try:
        await eventually(lambda: swept(peek, sweeps + 20), description="it has tried again and again")
        peek.raw.config_set("maxmemory", 0)
        await eventually(lambda: told(caplog, "no longer"), description="it goes on")
    finally:
        peek.raw.config_set("maxmemory", 0)
        await asyncio.to_thread(sweeper.close)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 2, lines
    assert lines[0].startswith("The sweep waits for the store: ") and "used memory" in lines[0]
    assert lines[1].startswith("The sweep waits for the store: no longer, after ")


def count_of(peek: Peek, command: str) -> int:
    """How often the store was given the command."""
    return int(peek.raw.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


async def swept(peek: Peek, at_least: int) -> bool:
    """The scripts were called so often."""
    return count_of(peek, "evalsha") >= at_least


async def told(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    """The log has it."""
    return text in caplog.text
