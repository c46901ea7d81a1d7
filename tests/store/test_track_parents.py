"""adopt, orphans: a tracked task that a durable task follows is cancelled with it."""

from __future__ import annotations

import pytest

from mcptasks.store.keys import Keys
from mcptasks.tracker.store.store import TrackStore
from tests.support.tracking import DONE, TrackPeek, claimed, polled, read, tracked

pytestmark = pytest.mark.anyio

PARENT = "p" * 32


def parent_is(store: TrackStore, peek: TrackPeek, status: str | None) -> None:
    """The durable task is so; None: it is gone."""
    key = Keys(store.settings.prefix).task(PARENT)
    if status is None:
        peek.raw.delete(key)
    else:
        peek.raw.hset(key, "status", status)
        peek.raw.expire(key, 600)


def look_again(peek: TrackPeek, task_id: str) -> None:
    """The next look is due."""
    if peek.raw.zscore(peek.keys.parents, task_id) is not None:
        peek.raw.zadd(peek.keys.parents, {task_id: peek.now_ms() - 1})


@pytest.mark.parametrize("status", ["cancelled", "failed", None])
async def test_a_task_is_cancelled_when_its_durable_task_has_not_lived_on(
    tracks: TrackStore, track_peek: TrackPeek, status: str | None
) -> None:
    """At once, however far its next poll is; and once only."""
    parent_is(tracks, track_peek, "sleeping")
    task_id = await tracked(tracks, hint=3_600_000)
    assert await tracks.adopt(task_id, PARENT) == "ADOPTED"
    assert await tracks.orphans() == 0
    look_again(track_peek, task_id)
    assert await tracks.orphans() == 0
    assert not (await read(tracks, task_id)).cancel_requested
    parent_is(tracks, track_peek, status)
    assert await tracks.orphans() == 0, "not looked at before its time"
    look_again(track_peek, task_id)
    assert await tracks.orphans() == 1
    (claim,) = (await tracks.claim("me", 10)).claims
    assert claim.to_cancel
    look_again(track_peek, task_id)
    assert await tracks.orphans() == 0


async def test_a_durable_task_that_is_done_leaves_the_remote_one_alone(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """It did not wait for it; that was its choice."""
    parent_is(tracks, track_peek, "completed")
    task_id = await tracked(tracks)
    await tracks.adopt(task_id, PARENT)
    assert await tracks.orphans() == 0
    assert not (await read(tracks, task_id)).cancel_requested
    assert track_peek.raw.zcard(track_peek.keys.parents) == 0


async def test_an_ended_or_unknown_task_is_adopted_by_nobody(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """And one that ends later leaves the index."""
    task_id = await tracked(tracks)
    await tracks.adopt(task_id, PARENT)
    claim = await claimed(tracks, track_peek, task_id)
    await tracks.observe(task_id, claim.token, polled("completed", result=DONE))
    assert await tracks.orphans() == 0
    assert track_peek.raw.zcard(track_peek.keys.parents) == 0
    assert await tracks.adopt(task_id, PARENT) == "TERMINAL"
    assert await tracks.adopt("x" * 32, PARENT) == "GONE"
