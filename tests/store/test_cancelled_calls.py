"""A caller that is cancelled in the middle of a store call ends as cancelled, wherever the cancel falls."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from mcptasks.store.store import TaskStore
from tests.support.tasks import ANN

pytestmark = pytest.mark.anyio

#: A call takes fewer turns of the event loop than this, so that every one of them is hit, many times over.
_TURNS = 60
_ROUNDS = 10


async def _for_ever(store: TaskStore) -> None:
    while True:
        await store.read("nobody", ANN)


@pytest.mark.parametrize("turns", range(_TURNS))
async def test_a_cancel_ends_a_loop_of_store_calls_at_whatever_turn_it_falls(store: TaskStore, turns: int) -> None:
    """redis-py sends through `asyncio.wait_for`, which loses a cancel on Python 3.11 when the send is just done."""
    await store.read("nobody", ANN)
    for _ in range(_ROUNDS):
        caller = asyncio.create_task(_for_ever(store))
        for _ in range(turns):
            await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller], timeout=30)
        assert caller.cancelled()


@pytest.mark.parametrize("turns", range(_TURNS))
async def test_a_cancelled_scope_ends_such_a_loop_and_nothing_around_it(store: TaskStore, turns: int) -> None:
    await store.read("nobody", ANN)
    for _ in range(_ROUNDS):
        with anyio.fail_after(30), anyio.CancelScope() as scope:
            asyncio.get_running_loop().create_task(_cancel_at(scope, turns))
            await _for_ever(store)
        assert scope.cancelled_caught


async def _cancel_at(scope: anyio.CancelScope, turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    scope.cancel()
