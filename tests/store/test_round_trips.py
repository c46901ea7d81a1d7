"""Invariant 2: one transition is one script is one round trip; no lock, no second write that finishes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from mcptasks.store.scripts import SCRIPTS
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN, WORKER_WRITES, claimed, ended, parked, queued, running

pytestmark = pytest.mark.anyio

Transition = Callable[[], Awaitable[object]]


async def _create(store: TaskStore) -> Transition:
    return lambda: queued(store)


async def _claim(store: TaskStore) -> Transition:
    task_id = await queued(store)
    return lambda: claimed(store, task_id)


async def _read(store: TaskStore) -> Transition:
    task_id = await queued(store)
    return lambda: store.read(task_id, ANN)


async def _answer(store: TaskStore) -> Transition:
    task_id = (await parked(store, "a", "b")).task_id
    return lambda: store.answer(task_id, ANN, {"a": 1, "b": 2})


async def _cancel(store: TaskStore) -> Transition:
    task_id = (await parked(store)).task_id
    return lambda: store.cancel(task_id, ANN, "No more")


async def _sweep(store: TaskStore) -> Transition:
    return lambda: store.sweep("me")


async def _active(store: TaskStore) -> Transition:
    return store.active


async def _page(store: TaskStore) -> Transition:
    await queued(store)
    return lambda: store.page(ANN, limit=10)


async def _count(store: TaskStore) -> Transition:
    await queued(store)
    return lambda: store.count(None)


async def _tally(store: TaskStore) -> Transition:
    await queued(store)
    return store.tally


async def _find(store: TaskStore) -> Transition:
    task_id = await queued(store)
    return lambda: store.find(task_id[:8], ANN)


async def _forget(store: TaskStore) -> Transition:
    return store.forget


async def _purge(store: TaskStore) -> Transition:
    task_id = (await ended(store)).task_id
    return lambda: store.purge([task_id], 9_000_000_000_000)


async def _reap(store: TaskStore) -> Transition:
    task_id = await queued(store)
    return lambda: store.reap(task_id)


async def _discard(store: TaskStore) -> Transition:
    return store.discard


def _of_a_worker(name: str) -> Callable[[TaskStore], Awaitable[Transition]]:
    async def prepared(store: TaskStore) -> Transition:
        claim = await parked(store, hold=True) if name == "park" else await running(store)
        return lambda: WORKER_WRITES[name](store, claim)

    return prepared


TRANSITIONS: Final[dict[str, Callable[[TaskStore], Awaitable[Transition]]]] = {
    "create": _create,
    "claim": _claim,
    "read": _read,
    "answer": _answer,
    "cancel": _cancel,
    "sweep": _sweep,
    "active": _active,
    "page": _page,
    "count": _count,
    "tally": _tally,
    "find": _find,
    "forget": _forget,
    "purge": _purge,
    "reap": _reap,
    "discard": _discard,
    **{name: _of_a_worker(name) for name in WORKER_WRITES},
}


def test_every_script_is_counted_here() -> None:
    """A new transition must be added above."""
    assert TRANSITIONS.keys() == SCRIPTS.keys()


@covers("N5")
@pytest.mark.parametrize("name", TRANSITIONS)
async def test_a_transition_is_one_script_and_nothing_else(store: TaskStore, peek: Peek, name: str) -> None:
    """The first use of a script may have to load it; every later one is a single EVALSHA."""
    await (await TRANSITIONS[name](store))()
    transition = await TRANSITIONS[name](store)
    peek.raw.config_resetstat()
    before = int(peek.raw.info("stats")["total_reads_processed"])
    await transition()
    stats = peek.raw.info("commandstats")
    after = int(peek.raw.info("stats")["total_reads_processed"])
    assert stats["cmdstat_evalsha"]["calls"] == 1
    assert not {"cmdstat_eval", "cmdstat_script|load", "cmdstat_multi", "cmdstat_watch"} & set(stats)
    # The transition and the two INFOs: what a script calls inside costs no read.
    assert after - before == 3


async def test_a_flushed_script_cache_is_survived(store: TaskStore, peek: Peek) -> None:
    """A failover or SCRIPT FLUSH forgets the scripts; the next call brings its own along."""
    await queued(store)
    peek.raw.script_flush()
    claim = await running(store)
    peek.raw.script_flush()
    assert await store.renew([(claim.task_id, claim.token)]) == ["RUNNING"]
