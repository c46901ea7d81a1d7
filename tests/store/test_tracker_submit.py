"""Submit: the handle is stored before it returns, or what it started is cancelled; a crash in between is resolved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from mcptasks.errors import ConfigurationError, StoreUnavailable
from mcptasks.settings import Settings
from mcptasks.tracker.errors import AlreadyTracked, KeyConflict, SubmitUncertain
from mcptasks.tracker.model import End, TrackStatus
from mcptasks.tracker.remote import (
    HANDLE_MAX,
    Accepted,
    ProtocolBroken,
    RemoteRefused,
    RemoteStatus,
    RemoteUnavailable,
    Snapshot,
)
from tests.requirements import covers
from tests.support.stub_server import StubServer
from tests.support.stub_steps import completed, working
from tests.support.tracker_desk import Desk, OneDriver, ScriptedDriver, desk, stub_desk
from tests.support.tracking import DONE, intent
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


def breaks(front: Desk, monkeypatch: pytest.MonkeyPatch, name: str, *, times: int) -> None:
    """The store refuses this transition so many times."""
    left = times
    real: Callable[..., Awaitable[Any]] = getattr(front.store, name)

    async def broken(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise StoreUnavailable("READONLY")
        return await real(*args, **kwargs)

    monkeypatch.setattr(front.store, name, broken)


@covers("D1", "D11")
async def test_six_calls_are_sent_once_each_and_each_gets_its_own_result(settings: Settings, raw: redis.Redis) -> None:
    """D11: whatever order they end in, and over a restart of the tracker."""
    with StubServer() as stub:
        stub.script = lambda tool, arguments: [working(), completed(f"result {arguments['n']}")]
        async with stub_desk(settings, raw, stub) as front:
            tasks = [await front.submit(arguments={"n": n}) for n in range(6)]
            for n in (2, 0):
                await front.poll(tasks[n].task_id)
                await front.poll(tasks[n].task_id)
        async with stub_desk(settings, raw, stub) as again:
            for n in (5, 1, 4, 3):
                await again.poll(tasks[n].task_id)
                await again.poll(tasks[n].task_id)
            for n, task in enumerate(tasks):
                found = await again.read(task.task_id)
                assert found.status is TrackStatus.COMPLETED
                assert found.result is not None
                assert found.result["content"][0]["text"] == f"result {n}"
        assert len(stub.asked("tools/call")) == 6


async def test_the_handle_is_stored_before_submit_returns(front: Desk, driver: ScriptedDriver) -> None:
    """D1: with the intent before it, and the key that travels along."""
    task = await front.submit(consumers=("hook",))
    assert (task.status, task.handle, task.consumers) == (TrackStatus.WORKING, "h1", ("hook",))
    assert driver.calls == [("submit", task.task_id)]


async def test_an_unknown_server_and_a_store_that_is_away_stop_it_before_the_call(
    front: Desk, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent, nothing is stored."""
    breaks(front, monkeypatch, "intend", times=1)
    with pytest.raises(StoreUnavailable):
        await front.submit()
    monkeypatch.setattr(front.servers, "driver", _no_server)
    with pytest.raises(ConfigurationError):
        await front.submit()
    assert driver.calls == []
    assert front.peek.everything() == {}


def _no_server(server: str) -> Any:
    raise ConfigurationError(f"There is no server {server!r}")


async def test_a_server_that_answers_at_once_is_recorded_as_completed(front: Desk, driver: ScriptedDriver) -> None:
    """There is no task to track."""
    driver.says["submit"] = [Accepted(handle=None, snapshot=Snapshot(status=RemoteStatus.COMPLETED, result=DONE))]
    task = await front.submit()
    assert (task.status, task.result, task.handle) == (TrackStatus.COMPLETED, DONE, None)


async def test_the_same_id_again_sends_nothing(front: Desk, driver: ScriptedDriver) -> None:
    """Submission happens once per local id; another call under it is refused."""
    one = intent(server="stub")
    first = await front.submitter.submit(one)
    assert await front.submitter.submit(one) == first
    with pytest.raises(KeyConflict):
        await front.submit(task_id=one.task_id, arguments={"other": 1})
    assert len(driver.named("submit")) == 1


@pytest.mark.parametrize("repeatable", [True, False])
async def test_an_intent_whose_storing_was_not_confirmed_is_not_sent_behind_its_callers_back(
    front: Desk, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch, repeatable: bool
) -> None:
    """The script ran, and its answer was lost: with a key the caller comes again, without one it is abandoned."""
    real = front.store.intend

    async def lost(*args: Any) -> Any:
        await real(*args)
        raise StoreUnavailable("time-out")

    monkeypatch.setattr(front.store, "intend", lost)
    one = intent(server="stub", repeatable=repeatable)
    with pytest.raises(StoreUnavailable):
        await front.submitter.submit(one)
    await front.submitter.aclose()
    assert (await front.read(one.task_id)).status is (TrackStatus.INTENDED if repeatable else TrackStatus.FAILED)
    assert driver.calls == []


@covers("D1", "D01")
async def test_a_handle_that_cannot_be_stored_is_cancelled_and_the_first_error_raised(
    front: Desk, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D01: the store is read-only for a while; the remote task does not run on without anybody knowing."""
    breaks(front, monkeypatch, "track", times=1)
    driver.says["cancel"] = [RemoteUnavailable("502")]
    one = intent(server="stub")
    with pytest.raises(StoreUnavailable, match="READONLY"):
        await front.submitter.submit(one)
    assert driver.named("cancel") == ["h1", "h1"]
    task = await front.read(one.task_id)
    assert (task.status, task.reason) == (TrackStatus.FAILED, End.ABANDONED)


@covers("D1")
async def test_compensation_is_waited_for_a_bounded_time_and_goes_on_behind_it(
    settings: Settings, raw: redis.Redis, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hangs does not hold the caller, and the remote task is cancelled all the same."""
    async with desk(settings, raw, OneDriver(driver), compensation_ms=50) as front:
        breaks(front, monkeypatch, "track", times=1)
        driver.gates["cancel"] = asyncio.Event()
        one = intent(server="stub")
        with pytest.raises(StoreUnavailable):
            await front.submitter.submit(one)
        assert (await front.read(one.task_id)).status is TrackStatus.INTENDED
        driver.gates["cancel"].set()
        await eventually(lambda: _has_ended(front, one.task_id), description="the intent is abandoned")
        assert driver.named("cancel") == ["h1"]


async def _has_ended(front: Desk, task_id: str) -> bool:
    return (await front.read(task_id)).status.terminal


@covers("D1")
@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_caller_that_is_cancelled_leaves_no_remote_task_running(
    front: Desk, driver: ScriptedDriver, cancels: int
) -> None:
    """Not even a second cancel interrupts that."""
    driver.gates["submit"] = asyncio.Event()
    one = intent(server="stub")
    calling = asyncio.ensure_future(front.submitter.submit(one))
    await eventually(lambda: _called(driver, "submit"), description="the call is out")
    for _ in range(cancels):
        calling.cancel()
        await asyncio.sleep(0)
    driver.gates["submit"].set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert driver.named("cancel") == ["h1"]
    task = await front.read(one.task_id)
    assert (task.handle, task.cancel_requested) == ("h1", True)


@covers("D1")
@pytest.mark.parametrize("ours", [True, False])
async def test_a_caller_that_is_cancelled_before_the_call_leaves_no_intent_for_the_fleet_to_send(
    front: Desk, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    """His intent was being stored. One of the same key that somebody else is about to send is not his to take back."""
    one = intent(server="stub", repeatable=True)
    if not ours:
        assert await front.store.intend(one, "another submitter") == "INTENDED"
    real, stored, gate = front.store.intend, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any) -> Any:
        answer = await real(*args)
        stored.set()
        await gate.wait()
        return answer

    monkeypatch.setattr(front.store, "intend", slow)
    calling = asyncio.ensure_future(front.submitter.submit(one))
    await stored.wait()
    calling.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await front.submitter.aclose()
    found = await front.store.read(one.task_id)
    assert (found is None) if ours else (found is not None and found.status is TrackStatus.INTENDED)
    assert driver.calls == []


async def _called(driver: ScriptedDriver, method: str) -> bool:
    return bool(driver.named(method))


@covers("D1")
async def test_a_handle_too_long_to_store_is_a_protocol_error_and_cancelled(
    front: Desk, driver: ScriptedDriver
) -> None:
    """The longest that fits is stored."""
    working = Snapshot(status=RemoteStatus.WORKING)
    long, longest = "x" * (HANDLE_MAX + 1), "x" * HANDLE_MAX
    driver.says["submit"] = [Accepted(handle=one, snapshot=working) for one in (long, longest)]
    one = intent(server="stub")
    with pytest.raises(ProtocolBroken):
        await front.submitter.submit(one)
    assert driver.named("cancel") == [long]
    task = await front.read(one.task_id)
    assert (task.status, task.reason, task.handle) == (TrackStatus.FAILED, End.PROTOCOL, None)
    assert (await front.submit()).handle == longest


@covers("D1", "D01")
async def test_a_handle_that_is_tracked_already_is_refused_and_nothing_cancelled(
    front: Desk, driver: ScriptedDriver
) -> None:
    """D01, variant: the one row stays."""
    first = await front.submit()
    driver.says["submit"] = [Accepted(handle="h1", snapshot=Snapshot(status=RemoteStatus.WORKING))]
    before = front.peek.fields(first.task_id)
    with pytest.raises(AlreadyTracked) as raised:
        await front.submit()
    assert raised.value.task_id == first.task_id
    assert driver.named("cancel") == []
    assert front.peek.fields(first.task_id) == before


@pytest.mark.parametrize(
    "error",
    [RemoteRefused(-32602, "no such tool"), RemoteUnavailable("refused", sent=False)],
    ids=["refused", "unsent"],
)
async def test_a_call_that_started_nothing_has_failed(front: Desk, driver: ScriptedDriver, error: Exception) -> None:
    """And its error is the caller's."""
    driver.says["submit"] = [error]
    one = intent(server="stub")
    with pytest.raises(type(error)):
        await front.submitter.submit(one)
    task = await front.read(one.task_id)
    assert (task.status, task.reason) == (TrackStatus.FAILED, End.REFUSED)
    assert front.peek.due(one.task_id) is None


@covers("D1")
async def test_a_call_that_was_not_sent_may_be_made_again_under_its_key(front: Desk, driver: ScriptedDriver) -> None:
    """It is as if it had not been: its second time is its first."""
    driver.says["submit"] = [RemoteUnavailable("refused", sent=False)]
    one = intent(server="stub", repeatable=True, consumers=("hook",))
    with pytest.raises(RemoteUnavailable):
        await front.submitter.submit(one)
    assert front.peek.everything() == {}
    task = await front.submitter.submit(one)
    assert (task.status, task.handle) == (TrackStatus.WORKING, "h1")


async def test_a_call_whose_turn_does_not_come_was_not_sent(settings: Settings, raw: redis.Redis) -> None:
    """However long it stood in the queue, it is no doubtful one; one that did go out is."""
    driver = ScriptedDriver(honours_key=False)
    async with desk(settings, raw, OneDriver(driver), call_ms=50) as front:
        driver.gates["turn"] = asyncio.Event()
        one, other = intent(server="stub"), intent(server="stub")
        with pytest.raises(RemoteUnavailable, match="was not sent") as raised:
            await front.submitter.submit(one)
        assert not raised.value.sent
        assert (await front.read(one.task_id)).reason is End.REFUSED
        del driver.gates["turn"]
        driver.gates["submit"] = asyncio.Event()
        with pytest.raises(SubmitUncertain):
            await front.submitter.submit(other)
        assert (await front.read(other.task_id)).status is TrackStatus.UNKNOWN


async def test_a_call_has_its_whole_time_behind_its_turn(settings: Settings, raw: redis.Redis) -> None:
    """The wait before it takes nothing from it."""
    driver = ScriptedDriver(honours_key=False)
    async with desk(settings, raw, OneDriver(driver), call_ms=2_000) as front:
        driver.gates |= {"turn": asyncio.Event(), "submit": asyncio.Event()}
        loop = asyncio.get_running_loop()
        loop.call_later(1.5, driver.gates["turn"].set)
        loop.call_later(2.7, driver.gates["submit"].set)
        assert (await front.submit()).status is TrackStatus.WORKING


@covers("D01")
async def test_a_lost_answer_is_asked_for_again_with_the_same_key(front: Desk, driver: ScriptedDriver) -> None:
    """Where the server keeps to keys: there is one remote task, and it is found."""
    driver.says["submit"] = [RemoteUnavailable("reset"), RemoteUnavailable("503", retry_after_ms=60_000)]
    one = intent(server="stub")
    with pytest.raises(SubmitUncertain) as raised:
        await front.submitter.submit(one)
    assert raised.value.task_id == one.task_id
    (task,) = await front.poll(one.task_id)
    assert (task.status, task.failures) == (TrackStatus.INTENDED, 1)
    assert (front.peek.due(one.task_id) or 0) > front.peek.now_ms() + 50_000
    (task,) = await front.poll(one.task_id)
    assert (task.status, task.handle) == (TrackStatus.WORKING, "h1")
    assert driver.named("submit") == [one.key] * 3


@covers("D01")
async def test_a_lost_answer_of_a_server_without_keys_is_for_a_person(settings: Settings, raw: redis.Redis) -> None:
    """It is never sent again blindly: not by the submitter, not by the fleet."""
    driver = ScriptedDriver(honours_key=False)
    async with desk(settings, raw, OneDriver(driver)) as front:
        driver.says["submit"] = [RemoteUnavailable("reset")]
        one = intent(server="stub")
        with pytest.raises(SubmitUncertain):
            await front.submitter.submit(one)
        assert (await front.read(one.task_id)).status is TrackStatus.UNKNOWN
        # The submitter died between its intent and its handle.
        other = intent(server="stub")
        await front.store.intend(other, "n")
        (task,) = await front.poll(other.task_id)
        assert task.status is TrackStatus.UNKNOWN
        assert len(driver.named("submit")) == 1


@covers("D01")
async def test_the_intent_of_a_dead_submitter_becomes_a_tracked_task(front: Desk, driver: ScriptedDriver) -> None:
    """Killed before the call went out, or after: the same key, one remote task."""
    one = intent(server="stub", arguments={"n": 7})
    await front.store.intend(one, "n")
    await driver.submit(one.tool, one.arguments, key=one.key)
    (task,) = await front.poll(one.task_id)
    assert (task.status, task.handle) == (TrackStatus.WORKING, "h1")
    assert len(driver.handles) == 1


async def test_a_recovered_call_that_is_refused_has_failed(front: Desk, driver: ScriptedDriver) -> None:
    """The fleet's poll raises nothing."""
    one = intent(server="stub")
    await front.store.intend(one, "n")
    driver.says["submit"] = [RemoteRefused(-32602, "no such tool")]
    (task,) = await front.poll(one.task_id)
    assert (task.status, task.reason) == (TrackStatus.FAILED, End.REFUSED)


async def test_a_second_handle_for_one_task_is_cancelled(front: Desk, driver: ScriptedDriver) -> None:
    """A server that says it keeps to keys and does not: the late one of two is not left running."""
    one = intent(server="stub")
    driver.gates["submit"] = asyncio.Event()
    calling = asyncio.ensure_future(front.submitter.submit(one))
    await eventually(lambda: _called(driver, "submit"), description="the call is out")
    await front.store.track(one.task_id, "stub", "elsewhere", front.submitter.judge(_working()))
    driver.gates["submit"].set()
    task = await calling
    assert task.handle == "elsewhere"
    assert driver.named("cancel") == ["h1"]


def _working() -> Accepted:
    return Accepted(handle="elsewhere", snapshot=Snapshot(status=RemoteStatus.WORKING))
