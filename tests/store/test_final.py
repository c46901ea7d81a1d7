"""Invariant 4: terminal is final. No later write of any kind changes the record or its lastUpdatedAt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
import redis

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.model import Claim
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek, Stored
from tests.support.tasks import (
    ANN,
    TERMINAL,
    WORKER_WRITES,
    Terminal,
    create,
    ended,
    hint,
    queued,
)

pytestmark = pytest.mark.anyio


async def _reap(store: TaskStore, claim: Claim) -> str:
    return (await store.reap(claim.task_id)).outcome


async def _create(store: TaskStore, claim: Claim) -> str:
    return (await create(store, claim.task_id)).outcome


async def _claim(store: TaskStore, claim: Claim) -> str:
    answer = await store.claim(hint(claim.task_id, 2), "w2")
    return "CLAIMED" if isinstance(answer, Claim) else answer.outcome


async def _look(store: TaskStore, claim: Claim) -> str:
    answer = await store.claim(hint(claim.task_id, 2, 1), "w2")
    return "CLAIMED" if isinstance(answer, Claim) else answer.outcome


async def _answer(store: TaskStore, claim: Claim) -> str:
    return (await store.answer(claim.task_id, ANN, {"q": 1})).outcome


async def _cancel(store: TaskStore, claim: Claim) -> str:
    return await store.cancel(claim.task_id, ANN, "No more")


EVERY_WRITE: Final[dict[str, Callable[[TaskStore, Claim], Awaitable[str]]]] = {
    **WORKER_WRITES,
    "reap": _reap,
    "create": _create,
    "claim": _claim,
    "look": _look,
    "answer": _answer,
    "cancel": _cancel,
}


@covers("P30", "P35", "C06", "N5")
@pytest.mark.parametrize("write", EVERY_WRITE)
@pytest.mark.parametrize("status", TERMINAL)
async def test_no_write_changes_an_ended_task(store: TaskStore, peek: Peek, status: Terminal, write: str) -> None:
    """SEP-2663: terminal has no exits. Byte-identical, expiry and indexes included."""
    claim = await ended(store, status)
    before = peek.all_keys(), peek.stored(claim.task_id)
    await EVERY_WRITE[write](store, claim)
    assert (peek.all_keys(), peek.stored(claim.task_id)) == before


@covers("P30", "R7")
@pytest.mark.parametrize("status", TERMINAL)
async def test_time_does_not_change_an_ended_task_either(store: TaskStore, peek: Peek, status: Terminal) -> None:
    """The ttl of an ended task only removes it: completed never becomes expired."""
    claim = await ended(store, status)
    peek.put(claim.task_id, expires="1", deadline="1")
    before = peek.stored(claim.task_id)
    peek.raw.zadd(peek.keys.expiry, {claim.task_id: 1})
    assert await _reap(store, claim) == "NOTHING"
    assert peek.stored(claim.task_id) == before


@covers("W1")
async def test_tasks_are_byte_identical_after_a_restart_of_the_store(tmp_path: Path) -> None:
    """W1: tasks survive restarts; boot rewrites nothing."""
    with EmbeddedValkey(tmp_path) as valkey:
        store = TaskStore(Settings(redis_url=valkey.url))
        tasks = [(await ended(store, status)).task_id for status in TERMINAL] + [await queued(store, x=7)]
        await store.aclose()
        before = everything(valkey, tasks)
    with EmbeddedValkey(tmp_path) as valkey:
        assert everything(valkey, tasks) == before


def everything(valkey: EmbeddedValkey, tasks: list[str]) -> list[Stored]:
    """All that the server holds of the tasks."""
    with redis.Redis.from_url(valkey.url, decode_responses=True) as raw:
        peek = Peek(raw, Settings().prefix)
        return [peek.stored(task_id) for task_id in tasks]
