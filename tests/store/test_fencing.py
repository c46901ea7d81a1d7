"""Invariant 3: every write of a worker carries its token, and a stale one is refused by name and changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from mcptasks.model import Claim
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN, WORKER_WRITES, claimed, ended, parked, running

pytestmark = pytest.mark.anyio

Lose = Callable[[TaskStore, Peek], Awaitable[Claim]]


async def _released(store: TaskStore, peek: Peek) -> Claim:
    claim = await running(store)
    await store.release(claim)
    return claim


async def _replaced(store: TaskStore, peek: Peek) -> Claim:
    claim = await _reaped(store, peek)
    await claimed(store, claim.task_id, run=2, worker="w2")
    return claim


async def _reaped(store: TaskStore, peek: Peek) -> Claim:
    claim = await running(store)
    peek.make_due("leases", claim.task_id)
    await store.reap(claim.task_id)
    return claim


async def _held_and_reaped(store: TaskStore, peek: Peek) -> Claim:
    claim = await parked(store, "q", hold=True)
    peek.make_due("leases", claim.task_id)
    await store.reap(claim.task_id)
    return claim


async def _parked(store: TaskStore, peek: Peek) -> Claim:
    return await parked(store)


async def _answered(store: TaskStore, peek: Peek) -> Claim:
    claim = await parked(store, "q")
    await store.answer(claim.task_id, ANN, {"q": 1})
    return claim


async def _held_by_the_next_run(store: TaskStore, peek: Peek) -> Claim:
    claim = await _released(store, peek)
    second = await claimed(store, claim.task_id, run=2, worker="w2")
    await store.ask(second, [], guard=None, hold=True)
    return claim


async def _ended(store: TaskStore, peek: Peek) -> Claim:
    return await ended(store)


async def _gone(store: TaskStore, peek: Peek) -> Claim:
    claim = await running(store)
    peek.raw.flushall()
    return claim


#: How a run can lose its claim -> the refusal.
LOSSES: Final[list[tuple[str, Lose]]] = [
    ("STALE", _released),
    ("STALE", _reaped),
    ("STALE", _replaced),
    ("STALE", _held_and_reaped),
    ("STALE", _parked),
    ("STALE", _answered),
    ("STALE", _held_by_the_next_run),
    ("TERMINAL", _ended),
    ("GONE", _gone),
]


@covers("N6", "B06")
@pytest.mark.parametrize("write", WORKER_WRITES)
@pytest.mark.parametrize(("word", "lose"), LOSSES, ids=lambda value: getattr(value, "__name__", value))
async def test_a_run_that_lost_its_claim_is_told_and_changes_nothing(
    store: TaskStore, peek: Peek, word: str, lose: Lose, write: str
) -> None:
    """N6: a stale worker's late result or question is refused, and never borrows the newer lease."""
    claim = await lose(store, peek)
    before = peek.all_keys(), peek.stored(claim.task_id)
    assert await WORKER_WRITES[write](store, claim) == ("LOST" if write == "renew" else word)
    assert (peek.all_keys(), peek.stored(claim.task_id)) == before


@pytest.mark.parametrize("write", WORKER_WRITES)
async def test_the_same_write_with_the_live_token_is_accepted(store: TaskStore, peek: Peek, write: str) -> None:
    """Without this the test above could pass for the wrong reason."""
    claim = await _replaced(store, peek)
    live = await parked(store, "q", hold=True) if write == "park" else await running(store)
    assert await WORKER_WRITES[write](store, live) not in ("LOST", "STALE", "TERMINAL", "GONE")
    assert await WORKER_WRITES[write](store, claim) in ("LOST", "STALE")
