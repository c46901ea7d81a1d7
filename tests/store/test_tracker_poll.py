"""One pass over a due task: cancels and answers are delivered, the server is asked, and no error is another task's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

import pytest
import redis

from mcptasks.errors import ConfigurationError, StoreUnavailable
from mcptasks.settings import Settings
from mcptasks.tracker import intervals, poller
from mcptasks.tracker.model import End, Tracked, TrackStatus
from mcptasks.tracker.remote import ProtocolBroken, RemoteGone, RemoteRefused, RemoteStatus, RemoteUnavailable, Snapshot
from tests.requirements import covers
from tests.support import stub_faults
from tests.support.stub_server import StubServer
from tests.support.stub_steps import asking, completed, working
from tests.support.tracker_desk import Desk, OneDriver, ScriptedDriver, desk, stub_desk
from tests.support.tracking import ASK, DONE, YES
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

ASKING = Snapshot(status=RemoteStatus.INPUT_REQUIRED, questions={"k": ASK})


@pytest.fixture
async def front(settings: Settings, raw: redis.Redis, driver: ScriptedDriver) -> AsyncGenerator[Desk]:
    """A tracker of that server; a call may take 200 ms."""
    async with desk(settings, raw, OneDriver(driver), call_ms=200) as made:
        yield made


async def polled(front: Desk, task_id: str, times: int) -> Tracked:
    """The task after so many polls."""
    for _ in range(times):
        await front.poll(task_id)
    return await front.read(task_id)


# ------------------------------------------------------------------------------------------------ errors


@covers("D3", "D03")
async def test_only_an_answer_about_the_task_ends_its_tracking(settings: Settings, raw: redis.Redis) -> None:
    """D03: after every way to fail comes the result, once; an unknown id ends the task, 500 for ever does not."""
    with StubServer() as stub:
        stub.script = lambda tool, arguments: [working(), working(), completed("R")] if tool == "first" else [working()]
        async with stub_desk(settings, raw, stub, call_ms=400) as front:
            first, second, third = [
                (await front.submit(tool=tool, consumers=("hook",))).task_id for tool in ("first", "second", "third")
            ]
            (task,) = await front.poll(first)
            for fault in (
                stub_faults.silent(1),
                stub_faults.reset(),
                stub_faults.html(502),
                stub_faults.too_many("3"),
                stub_faults.error(-32603),
                stub_faults.invalid_json(),
            ):
                stub.fault("tasks/get", fault)
                before = task.failures
                (task,) = await front.poll(first)
                assert (task.status, task.failures) == (TrackStatus.WORKING, before + 1)
            assert task.degraded
            del stub.tasks[(await front.read(second)).handle or ""]
            stub.always("tasks/get", stub_faults.status(500))
            bad = await polled(front, third, 3)
            stub.always("tasks/get", None)
            (lost,) = await front.poll(second)
            assert (lost.status, lost.reason) == (TrackStatus.FAILED, End.LOST)
            task = await polled(front, first, 2)
            assert (task.status, task.failures, task.result) == (
                TrackStatus.COMPLETED,
                0,
                {"content": [{"type": "text", "text": "R"}], "isError": False},
            )
            assert (bad.failures, bad.status) == (3, TrackStatus.WORKING)
            (healed,) = await front.poll(third)
            assert healed.failures == 0
        assert not stub.asked("tasks/cancel")


@covers("D2")
async def test_errors_back_off_and_retry_after_is_kept(front: Desk, driver: ScriptedDriver) -> None:
    """Counted from when the call ended, by the store's clock."""
    task = await front.submit()
    driver.says["look"] = [RemoteUnavailable("503")] * 6 + [RemoteUnavailable("429", retry_after_ms=900_000)]
    waits: list[float] = []
    for _ in range(7):
        await front.poll(task.task_id)
        waits.append((front.peek.due(task.task_id) or 0) - front.peek.now_ms())
    for wait, longest in zip(waits, (5, 10, 20, 40, 80, 160), strict=False):
        assert longest * 500 - 2_000 <= wait <= longest * 1_000
    assert waits[-1] == pytest.approx(900_000, abs=5_000)


@covers("D4")
async def test_a_server_that_hangs_costs_its_own_poll_alone(front: Desk, driver: ScriptedDriver) -> None:
    """And so does a bug in a driver."""
    tasks = [await front.submit() for _ in range(4)]
    driver.says["look"] = [ValueError("bug"), TimeoutError(), ProtocolBroken("nonsense")]
    found = await front.poll(*(task.task_id for task in tasks))
    assert sorted(task.failures for task in found) == [0, 0, 1, 1]
    assert [task.reason for task in found].count(End.PROTOCOL) == 1
    driver.gates["look"] = asyncio.Event()
    live = [task.task_id for task in found if not task.status.terminal]
    assert [task.last_error for task in await front.poll(*live)] == ["the server did not answer within 0.2 s"] * 3


@covers("D4")
async def test_a_server_that_is_not_configured_here_gives_its_claims_back(
    front: Desk, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For a tracker that knows it; people are told once."""
    task = await front.submit()
    monkeypatch.setattr(front.servers, "driver", _unknown)
    with caplog.at_level(logging.WARNING):
        found = await polled(front, task.task_id, 3)
    assert (found.polls, found.failures) == (0, 0)
    assert (front.peek.due(task.task_id) or 0) > front.peek.now_ms() + 20_000
    assert len([record for record in caplog.records if "tracker that knows it" in record.message]) == 1


def _unknown(name: str) -> object:
    raise ConfigurationError(f"There is no server {name!r}")


@covers("D04")
async def test_a_junk_hint_is_warned_of_once(
    front: Desk, driver: ScriptedDriver, caplog: pytest.LogCaptureFixture
) -> None:
    """And its task is polled as if there were none; its sibling in its own pace."""
    slow, odd = await front.submit(), await front.submit()
    driver.says["look"] = [Snapshot(status=RemoteStatus.WORKING, hint=30_000)]
    await front.poll(slow.task_id)
    with caplog.at_level(logging.WARNING):
        for hint in ("soon", True, -5):
            driver.says["look"] = [Snapshot(status=RemoteStatus.WORKING, hint=hint)]
            await front.poll(odd.task_id)
            assert (front.peek.due(odd.task_id) or 0) - front.peek.now_ms() == pytest.approx(5_000, abs=1_500)
    assert len(caplog.records) == 1
    assert (front.peek.due(slow.task_id) or 0) - front.peek.now_ms() > 25_000


async def _called(driver: ScriptedDriver, method: str) -> bool:
    return bool(driver.named(method))


async def test_what_a_stopped_poll_had_delivered_is_not_delivered_again(front: Desk, driver: ScriptedDriver) -> None:
    """A deploy sends no answer and no cancel twice."""
    task = await front.submit()
    driver.says["look"] = [ASKING]
    await front.poll(task.task_id)
    await front.store.answer(task.task_id, {"k": YES})
    await front.store.cancel(task.task_id, "no")
    driver.calls.clear()
    driver.gates["look"] = asyncio.Event()
    (claim,) = (await front.store.claim("one", 10)).claims
    polling = asyncio.ensure_future(front.poller.poll(claim))
    await eventually(lambda: _called(driver, "look"), description="the look hangs")
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling
    (claim,) = (await front.store.claim("two", 10)).claims
    assert (claim.to_cancel, dict(claim.answers)) == (False, {})
    assert [name for name, _ in driver.calls] == ["cancel", "answer", "look"]


# ------------------------------------------------------------------------------------------------ cancel


@covers("D5")
async def test_a_cancel_is_delivered_by_the_fleet_and_tried_again_until_it_is(
    front: Desk, driver: ScriptedDriver
) -> None:
    """The look of the same pass goes on; the wait does not follow the server's slow pace."""
    task = await front.submit()
    driver.says["look"] = [Snapshot(status=RemoteStatus.WORKING, hint=3_600_000)] * 3
    driver.says["cancel"] = [RemoteUnavailable("503"), RemoteUnavailable("503")]
    await front.store.cancel(task.task_id, "no")
    assert driver.named("cancel") == []
    for attempt in (1, 2):
        (found,) = await front.poll(task.task_id)
        assert (found.cancel_delivered, found.failures, found.polls) == (False, attempt, attempt)
        assert (front.peek.due(task.task_id) or 0) - front.peek.now_ms() < 11_000
    (found,) = await front.poll(task.task_id)
    assert (found.cancel_delivered, found.failures) == (True, 0)
    driver.says["look"] = [Snapshot(status=RemoteStatus.CANCELLED)]
    (found,) = await front.poll(task.task_id)
    assert (found.status, found.reason) == (TrackStatus.CANCELLED, End.CANCELLED)
    assert len(driver.named("cancel")) == 3


@covers("D08")
async def test_five_cancels_at_two_trackers_are_one_on_the_server(settings: Settings, raw: redis.Redis) -> None:
    """D08: at most one in flight; one final state."""
    with StubServer() as stub:
        stub.script, stub.cancel_delay_s = [working()], 0.5
        async with stub_desk(settings, raw, stub) as one, stub_desk(settings, raw, stub) as two:
            task = await one.submit()
            assert (await one.store.cancel(task.task_id, "no")).trackers == 0

            async def track(front: Desk) -> None:
                while not (await front.read(task.task_id)).status.terminal:
                    for claim in (await front.store.claim(str(id(front)), 10)).claims:
                        await front.poller.poll(claim)
                    await asyncio.sleep(0.02)

            async def cancel() -> None:
                for n in range(5):
                    await (one, two)[n % 2].store.cancel(task.task_id, "no")
                    await asyncio.sleep(0.1)

            await asyncio.gather(track(one), track(two), cancel())
            found = await one.read(task.task_id)
            assert (found.status, found.failures) == (TrackStatus.CANCELLED, 0)
        assert len(stub.asked("tasks/cancel")) == 1


@pytest.mark.parametrize("after_cancel", [True, False])
async def test_a_task_that_its_server_forgot_is_cancelled_or_lost(
    front: Desk, driver: ScriptedDriver, after_cancel: bool
) -> None:
    """What it was told last says which."""
    task = await front.submit()
    if after_cancel:
        await front.store.cancel(task.task_id, "no")
        driver.says["cancel"] = [RemoteGone("")]
    driver.says["look"] = [RemoteGone("")]
    (found,) = await front.poll(task.task_id)
    assert (found.status, found.reason) == (TrackStatus.CANCELLED if after_cancel else TrackStatus.FAILED, End.LOST)


async def test_a_server_that_cannot_cancel_is_asked_once(front: Desk, driver: ScriptedDriver) -> None:
    """The task goes on, and is followed to its end."""
    task = await front.submit()
    driver.says["cancel"] = [RemoteRefused(-32601, "no")]
    await front.store.cancel(task.task_id, "no")
    found = await polled(front, task.task_id, 3)
    assert (found.cancel_requested, found.cancel_delivered, found.status) == (True, False, TrackStatus.WORKING)
    assert len(driver.named("cancel")) == 1


# ------------------------------------------------------------------------------------------------ answers


@covers("D06")
async def test_an_answer_is_sent_once_and_a_key_that_is_shown_on_asks_nobody(
    settings: Settings, raw: redis.Redis
) -> None:
    """D06: the stub shows k for a while after its answer, then k2 with the same text."""
    with StubServer() as stub:
        stub.script = [*[asking("k", stays=False, text="Sure?")] * 5, asking("k2", text="Sure?"), completed()]
        async with stub_desk(settings, raw, stub) as front:
            task_id = (await front.submit(consumers=("hook",))).task_id
            task = await polled(front, task_id, 2)
            assert set(task.questions) == {"k"}
            assert (
                await front.store.answer(task_id, {"k": {"action": "accept", "content": {"reply": "y"}}}) == "ANSWERED"
            )
            for _ in range(3):
                (task,) = await front.poll(task_id)
                assert (task.status, dict(task.questions)) == (TrackStatus.WORKING, {})
            (task,) = await front.poll(task_id)
            assert (task.status, set(task.questions)) == (TrackStatus.INPUT_REQUIRED, {"k2"})
            assert await front.store.answer(task_id, {"k2": {"action": "decline"}}) == "ANSWERED"
            (task,) = await front.poll(task_id)
            (task,) = await front.poll(task_id)
            assert task.status is TrackStatus.COMPLETED
            kinds = [event.kind for _, event in await front.store.events("0", 1)]
            assert kinds == ["input_required", "input_required", "completed"]
        updates = [set(seen.params["inputResponses"]) for seen in stub.asked("tasks/update")]
        assert updates == [{"k"}, {"k2"}]


async def test_answers_wait_for_their_server(front: Desk, driver: ScriptedDriver) -> None:
    """An error on the way costs none of them."""
    task = await front.submit()
    driver.says["look"] = [ASKING, ASKING, Snapshot(status=RemoteStatus.WORKING)]
    await front.poll(task.task_id)
    await front.store.answer(task.task_id, {"k": YES})
    driver.says["answer"] = [RemoteUnavailable("503")]
    (found,) = await front.poll(task.task_id)
    assert (found.answered, found.failures) == (("k",), 1)
    (found,) = await front.poll(task.task_id)
    assert (found.answered, found.failures) == ((), 0)
    assert driver.named("answer") == [{"k": YES}] * 2


@covers("D4")
async def test_a_driver_that_is_cancelled_from_within_is_one_that_failed(front: Desk, driver: ScriptedDriver) -> None:
    """Its connection was closed under it, and nobody told the poll to stop: it backs off, and is not due at once."""
    task = await front.submit()
    driver.says["look"] = [asyncio.CancelledError()]
    (found,) = await front.poll(task.task_id)
    assert (found.failures, found.status) == (1, TrackStatus.WORKING)
    assert (front.peek.due(task.task_id) or 0) > front.peek.now_ms() + 1_000


@covers("D4")
async def test_a_poll_that_fails_by_a_bug_backs_off_and_is_shown(
    front: Desk, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose server is away: at each attempt later, and after some of them degraded."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("secret")

    task = await front.submit()
    monkeypatch.setattr(poller, "judged", broken)
    found = await polled(front, task.task_id, 5)
    assert (found.failures, found.degraded, found.last_error) == (5, True, "the poll failed (KeyError)")
    assert (front.peek.due(task.task_id) or 0) > front.peek.now_ms() + intervals.BACKOFF_MS * 4


@covers("D4")
async def test_junk_in_the_place_of_a_receipt_keeps_no_poll_from_its_look(front: Desk, driver: ScriptedDriver) -> None:
    """A server that garbles what it says to a cancel or an answer is told again, and its task ends as it ends."""
    task = await front.submit()
    driver.says["look"] = [ASKING, ASKING, ASKING, Snapshot(status=RemoteStatus.COMPLETED, result=DONE)]
    await front.poll(task.task_id)
    await front.store.answer(task.task_id, {"k": YES})
    driver.says["answer"] = [ProtocolBroken("NaN")]
    (found,) = await front.poll(task.task_id)
    assert (found.answered, found.failures, found.last_error) == (("k",), 1, "NaN")
    await front.store.cancel(task.task_id, "no")
    driver.says["cancel"] = [ProtocolBroken("a list"), ProtocolBroken("a list")]
    (found,) = await front.poll(task.task_id)
    assert (found.answered, found.cancel_delivered, found.failures) == ((), False, 2)
    (found,) = await front.poll(task.task_id)
    assert (found.status, found.result) == (TrackStatus.COMPLETED, DONE)


async def test_an_answer_that_the_server_refuses_opens_its_question_again(front: Desk, driver: ScriptedDriver) -> None:
    """And that is news."""
    task = await front.submit()
    driver.says["look"] = [ASKING, ASKING]
    await front.poll(task.task_id)
    await front.store.answer(task.task_id, {"k": YES})
    driver.says["answer"] = [RemoteRefused(-32602, "not what I asked")]
    (found,) = await front.poll(task.task_id)
    assert (found.status, set(found.questions), found.answered) == (TrackStatus.INPUT_REQUIRED, {"k"}, ())
    assert [event.kind for _, event in await front.store.events("0", 1)] == ["input_required"] * 2
    assert await front.store.answer(task.task_id, {"k": YES}) == "ANSWERED"


async def test_of_several_answers_only_the_one_that_is_refused_is_asked_again(
    front: Desk, driver: ScriptedDriver
) -> None:
    """A server may refuse all for one; a person's good answer is not thrown away with somebody's bad one."""
    task = await front.submit()
    asking = Snapshot(status=RemoteStatus.INPUT_REQUIRED, questions=dict.fromkeys(("a", "b", "c"), ASK))
    driver.says["look"] = [asking, asking]
    await front.poll(task.task_id)
    await front.store.answer(task.task_id, dict.fromkeys(("a", "b", "c"), YES))
    no = RemoteRefused(-32602, "not what I asked")
    driver.says["answer"] = [no, None, no, RemoteUnavailable("502")]
    (found,) = await front.poll(task.task_id)
    together, taken, refused, unsaid = (list(sent) for sent in driver.named("answer"))
    assert sorted(together) == sorted(taken + refused + unsaid) == ["a", "b", "c"]
    assert (list(found.questions), list(found.answered), found.failures) == (refused, unsaid, 1)


async def test_a_result_that_the_store_takes_late_is_not_lost(
    front: Desk, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W10: a poll's outcome waits for the store."""
    task = await front.submit()
    driver.says["look"] = [Snapshot(status=RemoteStatus.COMPLETED, result=DONE)]
    real, failed = front.store.observe, 0

    async def observe(*args: object) -> object:
        nonlocal failed
        failed += 1
        if failed == 1:
            raise StoreUnavailable("away")
        return await real(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(front.store, "observe", observe)
    (found,) = await front.poll(task.task_id)
    assert (found.status, found.result, len(driver.named("look"))) == (TrackStatus.COMPLETED, DONE, 1)
