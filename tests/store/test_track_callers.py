"""read, answer, cancel, page, find: what callers and operators do to tracked tasks."""

from __future__ import annotations

import pytest

from mcptasks.errors import BadCursor, BadPayload, SchemaTooNew, TooLarge
from mcptasks.tracker.model import TrackStatus
from mcptasks.tracker.store.store import TrackStore
from tests.support.tracking import ASK, DONE, YES, TrackPeek, claimed, intended, polled, read, tracked

pytestmark = pytest.mark.anyio


async def test_of_two_answers_the_first_one_is_delivered(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """At once; a key that is not open is passed over."""
    task_id = await tracked(tracks, status="input_required", questions={"a": ASK, "b": ASK}, hint=600_000)
    assert await tracks.answer(task_id, {"x": 0}) == "IGNORED"
    assert await tracks.answer(task_id, {"a": 1, "x": 0}) == "ANSWERED"
    assert await tracks.answer(task_id, {"a": 2}) == "IGNORED"
    task = await read(tracks, task_id)
    assert (task.status, set(task.questions), task.answered) == (TrackStatus.INPUT_REQUIRED, {"b"}, ("a",))
    (claim,) = (await tracks.claim("me", 10)).claims
    assert claim.answers == {"a": 1}
    await tracks.release(task_id, claim.token, 600_000)
    assert await tracks.answer(task_id, {"b": 2}) == "ANSWERED"
    assert (await read(tracks, task_id)).status is TrackStatus.WORKING


async def test_answers_that_cannot_be_kept_are_refused(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """None of them is stored."""
    task_id = await tracked(tracks, status="input_required", questions={"a": ASK, "b": ASK})
    before = track_peek.everything()
    with pytest.raises(TooLarge):
        await tracks.answer(task_id, {"a": YES, "b": "x" * tracks.settings.answer_max})
    with pytest.raises(BadPayload):
        await tracks.answer(task_id, {"a": float("inf")})
    assert track_peek.everything() == before


async def test_what_is_not_yours_is_not_there(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """One answer for both; the operator sees all."""
    task_id = await tracked(tracks, status="input_required", questions={"k": ASK}, owner="ann")
    before = track_peek.everything()
    assert await tracks.read(task_id, "bob") is None
    assert await tracks.answer(task_id, {"k": YES}, "bob") == "GONE"
    assert (await tracks.cancel(task_id, "", "bob")).outcome == "GONE"
    assert await tracks.find(task_id[:8], "bob") == "NONE"
    assert await tracks.read("x" * 32) is None
    assert track_peek.everything() == before
    assert await tracks.read(task_id, "ann") == await tracks.read(task_id)
    assert await tracks.find(task_id[:8], "ann") == task_id
    assert await tracks.answer(task_id, {"k": YES}, "ann") == "ANSWERED"


async def test_a_repeated_cancel_is_the_first_one(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """D08: it wipes no lease, and once delivered it is not delivered again."""
    task_id = await tracked(tracks, hint=600_000)
    assert [(await tracks.cancel(task_id, "no")).outcome for _ in range(3)] == ["REQUESTED"] * 3
    (claim,) = (await tracks.claim("me", 10)).claims
    assert claim.to_cancel
    assert (await tracks.cancel(task_id, "no")).trackers == 1
    assert (await tracks.claim("other", 10)).claims == []
    await tracks.observe(task_id, claim.token, polled(cancel="sent", hint=600_000))
    await tracks.cancel(task_id, "no")
    assert (await tracks.claim("me", 10)).claims == []
    task = await read(tracks, task_id)
    assert (task.cancel_requested, task.cancel_delivered) == (True, True)


async def test_a_cancel_says_when_nobody_is_there_to_deliver_it(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """D08: success must mean that someone will do it."""
    task_id = await tracked(tracks)
    assert (await tracks.cancel(task_id, "no")).trackers == 0
    await tracks.claim("me", 0)
    assert (await tracks.cancel(task_id, "no")).trackers == 1
    track_peek.raw.zadd(track_peek.keys.trackers, {"me": track_peek.now_ms() - 1})
    assert (await tracks.cancel(task_id, "no")).trackers == 0


async def test_newer_records_are_refused(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """W9: never misread."""
    task_id = await tracked(tracks)
    track_peek.raw.hset(track_peek.keys.task(task_id), "v", "99")
    for call in (tracks.read(task_id), tracks.answer(task_id, {"k": 1}), tracks.cancel(task_id, "")):
        with pytest.raises(SchemaTooNew):
            await call


async def test_lists_are_newest_first_by_owner_server_and_status(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """Page by page, without results."""
    mine: list[str] = []
    for server in ("crm", "hr", "crm"):
        mine.append(await tracked(tracks, owner="ann", server=server))
        track_peek.tick()
    other = await intended(tracks, owner="bob")
    claim = await claimed(tracks, track_peek, mine[0])
    await tracks.observe(mine[0], claim.token, polled("completed", result=DONE))

    async def listed(**asked: object) -> list[str]:
        ids: list[str] = []
        cursor: str | None = None
        while True:
            page = await tracks.page(limit=2, cursor=cursor, **asked)  # pyright: ignore[reportArgumentType]
            ids += (task.task_id for task in page.tasks)
            assert all(task.result is None for task in page.tasks)
            if (cursor := page.cursor) is None:
                return ids

    assert await listed() == [other, *reversed(mine)]
    assert await listed(owner="ann") == list(reversed(mine))
    assert await listed(server="crm") == [other, mine[2], mine[0]]
    assert await listed(owner="ann", server="crm") == [mine[2], mine[0]]
    assert await listed(statuses=[TrackStatus.COMPLETED]) == [mine[0]]
    assert await listed(statuses=[TrackStatus.WORKING, TrackStatus.INTENDED]) == [other, mine[2], mine[1]]
    with pytest.raises(BadCursor):
        await tracks.page(limit=2, cursor="nonsense")


async def test_a_beginning_finds_the_one_task_that_has_it(tracks: TrackStore) -> None:
    """At least four characters."""
    one = await intended(tracks, task_id="aaaa1" + "x" * 27)
    await intended(tracks, task_id="aaaa2" + "x" * 27)
    assert await tracks.find("aaaa1") == one
    assert await tracks.find("aaaa") == "SEVERAL"
    assert await tracks.find("aaa") == await tracks.find("bbbb") == "NONE"


async def test_what_redis_has_dropped_is_forgotten(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """No list grows for ever, that of the dead letters neither, nor what a consumer is owed that no worker has."""
    task_id = await tracked(tracks, status="input_required", questions={"k": ASK}, consumers=("hook", "nobody"))
    (one,) = (await tracks.take("hook", 10, 60_000)).deliveries
    assert await tracks.undelivered(one, delay_ms=1, permanent=True, why="410") == "DEAD"
    track_peek.raw.delete(track_peek.keys.task(task_id))
    track_peek.raw.zadd(track_peek.keys.drops, {task_id: 1})
    assert not await tracks.forget()
    left = [key.removeprefix(track_peek.keys.prefix) for key in track_peek.everything()]
    assert sorted(name for name in left if not name.startswith("handle:")) == ["consumers", "due", "events"]
