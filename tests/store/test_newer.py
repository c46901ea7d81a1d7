"""A record of a newer mcptasks is refused by every transition, and nothing of it is touched (W9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from mcptasks.errors import SchemaTooNew
from mcptasks.model import SCHEMA_VERSION, Claim
from mcptasks.operations import Operations
from mcptasks.store.base import Next
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek, Stored
from tests.support.tasks import (
    ANN,
    WORKER_WRITES,
    asking_and_sleeping,
    create,
    ended,
    hint,
    parked,
    queued,
    running,
    sleeping,
    submission,
)

pytestmark = pytest.mark.anyio

NEWER: Final = str(SCHEMA_VERSION + 1)
SAYS: Final = rf"schema {NEWER}, this one reads {SCHEMA_VERSION}.*upgrade this process"


async def _held(store: TaskStore) -> Claim:
    return await parked(store, hold=True)


#: Where a task may stand when a newer process has taken it over.
STATES: Final[dict[str, Callable[[TaskStore], Awaitable[Claim]]]] = {
    "running": running,
    "held": _held,
    "parked": parked,
    "sleeping": sleeping,
    "asking and sleeping": asking_and_sleeping,
    "ended": ended,
}


async def made_newer(store: TaskStore, peek: Peek, state: str) -> tuple[Claim, Stored]:
    """A task in that state, written by a newer mcptasks meanwhile, and all that is stored of it."""
    claim = await STATES[state](store)
    peek.put(claim.task_id, v=NEWER)
    return claim, peek.stored(claim.task_id)


@covers("W9")
@pytest.mark.parametrize("state", STATES)
async def test_no_caller_reads_answers_or_cancels_it(store: TaskStore, peek: Peek, state: str) -> None:
    """W9: loudly; and one that is not the caller's is not theirs in a newer version either."""
    claim, before = await made_newer(store, peek, state)
    for owner in (ANN, None):
        with pytest.raises(SchemaTooNew, match=SAYS):
            await store.read(claim.task_id, owner)
        with pytest.raises(SchemaTooNew, match=SAYS):
            await store.answer(claim.task_id, owner, {"sure": 1})
        with pytest.raises(SchemaTooNew, match=SAYS):
            await store.cancel(claim.task_id, owner, "No more")
    assert await store.read(claim.task_id, "bob") is None
    assert (await store.answer(claim.task_id, "bob", {"sure": 1})).outcome == "GONE"
    assert await store.cancel(claim.task_id, "bob", "No more") == "GONE"
    assert peek.stored(claim.task_id) == before


@covers("W9")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("write", WORKER_WRITES)
async def test_no_run_writes_to_it_any_more(store: TaskStore, peek: Peek, state: str, write: str) -> None:
    """W9: also with the token it has: whoever made the record newer did not know of this run, or replaced it."""
    claim, before = await made_newer(store, peek, state)
    assert await WORKER_WRITES[write](store, claim) in ("STALE", "LOST")
    assert peek.stored(claim.task_id) == before


@covers("W9")
@pytest.mark.parametrize("state", STATES)
async def test_no_worker_claims_it(store: TaskStore, peek: Peek, state: str) -> None:
    """W9: in any state, and whichever run its message is for."""
    claim, before = await made_newer(store, peek, state)
    for run in (1, 2):
        assert await store.claim(hint(claim.task_id, run), "w2") == Next("NEWER", detail=NEWER)
    assert peek.stored(claim.task_id) == before


@covers("W9", "P23")
async def test_its_call_sent_again_is_still_the_same_call(store: TaskStore, peek: Peek) -> None:
    """W9: an idempotency key leads to it; nothing is made anew, and nothing of it is changed."""
    task_id = (await create(store, key="k")).task_id
    peek.put(task_id, v=NEWER)
    before = peek.stored(task_id)
    again = await create(store, key="k")
    assert (again.outcome, again.task_id) == ("EXISTS", task_id)
    assert (await create(store, task_id, submission(other=1))).outcome == "CREATED"
    assert peek.stored(task_id) == before


@covers("W9", "T3")
async def test_an_operator_who_cancels_all_cancels_all_others(store: TaskStore, peek: Peek) -> None:
    """W9: it costs nobody else the cancel, and is not counted."""
    newer, mine = await queued(store), await queued(store)
    peek.put(newer, v=NEWER)
    before = peek.stored(newer)
    async with Operations(store.settings) as fleet:
        assert await fleet.cancel_all("Moving house") == 1
    assert peek.field(mine, "status") == "cancelled"
    assert peek.stored(newer) == before
