"""The sweeper's round: how much of what is overdue it moves on at once."""

from __future__ import annotations

import pytest

from mcptasks.fleet.sweeper import sweep
from mcptasks.model import Envelope, Hint
from mcptasks.policy import Policy
from mcptasks.store.store import TaskStore
from mcptasks.store.upkeep import SWEEP_BATCH
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import queued, running

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


async def test_tasks_of_a_newer_schema_do_not_keep_the_sweeper_busy(store: TaskStore, peek: Peek) -> None:
    """They stay overdue until a worker of that version sweeps."""
    for _ in range(MANY):
        task_id = await queued(store)
        peek.put(task_id, v="999")
        peek.make_due("unsent", task_id)
    outbox = Outbox()
    await sweep(store, "me", outbox)
    assert outbox.sent == []
