"""claim, observe, release, nudge: due tasks are one tracker's at a time, and what it sees is recorded with its news."""

from __future__ import annotations

import asyncio

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr

from mcptasks.errors import Sealed
from mcptasks.tracker.model import End, TrackStatus
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.store.polls import CLAIM_BATCH, Polled
from mcptasks.tracker.store.store import TrackStore
from tests.requirements import covers
from tests.support.tracking import ASK, DONE, YES, TrackPeek, claimed, polled, read, tracked

pytestmark = pytest.mark.anyio


async def test_a_task_is_due_when_its_server_says(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """D04: also the first poll waits for the hint."""
    task_id = await tracked(tracks, hint=30_000)
    assert track_peek.due(task_id) == pytest.approx(track_peek.now_ms() + 30_000, abs=5_000)
    assert (await tracks.claim("me", 10)).claims == []
    claim = await claimed(tracks, track_peek, task_id)
    assert claim.pace_ms == 30_000
    assert await tracks.observe(task_id, claim.token, polled(hint=5_000, message="half")) == "OBSERVED"
    assert track_peek.due(task_id) == pytest.approx(track_peek.now_ms() + 5_000, abs=3_000)
    task = await read(tracks, task_id)
    assert (task.message, task.polls, task.status) == ("half", 1, TrackStatus.WORKING)


@covers("D2")
async def test_a_claimed_task_is_nobody_elses_until_its_lease_runs_out(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """Two pollers never poll the same task; of a lost one the task comes back, and the late word does not count."""
    task_id = await tracked(tracks)
    first = await claimed(tracks, track_peek, task_id, "a")
    again = await tracks.claim("b", 10)
    assert again.claims == []
    assert again.wait_ms == pytest.approx(tracks.options.lease_ms, abs=5_000)
    second = await claimed(tracks, track_peek, task_id, "b")
    assert second.token == first.token + 1
    before = track_peek.everything()
    assert await tracks.observe(task_id, first.token, polled("completed", result=DONE)) == "STALE"
    assert await tracks.release(task_id, first.token, 0) == "STALE"
    assert track_peek.everything() == before
    assert await tracks.observe(task_id, second.token, polled()) == "OBSERVED"


@covers("D2")
async def test_many_trackers_share_what_is_due_and_none_of_it_twice(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """Each due task is in exactly one batch."""
    task_ids = [await tracked(tracks) for _ in range(CLAIM_BATCH + 20)]
    track_peek.make_due(*task_ids)
    batches = await asyncio.gather(*(tracks.claim(f"t{n}", 50) for n in range(6)))
    got = [claim.task.task_id for batch in batches for claim in batch.claims]
    assert sorted(got) == sorted(task_ids)
    assert max(len(batch.claims) for batch in batches) <= 50


@covers("D2")
async def test_an_ended_task_is_polled_no_more_and_never_changes(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """Terminal is final, whoever comes."""
    task_id = await tracked(tracks, consumers=("hook",))
    claim = await claimed(tracks, track_peek, task_id)
    assert await tracks.observe(task_id, claim.token, polled("completed", result=DONE)) == "ENDED"
    task = await read(tracks, task_id)
    assert (task.status, task.reason, task.result) == (TrackStatus.COMPLETED, End.COMPLETED, DONE)
    assert track_peek.due(task_id) is None
    before = track_peek.everything()
    assert await tracks.observe(task_id, claim.token, polled("failed", error={"code": 1, "message": ""})) == "TERMINAL"
    assert await tracks.release(task_id, claim.token, 0) == "TERMINAL"
    assert await tracks.nudge(task_id) == "IGNORED"
    assert (await tracks.cancel(task_id, "no")).outcome == "FINISHED"
    assert await tracks.answer(task_id, {"k": YES}) == "IGNORED"
    assert track_peek.everything() == before


async def test_a_failed_poll_counts_and_the_next_answer_sets_it_back(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """D03: an error says nothing about the task."""
    task_id = await tracked(tracks)
    for failures in (1, 2, 3, 4, 5):
        claim = await claimed(tracks, track_peek, task_id)
        assert claim.task.failures == failures - 1
        lost = Polled(seen=None, error_text="502", next_ms=7_000)
        assert await tracks.observe(task_id, claim.token, lost) == "OBSERVED"
        assert track_peek.due(task_id) == pytest.approx(track_peek.now_ms() + 7_000, abs=5_000)
    task = await read(tracks, task_id)
    assert (task.failures, task.last_error, task.degraded, task.status) == (5, "502", True, TrackStatus.WORKING)
    claim = await claimed(tracks, track_peek, task_id)
    await tracks.observe(task_id, claim.token, polled())
    task = await read(tracks, task_id)
    assert (task.failures, task.last_error, task.degraded) == (0, None, False)


@covers("D06")
async def test_a_question_is_news_once(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """D06: by its key; shown again, answered and still shown, it is none."""
    task_id = await tracked(tracks, status="input_required", questions={"k": ASK}, consumers=("hook",))
    task = await read(tracks, task_id)
    assert (task.status, task.questions) == (TrackStatus.INPUT_REQUIRED, {"k": ASK})
    events = len(track_peek.raw.xrange(track_peek.keys.events))
    assert events == 1
    claim = await claimed(tracks, track_peek, task_id)
    await tracks.observe(task_id, claim.token, polled("input_required", questions={"k": ASK}))
    assert await tracks.answer(task_id, {"k": YES}) == "ANSWERED"
    claim = await claimed(tracks, track_peek, task_id)
    assert claim.answers == {"k": YES}
    await tracks.observe(task_id, claim.token, polled("input_required", questions={"k": ASK}, answered=("k",)))
    claim = await claimed(tracks, track_peek, task_id)
    assert claim.answers == {}
    await tracks.observe(task_id, claim.token, polled("input_required", questions={"k": ASK}))
    task = await read(tracks, task_id)
    assert (task.status, task.questions, task.answered) == (TrackStatus.WORKING, {}, ())
    assert len(track_peek.raw.xrange(track_peek.keys.events)) == events
    claim = await claimed(tracks, track_peek, task_id)
    await tracks.observe(task_id, claim.token, polled("input_required", questions={"k": ASK, "k2": ASK}))
    assert set((await read(tracks, task_id)).questions) == {"k2"}
    assert len(track_peek.raw.xrange(track_peek.keys.events)) == events + 1


async def test_a_question_that_is_shown_no_more_is_closed(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """Its answer has nobody to go to, and a later one is none."""
    task_id = await tracked(tracks, status="input_required", questions={"a": ASK, "b": ASK})
    assert await tracks.answer(task_id, {"a": YES}) == "ANSWERED"
    claim = await claimed(tracks, track_peek, task_id)
    await tracks.observe(task_id, claim.token, polled("working"))
    task = await read(tracks, task_id)
    assert (task.questions, task.answered, task.status) == ({}, (), TrackStatus.WORKING)
    assert await tracks.answer(task_id, {"b": YES}) == "IGNORED"


async def test_a_server_that_asks_without_end_fails_its_task(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """The keys that were seen are remembered for the task's life, so there must be a bound to them."""
    task_id = await tracked(tracks)
    for part in range(3):
        claim = await claimed(tracks, track_peek, task_id)
        asked = {f"{part}-{n}": {"method": "m", "params": {}} for n in range(400)}
        word = await tracks.observe(task_id, claim.token, polled("input_required", questions=asked))
        assert word == ("ENDED" if part == 2 else "OBSERVED")
    task = await read(tracks, task_id)
    assert (task.status, task.reason) == (TrackStatus.FAILED, End.PROTOCOL)
    assert not [name for name in track_peek.fields(task_id) if name[:2] in ("q:", "s:")]


async def test_what_is_wanted_during_a_poll_is_done_right_after_it(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """A cancel, an answer or a push may not break the claim, nor wait for the next poll."""
    for wish in ("cancel", "answer", "nudge"):
        task_id = await tracked(tracks, status="input_required", questions={"k": ASK})
        claim = await claimed(tracks, track_peek, task_id)
        match wish:
            case "cancel":
                assert (await tracks.cancel(task_id, "no")).outcome == "REQUESTED"
            case "answer":
                assert await tracks.answer(task_id, {"k": YES}) == "ANSWERED"
            case _:
                assert await tracks.nudge(task_id) == "NUDGED"
        assert (await tracks.claim("other", 10)).claims == []
        await tracks.observe(task_id, claim.token, polled("input_required", questions={"k": ASK}, hint=600_000))
        (again,) = (await tracks.claim("other", 10)).claims
        assert again.task.task_id == task_id
        assert (again.to_cancel, bool(again.answers)) == (wish == "cancel", wish == "answer")
        await tracks.observe(task_id, again.token, polled("cancelled"))


async def test_a_word_that_arrives_twice_is_heard_once(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """The client sends a script again whose answer it did not see: what was wanted meanwhile is still done at once."""
    for give_back in (False, True):
        task_id = await tracked(tracks, hint=600_000)
        claim = await claimed(tracks, track_peek, task_id)
        assert await tracks.nudge(task_id) == "NUDGED"

        async def say(task_id: str = task_id, token: int = claim.token, give_back: bool = give_back) -> str:
            if give_back:
                return await tracks.release(task_id, token, 600_000)
            return await tracks.observe(task_id, token, polled(hint=600_000))

        assert await say() == ("RELEASED" if give_back else "OBSERVED")
        before = track_peek.everything()
        assert await say() == "STALE"
        assert track_peek.everything() == before
        assert [again.task.task_id for again in (await tracks.claim("other", 10)).claims] == [task_id]


async def test_an_answer_that_was_refused_is_news_also_when_nothing_else_is_known(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """The look behind it failed, or the tracker was stopped: whoever answered is asked again all the same."""
    task_id = await tracked(tracks, status="input_required", questions={"k": ASK}, consumers=("hook",))
    assert await tracks.answer(task_id, {"k": YES}) == "ANSWERED"
    claim = await claimed(tracks, track_peek, task_id)
    (told,) = (await tracks.take("hook", 10, 60_000)).deliveries
    assert await tracks.delivered(told) == "DELIVERED"
    nothing = Polled(seen=None, error_text="502", next_ms=5_000, refused=["k"])
    assert await tracks.observe(task_id, claim.token, nothing) == "OBSERVED"
    task = await read(tracks, task_id)
    assert (task.status, set(task.questions)) == (TrackStatus.INPUT_REQUIRED, {"k"})
    (again,) = (await tracks.take("hook", 10, 60_000)).deliveries
    assert again.event.kind == "input_required"
    assert again.event.event_id != told.event.event_id


async def test_a_nudged_task_is_due_at_once(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """Its server said that it has changed."""
    task_id = await tracked(tracks, hint=600_000)
    assert await tracks.nudge(task_id) == "NUDGED"
    assert [claim.task.task_id for claim in (await tracks.claim("me", 10)).claims] == [task_id]
    assert await tracks.nudge("x" * 32) == "IGNORED"


async def test_a_claim_that_is_given_back_leaves_no_trace(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """D4: an unknown driver releases its claim for later."""
    task_id = await tracked(tracks)
    claim = await claimed(tracks, track_peek, task_id)
    assert await tracks.release(task_id, claim.token, 9_000) == "RELEASED"
    assert track_peek.due(task_id) == pytest.approx(track_peek.now_ms() + 9_000, abs=5_000)
    task = await read(tracks, task_id)
    assert (task.polls, task.failures) == (0, 0)


async def test_a_task_that_is_gone_leaves_the_index(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """Redis dropped its record and told nobody."""
    task_id = await tracked(tracks)
    claim = await claimed(tracks, track_peek, task_id)
    track_peek.raw.delete(track_peek.keys.task(task_id))
    assert await tracks.observe(task_id, claim.token, polled()) == "GONE"
    assert await tracks.release(task_id, claim.token, 1) == "GONE"
    track_peek.make_due(task_id)
    assert (await tracks.claim("me", 10)).claims == []
    assert track_peek.due(task_id) is None


async def test_a_newer_record_is_left_for_a_newer_tracker(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """W9: it stands out of the way meanwhile."""
    task_id = await tracked(tracks)
    track_peek.raw.hset(track_peek.keys.task(task_id), "v", "99")
    track_peek.make_due(task_id)
    assert (await tracks.claim("me", 10)).claims == []
    assert (track_peek.due(task_id) or 0) > track_peek.now_ms() + 30_000


@covers("D4")
async def test_a_record_that_cannot_be_read_keeps_nobody_from_his(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """A word of another version, or something cut off: it is left for later, and its batch goes on without it."""
    task_ids = [await tracked(tracks, consumers=("hook",)) for _ in range(4)]
    for task_id, (name, text) in zip(
        task_ids, (("status", "dreaming"), ("a:k", '{"action":'), ("polls", "many")), strict=False
    ):
        track_peek.raw.hset(track_peek.keys.task(task_id), name, text)
    track_peek.make_due(*task_ids)
    assert [claim.task.task_id for claim in (await tracks.claim("me", 10)).claims] == task_ids[3:]
    for task_id in task_ids[:3]:
        assert (track_peek.due(task_id) or 0) > track_peek.now_ms() + 30_000


async def test_a_live_task_lives_on_with_its_polls_and_an_ended_one_for_one_ttl(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """Every key has an expiry; only a fleet that stood still for a month forgets a live task."""
    task_id = await tracked(tracks, handle="h")
    key = track_peek.keys.task(task_id)
    # Its last poll was long ago.
    soon = track_peek.now_ms() + 86_400_000
    track_peek.raw.hset(key, "gone", soon)
    track_peek.raw.pexpireat(key, soon)
    claim = await claimed(tracks, track_peek, task_id)
    await tracks.observe(task_id, claim.token, polled())
    handle_key = next(k for k in track_peek.everything() if ":handle:" in k)
    for one in (key, handle_key):
        assert track_peek.raw.pttl(one) == pytest.approx(tracks.options.live_ms, rel=0.01)
    claim = await claimed(tracks, track_peek, task_id)
    await tracks.observe(task_id, claim.token, polled("completed", result=DONE))
    for one in (key, handle_key):
        assert track_peek.raw.pttl(one) == pytest.approx(tracks.options.ttl_ms, rel=0.01)


async def test_what_is_sealed_elsewhere_is_left_for_who_has_the_key(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """Encryption at rest: nothing readable is stored, and a tracker without the key waits."""
    key = SecretStr(Fernet.generate_key().decode())
    sealed = TrackStore(tracks.settings.model_copy(update={"encryption_keys": (key,)}), TrackOptions())
    try:
        task_id = await tracked(
            sealed, "secret-handle", "input_required", questions={"k": {"method": "m", "params": {"m": "secret-q"}}}
        )
        await sealed.answer(task_id, {"k": "secret-a"})
        claim = await claimed(sealed, track_peek, task_id)
        assert (claim.task.handle, claim.answers) == ("secret-handle", {"k": "secret-a"})
        assert "secret" not in str(track_peek.everything())
        track_peek.make_due(task_id)
        assert (await tracks.claim("locked", 10)).claims == []
        assert (track_peek.due(task_id) or 0) > track_peek.now_ms() + 30_000
        with pytest.raises(Sealed):
            await tracks.read(task_id)
    finally:
        await sealed.aclose()
