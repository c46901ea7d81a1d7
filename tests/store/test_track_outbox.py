"""take, hold, delivered, undelivered, replay: news are owed until they are handled, and the newest goes first."""

from __future__ import annotations

import pytest

from mcptasks.tracker.model import Delivery
from mcptasks.tracker.store import outbox
from mcptasks.tracker.store.store import TrackStore
from tests.requirements import covers
from tests.support.tracking import ASK, DONE, TrackPeek, claimed, polled, tracked

pytestmark = pytest.mark.anyio

LEASE_MS = 30_000


async def asking(store: TrackStore, *consumers: str) -> str:
    """A task with an open question, of which these consumers are to be told."""
    return await tracked(store, status="input_required", questions={"k": ASK}, consumers=consumers)


async def end(store: TrackStore, peek: TrackPeek, task_id: str) -> None:
    """The task is completed."""
    claim = await claimed(store, peek, task_id)
    await store.observe(task_id, claim.token, polled("completed", result=DONE))


async def taken(store: TrackStore, consumer: str = "hook") -> Delivery:
    """The one event that the consumer is owed now."""
    (delivery,) = (await store.take(consumer, 10, LEASE_MS)).deliveries
    return delivery


@covers("D6")
async def test_every_consumer_is_owed_the_news_and_each_on_its_own(tracks: TrackStore) -> None:
    """With one id, and the task as it is."""
    task_id = await asking(tracks, "hook", "mail")
    hook, mail = await taken(tracks, "hook"), await taken(tracks, "mail")
    assert hook.event == mail.event
    assert (hook.event.kind, hook.event.task_id, hook.failed) == ("input_required", task_id, 0)
    assert hook.task.questions == {"k": ASK}
    assert await tracks.delivered(hook) == "DELIVERED"
    assert (await tracks.take("hook", 10, LEASE_MS)).wait_ms is None
    assert (await tracks.take("mail", 10, LEASE_MS)).wait_ms == pytest.approx(LEASE_MS, abs=5_000)


async def test_an_event_whose_bearer_was_lost_comes_again_with_the_same_id(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """At least once; and the lost one's late word does not count."""
    task_id = await asking(tracks, "hook")
    first = await taken(tracks)
    assert (await tracks.take("hook", 10, LEASE_MS)).deliveries == []
    track_peek.deliver_now("hook", task_id)
    second = await taken(tracks)
    assert second.event == first.event
    assert await tracks.delivered(first) == "STALE"
    assert await tracks.undelivered(first, delay_ms=1, permanent=True, why="") == "STALE"
    assert await tracks.hold(first, LEASE_MS) == "STALE"
    assert await tracks.delivered(second) == "DELIVERED"
    assert await tracks.delivered(second) == "STALE"


async def test_the_newest_event_takes_the_place_of_one_that_is_not_delivered(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """A busy consumer is told of the end, not of a question that is over; its failed attempts are forgotten."""
    task_id = await asking(tracks, "hook")
    first = await taken(tracks)
    assert await tracks.undelivered(first, delay_ms=60_000, permanent=False, why="busy") == "WAITING"
    await end(tracks, track_peek, task_id)
    second = await taken(tracks)
    assert (second.event.kind, second.failed) == ("completed", 0)
    assert second.event.event_id != first.event.event_id


async def test_news_during_a_delivery_come_right_after_it(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """A task's events never run beside each other, whatever becomes of the first."""
    for fails in (False, True):
        task_id = await asking(tracks, "hook")
        first = await taken(tracks)
        await end(tracks, track_peek, task_id)
        assert (await tracks.take("hook", 10, LEASE_MS)).deliveries == []
        if fails:
            assert await tracks.undelivered(first, delay_ms=60_000, permanent=True, why="410") == "REPLACED"
        else:
            assert await tracks.delivered(first) == "REPLACED"
        second = await taken(tracks)
        assert second.event.kind == "completed"
        assert await tracks.delivered(second) == "DELIVERED"
    assert await tracks.dead() == []


async def test_the_fifth_failure_makes_a_dead_letter_and_a_permanent_one_at_once(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """D6: before another attempt is made. It can be listed and replayed."""
    for permanent in (False, True):
        task_id = await asking(tracks, "hook")
        words: list[str] = []
        while not words or words[-1] == "WAITING":
            track_peek.deliver_now("hook", task_id)
            delivery = await taken(tracks)
            assert delivery.failed == len(words)
            words.append(await tracks.undelivered(delivery, delay_ms=5_000, permanent=permanent, why="HTTP 410"))
        assert words == (["DEAD"] if permanent else ["WAITING"] * 4 + ["DEAD"])
        assert (await tracks.take("hook", 10, LEASE_MS)).deliveries == []
        (letter,) = await tracks.dead()
        assert (letter.event.task_id, letter.consumer, letter.why) == (task_id, "hook", "HTTP 410")
        assert letter.attempts == len(words)
        assert await tracks.replay(task_id, "mail") == "NONE"
        assert await tracks.replay(task_id, "hook") == "REPLAYED"
        assert await tracks.dead() == []
        again = await taken(tracks)
        assert (again.event, again.failed) == (letter.event, 0)
        assert await tracks.delivered(again) == "DELIVERED"


@covers("D6")
async def test_a_failure_that_is_told_twice_is_one(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """The client sends a script again whose answer it did not see; the attempts are those that were made."""
    await asking(tracks, "hook")
    delivery = await taken(tracks)
    assert await tracks.undelivered(delivery, delay_ms=5_000, permanent=False, why="503") == "WAITING"
    before = track_peek.everything()
    assert await tracks.undelivered(delivery, delay_ms=5_000, permanent=False, why="503") == "STALE"
    assert track_peek.everything() == before


@covers("D6")
async def test_each_dead_letter_can_be_replayed_however_many_newer_ones_there_are(
    tracks: TrackStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that was away for long leaves more of them than a list shows; one command brings all again."""
    monkeypatch.setattr(outbox, "DEAD_SHOWN", 1)
    task_ids = [await asking(tracks, "hook", "mail") for _ in range(4)]
    for name in ("hook", "mail"):
        for one in (await tracks.take(name, 10, LEASE_MS)).deliveries:
            assert await tracks.undelivered(one, delay_ms=1, permanent=True, why="410") == "DEAD"
    assert len(await tracks.dead()) == 1
    assert [await tracks.replay_task(task_ids[0], name) for name in ("nobody", "hook", "hook", None)] == [0, 1, 0, 1]
    assert await tracks.replay_all("hook") == 3
    assert await tracks.replay_all(None) == 3
    assert await tracks.replay_all(None) == 0
    for name in ("hook", "mail"):
        told = {one.event.task_id for one in (await tracks.take(name, 10, LEASE_MS)).deliveries}
        assert told == set(task_ids)


async def test_a_newer_event_takes_the_place_of_a_dead_letter(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """The end of a task is told, although its question went to the dead letters."""
    task_id = await asking(tracks, "hook")
    await tracks.undelivered(await taken(tracks), delay_ms=1, permanent=True, why="410")
    await end(tracks, track_peek, task_id)
    assert await tracks.dead() == []
    assert (await taken(tracks)).event.kind == "completed"


async def test_a_delivery_that_takes_long_holds_its_lease(tracks: TrackStore, track_peek: TrackPeek) -> None:
    """A handler of questions may wait for a person."""
    task_id = await asking(tracks, "hook")
    delivery = await taken(tracks)
    track_peek.deliver_now("hook", task_id)
    assert await tracks.hold(delivery, LEASE_MS) == "HELD"
    assert (await tracks.take("hook", 10, LEASE_MS)).deliveries == []


async def test_events_of_a_task_that_is_gone_or_newer_are_passed_over(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """They stand in nobody's way."""
    gone, newer = await asking(tracks, "hook"), await asking(tracks, "hook")
    track_peek.raw.delete(track_peek.keys.task(gone))
    track_peek.raw.hset(track_peek.keys.task(newer), "v", "99")
    assert (await tracks.take("hook", 10, LEASE_MS)).deliveries == []
    assert list(track_peek.raw.zrange(track_peek.keys.outbox("hook"), 0, -1)) == [newer]


@covers("D4")
async def test_an_event_whose_record_cannot_be_read_keeps_nobody_from_his(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """As of a poll: it comes again when its lease is over."""
    broken, sound = await asking(tracks, "hook"), await asking(tracks, "hook")
    track_peek.raw.hset(track_peek.keys.task(broken), "reason", "boredom")
    assert [d.event.task_id for d in (await tracks.take("hook", 10, LEASE_MS)).deliveries] == [sound]
    assert (await tracks.take("hook", 10, LEASE_MS)).deliveries == []


async def test_the_consumers_that_are_known_by_name_are_the_last_hundred(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """Names come with submits, of which there is no end."""
    await asking(tracks, *(f"c{n}" for n in range(60)))
    await asking(tracks, *(f"d{n}" for n in range(60)))
    known = set(track_peek.raw.zrange(track_peek.keys.consumers, 0, -1))
    assert len(known) == 100
    assert known >= {f"d{n}" for n in range(60)}


async def test_every_event_stands_in_the_stream_whoever_is_to_be_told(
    tracks: TrackStore, track_peek: TrackPeek
) -> None:
    """In the same script as the state: it is neither lost nor ahead of it."""
    after = await tracks.last_event()
    task_id = await asking(tracks)
    await end(tracks, track_peek, task_id)
    events = await tracks.events(after, 1_000)
    assert [event.kind for _, event in events] == ["input_required", "completed"]
    assert {event.task_id for _, event in events} == {task_id}
    assert await tracks.events(events[-1][0], 1) == []
