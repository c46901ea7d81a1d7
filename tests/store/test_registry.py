"""The workers' register: who works here, by each worker's own word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcptasks.store.registry import WorkerPulse
from mcptasks.store.store import TaskStore
from tests.store.conftest import OpenStore
from tests.support.peek import Peek

pytestmark = pytest.mark.anyio

PULSE = WorkerPulse(at_ms=1, host="h", pid=2, slots=4, active=1, received=9, waiting=None, deaf_ms=0)


async def test_a_workers_latest_word_is_read_through_any_store(
    store: TaskStore, open_store: OpenStore, peek: Peek
) -> None:
    """The fleet's probe and the operator ask elsewhere than the worker writes."""
    await store.report("w1@h", PULSE)
    await store.report("w2@h", PULSE)
    later = WorkerPulse(at_ms=5, host="h", pid=2, slots=4, active=0, received=10, waiting=3, deaf_ms=7)
    await store.report("w1@h", later)
    assert await open_store().workers() == {"w1@h": later, "w2@h": PULSE}
    assert peek.raw.ttl(peek.keys.workers) > 0


async def test_workers_of_other_versions_are_read(store: TaskStore, peek: Peek) -> None:
    """In the midst of a deploy: a newer one says more, an older one less."""
    older = '"at_ms":1,"host":"h","pid":2,"slots":4,"active":1,"received":9,"waiting":null,"deaf_ms":0'
    await store.report("w1@h", replace(PULSE, stuck={"report": 2}, held_by="crawl"))
    for name, entry in (("w2@h", f"{{{older}}}"), ("w3@h", f'{{{older},"more":1}}')):
        peek.raw.hset(peek.keys.workers, name, entry)
    workers = await store.workers()
    assert (workers["w1@h"].stuck, workers["w1@h"].held_by) == ({"report": 2}, "crawl")
    assert workers["w2@h"] == workers["w3@h"] == PULSE


async def test_a_worker_that_signs_off_is_not_listed(store: TaskStore) -> None:
    """It went down in order; nobody need look for it."""
    await store.report("w1@h", PULSE)
    await store.sign_off("w1@h")
    await store.sign_off("w1@h")
    assert await store.workers() == {}


async def test_the_stores_clock_is_asked_for_ages(store: TaskStore, peek: Peek) -> None:
    """Invariant 8: one clock."""
    before = peek.now_ms()
    assert before <= await store.now_ms() <= peek.now_ms()
