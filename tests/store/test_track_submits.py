"""intend, track, doubt, retract, abandon: an intent before the call, the handle after it, never two tasks for one."""

from __future__ import annotations

import asyncio

import pytest

from mcptasks.errors import BadPayload, SchemaTooNew, TooLarge
from mcptasks.tracker.model import End, TrackStatus
from mcptasks.tracker.store.store import TrackStore
from tests.support.tracking import ASK, DONE, TrackPeek, claimed, intended, intent, read, seen, tracked

pytestmark = pytest.mark.anyio


async def test_an_intent_is_its_submitters_for_a_lease_and_then_the_fleets(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """What is needed to send the call again is stored; nobody sends it while its submitter may live."""
    task_id = await intended(tracks, arguments={"n": [1.5, None]}, owner="ann", consumers=("hook", "mail"))
    task = await read(tracks, task_id)
    assert (task.status, task.handle, task.owner, task.consumers) == (
        TrackStatus.INTENDED,
        None,
        "ann",
        ("hook", "mail"),
    )
    assert (await tracks.claim("me", 10)).claims == []
    claim = await claimed(tracks, track_peek, task_id)
    assert (claim.arguments, claim.key, claim.task.tool) == ({"n": [1.5, None]}, task_id, "export")


async def test_the_same_intent_again_is_known_and_another_one_under_its_id_is_refused(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """W2's rule for caller-chosen ids. The same nonce is our own client, which saw no answer."""
    one = intent()
    assert await tracks.intend(one, "n1") == "INTENDED"
    assert await tracks.intend(one, "n1") == "INTENDED"
    before = track_peek.everything()
    assert await tracks.intend(one, "n2") == "EXISTS"
    assert await tracks.intend(intent(task_id=one.task_id, arguments={"n": 2}), "n2") == "CONFLICT"
    assert track_peek.everything() == before
    track_peek.raw.hset(track_peek.keys.task(one.task_id), "v", "99")
    with pytest.raises(SchemaTooNew):
        await tracks.intend(one, "n3")


async def test_arguments_that_cannot_be_kept_are_refused(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """Before anything is stored."""
    with pytest.raises(TooLarge):
        await tracks.intend(intent(arguments={"x": "y" * tracks.settings.arguments_max}), "n")
    with pytest.raises(BadPayload):
        await tracks.intend(intent(arguments={"x": float("nan")}), "n")
    assert track_peek.everything() == {}


async def test_the_handle_is_stored_and_what_was_to_be_sent_is_not_kept(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """With the first word of the server about its task."""
    task_id = await intended(tracks)
    answer = await tracks.track(task_id, "crm", "h1", seen("input_required", questions={"k": ASK}, hint=3_000))
    assert answer.outcome == "TRACKED"
    task = await read(tracks, task_id)
    assert (task.handle, task.status, task.questions) == ("h1", TrackStatus.INPUT_REQUIRED, {"k": ASK})
    assert "args" not in track_peek.fields(task_id)
    # Our own client, once more; or the fleet, which sent the call again with the same key.
    before = track_peek.everything()
    assert (await tracks.track(task_id, "crm", "h1", seen())).outcome == "SAME"
    assert (await tracks.track(task_id, "crm", "h2", seen())).outcome == "OTHER"
    assert track_peek.everything() == before


async def test_a_server_that_answers_at_once_leaves_an_ended_task(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """Its result is there, and nothing is polled."""
    task_id = await intended(tracks, consumers=("hook",))
    assert (await tracks.track(task_id, "crm", None, seen("completed", result=DONE))).outcome == "ENDED"
    task = await read(tracks, task_id)
    assert (task.status, task.result, task.handle) == (TrackStatus.COMPLETED, DONE, None)
    assert track_peek.due(task_id) is None
    assert (await tracks.track(task_id, "crm", None, seen("completed", result=DONE))).outcome == "SAME"
    assert [d.event.kind for d in (await tracks.take("hook", 10, 1_000)).deliveries] == ["completed"]


async def test_a_handle_that_is_tracked_is_refused_and_its_task_not_touched(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """D1. On another server the same handle is another task."""
    first = await tracked(tracks, "h")
    before = track_peek.fields(first)
    second = await intended(tracks)
    answer = await tracks.track(second, "crm", "h", seen())
    assert (answer.outcome, answer.other) == ("TAKEN", first)
    assert track_peek.fields(first) == before
    task = await read(tracks, second)
    assert (task.status, task.reason, task.handle) == (TrackStatus.FAILED, End.DUPLICATE, None)
    third = await intended(tracks, server="hr")
    assert (await tracks.track(third, "hr", "h", seen())).outcome == "TRACKED"


async def test_a_tracked_handle_is_not_its_bringers_to_cancel_however_his_intent_has_ended(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """D1: cancelled meanwhile, or refused already, by a script that the client sent twice. TERMINAL would cancel it."""
    first = await tracked(tracks, "h")
    before = track_peek.fields(first)
    second, third = await intended(tracks), await intended(tracks)
    assert await tracks.abandon(second, TrackStatus.CANCELLED, End.ABANDONED, "no") == "ABANDONED"
    for task_id in (second, third, third):
        answer = await tracks.track(task_id, "crm", "h", seen())
        assert (answer.outcome, answer.other) == ("TAKEN", first)
    assert track_peek.fields(first) == before
    ends = [((await read(tracks, task_id)).status, (await read(tracks, task_id)).reason) for task_id in (second, third)]
    assert ends == [(TrackStatus.CANCELLED, End.ABANDONED), (TrackStatus.FAILED, End.DUPLICATE)]


async def test_of_two_that_bring_the_same_handle_at_once_one_has_it(tracks: TrackStore) -> None:
    """One script decides."""
    task_ids = [await intended(tracks) for _ in range(8)]
    answers = await asyncio.gather(*(tracks.track(task_id, "crm", "h", seen()) for task_id in task_ids))
    assert sorted(answer.outcome for answer in answers) == ["TAKEN"] * 7 + ["TRACKED"]


async def test_a_cancel_during_the_submit_is_delivered_once_there_is_a_handle(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """Before that there is nothing to cancel."""
    task_id = await intended(tracks)
    assert (await tracks.cancel(task_id, "no")).outcome == "REQUESTED"
    assert (await tracks.claim("me", 10)).claims == []
    await tracks.track(task_id, "crm", "h", seen(hint=600_000))
    (claim,) = (await tracks.claim("me", 10)).claims
    assert claim.to_cancel


async def test_a_doubtful_intent_waits_for_a_person(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """It is never polled or sent again; a handle that turns up late resolves it."""
    task_id = await intended(tracks, consumers=("hook",))
    assert await tracks.doubt(task_id, "no answer") == "DOUBTED"
    assert await tracks.doubt(task_id, "no answer") == "IGNORED"
    assert (await read(tracks, task_id)).status is TrackStatus.UNKNOWN
    assert track_peek.due(task_id) is None
    assert [d.event.kind for d in (await tracks.take("hook", 10, 1_000)).deliveries] == ["unknown"]
    assert (await tracks.track(task_id, "crm", "h", seen())).outcome == "TRACKED"
    other = await intended(tracks)
    await tracks.doubt(other, "")
    assert (await tracks.cancel(other, "gave up")).outcome == "CANCELLED"
    task = await read(tracks, other)
    assert (task.status, task.message) == (TrackStatus.CANCELLED, "gave up")


async def test_nothing_is_left_of_a_retracted_intent(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """Its id is free for the same call and for another one; what has been in other hands stays."""
    before = track_peek.everything()
    one = intent(consumers=("hook",))
    await tracks.intend(one, "n")
    assert await tracks.retract(one.task_id) == "RETRACTED"
    assert track_peek.everything() == before
    assert await tracks.retract(one.task_id) == "IGNORED"
    assert await tracks.intend(intent(task_id=one.task_id, arguments={"n": 2}), "other") == "INTENDED"
    live = await tracked(tracks)
    taken = await intended(tracks)
    await claimed(tracks, track_peek, taken)
    doubted = await intended(tracks)
    await tracks.doubt(doubted, "")
    for task_id in (live, taken, doubted):
        kept = track_peek.fields(task_id)
        assert await tracks.retract(task_id) == "IGNORED"
        assert track_peek.fields(task_id) == kept


async def test_an_abandoned_intent_has_ended_and_takes_no_handle(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """Whoever brings one is told, and cancels what it stands for."""
    task_id = await intended(tracks)
    assert await tracks.abandon(task_id, TrackStatus.FAILED, End.REFUSED, "no such tool") == "ABANDONED"
    task = await read(tracks, task_id)
    assert (task.status, task.reason, task.message) == (TrackStatus.FAILED, End.REFUSED, "no such tool")
    assert (await tracks.track(task_id, "crm", "h", seen())).outcome == "TERMINAL"
    assert (await tracks.track("x" * 32, "crm", "h", seen())).outcome == "GONE"
    live = await tracked(tracks)
    assert await tracks.abandon(live, TrackStatus.CANCELLED, End.ABANDONED, "") == "IGNORED"
