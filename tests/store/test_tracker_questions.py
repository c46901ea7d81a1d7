"""The handler of questions: asked once per key, answers sent once, and told to stop when nobody waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mcptasks.tracker import intervals
from mcptasks.tracker.deliverer import Deliverer
from mcptasks.tracker.model import Tracked
from mcptasks.tracker.questions import QUESTIONS, Handler, Questions
from mcptasks.tracker.remote import RemoteStatus, Snapshot
from tests.requirements import covers
from tests.support.tracker_desk import Desk, ScriptedDriver
from tests.support.tracking import ASK, YES
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


class Person:
    """A handler that waits for a gate, and says what a test wants."""

    def __init__(self, answer: Any = YES) -> None:
        self.asked: list[str] = []
        self.stopped: list[str] = []
        self.gate = asyncio.Event()
        self.answer = answer

    async def __call__(self, task: Tracked, key: str, question: dict[str, Any]) -> Any:
        self.asked.append(key)
        assert question == ASK
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped.append(key)
            raise
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


async def shows(
    front: Desk, driver: ScriptedDriver, task_id: str, *keys: str, status: str = "input_required"
) -> Tracked:
    """A poll has found these questions open."""
    driver.says["look"] = [Snapshot(status=RemoteStatus(status), questions=dict.fromkeys(keys, ASK))]
    (task,) = await front.poll(task_id)
    return task


def handling(front: Desk, person: Handler, task_id: str) -> asyncio.Task[None]:
    """What the handler is owed of the task is being delivered."""

    async def deliver() -> None:
        front.peek.deliver_now(QUESTIONS, task_id)
        post = await front.store.take(QUESTIONS, 10, 60_000)
        consumer = Questions(person, front.store)
        deliverer = Deliverer(QUESTIONS, consumer, front.store, front.options)
        await asyncio.gather(*(deliverer.deliver(delivery) for delivery in post.deliveries))

    return asyncio.ensure_future(deliver())


async def asked(person: Person, *keys: str) -> None:
    """The handler has been asked these, in any order."""

    async def so() -> bool:
        return sorted(person.asked) == sorted(keys)

    await eventually(so, description=f"the handler is asked {keys}")


@covers("D06")
async def test_a_question_is_put_to_the_handler_once_and_its_answer_sent_once(
    front: Desk, driver: ScriptedDriver
) -> None:
    """D06: polls that show it again, also after the answer, ask nobody; a second key with the same text does."""
    person = Person()
    task_id = (await front.submit(consumers=(QUESTIONS,))).task_id
    await shows(front, driver, task_id, "k")
    serving = handling(front, person, task_id)
    await asked(person, "k")
    await shows(front, driver, task_id, "k")
    await shows(front, driver, task_id, "k", "k2")
    await asked(person, "k", "k2")
    person.gate.set()
    await serving
    await shows(front, driver, task_id, "k", "k2")
    await shows(front, driver, task_id, "k", "k2")
    assert driver.named("answer") == [{"k": YES, "k2": YES}]
    await handling(front, person, task_id)
    await asked(person, "k", "k2")
    assert front.peek.raw.zcard(front.peek.keys.outbox(QUESTIONS)) == 0


@covers("D06")
@pytest.mark.parametrize("status", ["cancelled", "working"])
async def test_a_handler_whose_question_is_over_is_told_to_stop(
    front: Desk, driver: ScriptedDriver, status: str
) -> None:
    """Its task has ended, or it was answered elsewhere; a late answer is not sent."""
    person = Person()
    task_id = (await front.submit(consumers=(QUESTIONS,))).task_id
    await shows(front, driver, task_id, "k")
    serving = handling(front, person, task_id)
    await asked(person, "k")
    await shows(front, driver, task_id, status=status)
    await serving
    assert person.stopped == ["k"]
    assert await front.store.answer(task_id, {"k": YES}) == "IGNORED"
    assert driver.named("answer") == []


async def test_a_handler_that_fails_is_asked_again_later(front: Desk, driver: ScriptedDriver) -> None:
    """As any consumer; so is one whose answer does not satisfy its question."""
    for wrong in (RuntimeError("bug"), asyncio.CancelledError(), {"action": "accept", "content": {"ok": "maybe"}}):
        person = Person(wrong)
        person.gate.set()
        task_id = (await front.submit(consumers=(QUESTIONS,))).task_id
        await shows(front, driver, task_id, "k")
        await handling(front, person, task_id)
        assert set((await front.read(task_id)).questions) == {"k"}
        person.answer = YES
        await handling(front, person, task_id)
        assert person.asked == ["k", "k"]
        assert (await front.read(task_id)).answered == ("k",)


async def test_a_handler_that_fails_does_not_wait_for_the_people_who_are_asked_beside_it(
    front: Desk, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One question's handler fails twice while another one's person thinks, who is not asked twice."""
    monkeypatch.setattr(intervals, "DELIVERY_MS", (10,))
    asked_for: list[str] = []
    gate = asyncio.Event()

    async def handler(task: Tracked, key: str, question: dict[str, Any]) -> Any:
        asked_for.append(key)
        if key == "slow":
            await gate.wait()
        elif asked_for.count(key) < 3:
            raise RuntimeError("bug")
        return YES

    task_id = (await front.submit(consumers=(QUESTIONS,))).task_id
    await shows(front, driver, task_id, "slow", "flaky")
    serving = handling(front, handler, task_id)

    async def answered() -> bool:
        return (await front.read(task_id)).answered == ("flaky",)

    await eventually(answered, description="the failing question is asked again and answered")
    gate.set()
    await serving
    assert sorted(asked_for) == ["flaky", "flaky", "flaky", "slow"]
    assert sorted((await front.read(task_id)).answered) == ["flaky", "slow"]


async def test_a_handler_may_leave_a_question_to_others(front: Desk, driver: ScriptedDriver) -> None:
    """None is no answer; the event is handled."""
    person = Person(None)
    person.gate.set()
    task_id = (await front.submit(consumers=(QUESTIONS,))).task_id
    await shows(front, driver, task_id, "k")
    await handling(front, person, task_id)
    assert set((await front.read(task_id)).questions) == {"k"}
    assert front.peek.raw.zcard(front.peek.keys.outbox(QUESTIONS)) == 0


async def test_an_end_is_nothing_for_the_handler(front: Desk, driver: ScriptedDriver) -> None:
    """It is taken off the outbox."""
    person = Person()
    task_id = (await front.submit(consumers=(QUESTIONS,))).task_id
    await shows(front, driver, task_id, status="cancelled")
    await handling(front, person, task_id)
    assert person.asked == []
    assert front.peek.raw.zcard(front.peek.keys.outbox(QUESTIONS)) == 0
