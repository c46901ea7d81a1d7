"""What servers tell by themselves makes a task due when it is news, and never because it was told again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from mcptasks.tracker import pushes
from mcptasks.tracker.pushes import Pushes
from mcptasks.tracker.remote import RemoteStatus, RemoteUnavailable, Snapshot
from tests.requirements import covers
from tests.support.tracker_desk import Desk, ScriptedDriver
from tests.support.tracking import ASK, DONE, YES
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

WORKING = Snapshot(status=RemoteStatus.WORKING)
ASKING = Snapshot(status=RemoteStatus.INPUT_REQUIRED, questions={"k": ASK})


@pytest.fixture
def nudged(front: Desk, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks that were made due, in turn; subscriptions follow each other closely."""
    monkeypatch.setattr(pushes, "_AGAIN_S", 0.01)
    found: list[str] = []

    async def nudge(task_id: str) -> str:
        found.append(task_id)
        return "NUDGED"

    monkeypatch.setattr(front.store, "nudge", nudge)
    return found


@asynccontextmanager
async def following(front: Desk, *task_ids: str) -> AsyncGenerator[None]:
    """Inside the block the tasks' server is listened to."""
    made = Pushes(front.store, front.servers)
    for task in [await front.read(task_id) for task_id in task_ids]:
        made.follow(task)
    try:
        yield
    finally:
        await made.aclose()


async def listened(driver: ScriptedDriver, times: int) -> None:
    """The server was subscribed to so often, and the one before the last told all it had to."""

    async def so() -> bool:
        return len(driver.named("listen")) >= times

    await eventually(so, description=f"{times} subscriptions")


@covers("D04")
async def test_a_subscription_that_tells_what_is_known_makes_nothing_due(
    front: Desk, driver: ScriptedDriver, nudged: list[str]
) -> None:
    """Each new task means a new subscription, which tells of all others again: that must be no poll of each."""
    tasks = [await front.submit() for _ in range(4)]
    driver.says["look"] = [ASKING]
    await front.poll(tasks[3].task_id)
    await front.store.answer(tasks[3].task_id, {"k": YES})
    handles = [task.handle or "" for task in tasks]
    known = [*((handle, WORKING) for handle in handles[:3]), (handles[3], ASKING)]
    ended = (handles[1], Snapshot(status=RemoteStatus.COMPLETED, result=DONE))
    driver.says["listen"] = [known, known, [*known, (handles[0], ASKING)], [(handles[0], ASKING)], [ended], []]
    async with following(front, *(task.task_id for task in tasks)):
        await listened(driver, 7)
    assert nudged == [tasks[0].task_id, tasks[1].task_id]
    assert driver.named("listen")[0] == tuple(handles)
    assert driver.named("listen")[6] == (handles[0], *handles[2:]), "what has ended is followed no more"


@covers("D04")
async def test_messages_alone_make_a_task_due_now_and_then_and_a_question_at_once(
    front: Desk, driver: ScriptedDriver, nudged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that tells its progress twenty times a second is not polled as often."""
    monkeypatch.setattr(pushes, "_MESSAGE_S", 3_600.0)
    task = await front.submit()
    handle = task.handle or ""
    told = [(handle, Snapshot(status=RemoteStatus.WORKING, message=f"{n} %")) for n in range(50)]
    driver.says["listen"] = [[*told, (handle, ASKING), *told]]
    async with following(front, task.task_id):
        await listened(driver, 2)
    assert len(nudged) == 3, "the first message, the question, and that it is open no more"


async def test_a_stream_that_breaks_is_opened_ever_less_often_until_it_tells_something(
    front: Desk, driver: ScriptedDriver, nudged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not before its server wants to be asked again."""
    waits: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await real(0)

    task = await front.submit()
    away = [RemoteUnavailable("502")] * 3
    busy = RemoteUnavailable("429", retry_after_ms=90_000)
    driver.says["listen"] = [*away, busy, [(task.handle, WORKING)], RemoteUnavailable("502")]
    monkeypatch.setattr(pushes.asyncio, "sleep", sleep)
    async with following(front, task.task_id):
        await listened(driver, 7)
    again = [wait for wait in waits if wait > 1]
    assert 1 < again[0] <= 5 <= again[1] <= 10 <= again[2] <= 20
    assert again[3] == 90
    assert again[4] <= 5
