"""Everything that can happen to a task, each as a value: done to the store, and expected of the task's `Life`."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from mcptasks.model import Claim, Guard, Hint, Journal, Place, Reason, Record, Status, Submission, Timer
from mcptasks.policy import Policy
from mcptasks.store.base import Next
from mcptasks.store.callers import Created
from mcptasks.store.store import TaskStore
from mcptasks.store.timeline import Remark
from mcptasks.times import InputLimit
from tests.support.life import INPUT_LIMIT, OWNER, PAST, REST, TOO_LATE, Answer, Life, Window
from tests.support.tasks import asking, question

TOOL: Final = "report"
#: Not the settings' own: whatever is sent because of a task goes where its tool's policy says.
QUEUE: Final = "slow"
PLACE: Final = Place(0, 1)

_PAYLOADS: Final[dict[Status, tuple[Reason, tuple[str, str] | None]]] = {
    Status.COMPLETED: (Reason.COMPLETED, ("result", '{"content":[]}')),
    Status.FAILED: (Reason.FAILED, ("error", '{"code":-32050,"message":"No"}')),
    Status.CANCELLED: (Reason.CANCELLED, None),
}
_NOBODY: Final = '{"code":-32603,"message":"Nobody"}'
_ERROR: Final = '{"code":-32051,"message":"Busy"}'


class Move(ABC):
    """One thing that happens."""

    @abstractmethod
    def expect(self, life: Life, at: Window) -> Answer:
        """The task moved on; what the store must answer."""

    @abstractmethod
    async def do(self, store: TaskStore, task_id: str) -> Answer:
        """It happened; what the store answered."""


def said(answer: Next | Claim) -> Answer:
    """The store's answer in the terms of `Life`."""
    if isinstance(answer, Claim):
        record, journal = answer.record, answer.journal
        return (
            *("CLAIMED", answer.token, record.attempt, record.worker, dict(journal.answers)),
            *({name: str(value) for name, value in journal.steps.items()}, journal.guard is not None, answer.progress),
        )
    if answer.outcome in ("PARKED", "RETRYING", "SLEEPING") or answer.hint is not None:
        return answer.outcome, _message(answer)
    return (answer.outcome, answer.detail) if answer.detail else (answer.outcome,)


def _message(answer: Next) -> tuple[int, int, Any] | None:
    hint = answer.hint
    if hint is None:
        return None
    assert (hint.tool, hint.queue) == (TOOL, QUEUE)
    some = answer.outcome in ("EARLY", "SLEEPING") and hint.countdown_ms > 0
    return hint.run, hint.look, REST if some else hint.countdown_ms


def fenced(task_id: str, token: int) -> Claim:
    """As much of a claim as the store looks at: the task and the token."""
    record = Record(
        task_id=task_id,
        tool=TOOL,
        owner=OWNER,
        status=Status.RUNNING,
        created_ms=0,
        updated_ms=0,
        ttl_ms=None,
        poll_ms=0,
        revision=0,
        token=token,
        attempt=0,
    )
    return Claim(record=record, submission=None, journal=Journal(), progress=None, at_ms=0)


# ------------------------------------------------------------------------------------------------ callers


@dataclass(frozen=True)
class CreateAgain(Move):
    """The server's client sends the script once more, because it saw no answer."""

    def expect(self, life: Life, at: Window) -> Answer:
        return ("CREATED",)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        answer = await store.create(
            task_id,
            Submission(tool=TOOL, arguments={"again": True}, protocol_version="2026-07-28"),
            owner="bob",
            policy=Policy(),
        )
        assert isinstance(answer, Created)
        return (answer.outcome,)


@dataclass(frozen=True)
class Give(Move):
    """A caller answers."""

    answers: Mapping[str, int]
    owner: str = OWNER

    def expect(self, life: Life, at: Window) -> Answer:
        return life.answer(at, self.owner, self.answers)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        return said(await store.answer(task_id, self.owner, self.answers))


@dataclass(frozen=True)
class Cancel(Move):
    """A caller cancels, or the operator (owner None)."""

    owner: str | None = OWNER
    why: str = "No more"

    def expect(self, life: Life, at: Window) -> Answer:
        return life.cancel(at, self.owner, self.why)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        return (await store.cancel(task_id, self.owner, self.why),)


# ------------------------------------------------------------------------------------------------ workers


@dataclass(frozen=True)
class Take(Move):
    """A worker has a message for the run. The same worker's second wish is its first, whose answer got lost."""

    run: int
    worker: str
    look: int = 0

    def expect(self, life: Life, at: Window) -> Answer:
        return life.claim(at, self.run, self.look, self.worker)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        message = Hint(task_id=task_id, run=self.run, look=self.look)
        return said(await store.claim(message, self.worker, nonce=self.worker))


@dataclass(frozen=True)
class Renew(Move):
    """The run's lease is renewed."""

    token: int

    def expect(self, life: Life, at: Window) -> Answer:
        return life.renew(at, self.token)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        return tuple(await store.renew([(task_id, self.token)]))


@dataclass(frozen=True)
class Tell(Move):
    """The run reports progress."""

    token: int
    message: str = "Half way"
    done: float = 1.5
    rate: float | None = 0.25

    def expect(self, life: Life, at: Window) -> Answer:
        return life.progress(at, self.token, self.message, self.done, 3.0, self.rate)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        return (await store.progress(fenced(task_id, self.token), self.message, self.done, 3.0, self.rate),)


@dataclass(frozen=True)
class Say(Move):
    """The tool adds to its timeline."""

    token: int
    text: str = "7"

    def expect(self, life: Life, at: Window) -> Answer:
        return life.note(at, self.token, self.text)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        return (await store.note(fenced(task_id, self.token), [Remark(0, "note", self.text)]),)


@dataclass(frozen=True)
class Ask(Move):
    """The run asks under these keys."""

    token: int
    keys: tuple[str, ...]
    hold: bool = False
    text: str = "Sure?"
    guard: bool = False
    #: What happens when nobody answers in time; None: there is all the time.
    limit: str | None = None

    def expect(self, life: Life, at: Window) -> Answer:
        asked = [(key, self.text) for key in self.keys]
        return life.ask(at, self.token, asked, hold=self.hold, guard=self.guard, limit=self.limit)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        failure = TOO_LATE if self.limit == "fail" else None
        limit = None if self.limit is None else InputLimit(ms=INPUT_LIMIT, failure=failure)
        asked = asking(*(replace(question(key, self.text), limit=limit) for key in self.keys))
        guard = Guard(round=1, request_state="s", keys={}) if self.guard else None
        return said(await store.ask(fenced(task_id, self.token), asked, guard=guard, hold=self.hold))


@dataclass(frozen=True)
class Sleep(Move):
    """The run comes to timers: each a name, and a delay or (where that is None) a moment."""

    token: int
    timers: tuple[tuple[str, int | None, int], ...] = (("sleep#1", 500_000, 0),)
    hold: bool = False

    def expect(self, life: Life, at: Window) -> Answer:
        return life.sleep(at, self.token, self.timers, hold=self.hold)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        timers = [
            Timer(name=name, place=PLACE, delay_ms=delay, until_ms=moment if delay is None else None)
            for name, delay, moment in self.timers
        ]
        return said(await store.sleep(fenced(task_id, self.token), timers, hold=self.hold))


@dataclass(frozen=True)
class Park(Move):
    """The run's hold is over."""

    token: int

    def expect(self, life: Life, at: Window) -> Answer:
        return life.park(at, self.token)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        return said(await store.park(fenced(task_id, self.token)))


@dataclass(frozen=True)
class Step(Move):
    """The run records a step."""

    token: int
    value: str
    name: str = "charge#1"

    def expect(self, life: Life, at: Window) -> Answer:
        return life.step(at, self.token, self.name, self.value)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        return await store.step(fenced(task_id, self.token), self.name, self.value)


@dataclass(frozen=True)
class Finish(Move):
    """The run ends its task."""

    token: int
    status: Any = Status.COMPLETED
    message: str = ""

    def expect(self, life: Life, at: Window) -> Answer:
        reason, payload = _PAYLOADS[self.status]
        return life.finish(at, self.token, self.status, reason, self.message, payload)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        reason, payload = _PAYLOADS[self.status]
        text = "" if payload is None else payload[1]
        claim = fenced(task_id, self.token)
        return (await store.finish(claim, self.status, reason, message=self.message, payload=text),)


@dataclass(frozen=True)
class TryLater(Move):
    """The tool raised `Retry`."""

    token: int
    message: str = "Busy"

    def expect(self, life: Life, at: Window) -> Answer:
        return life.retry(at, self.token, self.message, _ERROR)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        return said(await store.retry(fenced(task_id, self.token), self.message, _ERROR))


@dataclass(frozen=True)
class PutOff(Move):
    """This worker cannot run the task."""

    token: int

    def expect(self, life: Life, at: Window) -> Answer:
        return life.defer(at, self.token, "Waits", "Nobody", _NOBODY)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        return said(await store.defer(fenced(task_id, self.token), "Waits", json.loads(_NOBODY)))


@dataclass(frozen=True)
class Release(Move):
    """The run gives its claim back."""

    token: int

    def expect(self, life: Life, at: Window) -> Answer:
        return life.release(at, self.token)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        return said(await store.release(fenced(task_id, self.token)))


# ------------------------------------------------------------------------------------------------ upkeep, time


@dataclass(frozen=True)
class Reap(Move):
    """The sweeper looks at the task."""

    def expect(self, life: Life, at: Window) -> Answer:
        return life.reap(at)

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        return said(await store.reap(task_id))


@dataclass(frozen=True)
class Pass(Move):
    """The task's moment in that index has come. Only for a task that stands in it."""

    index: str

    def expect(self, life: Life, at: Window) -> Answer:
        life.places[self.index] = PAST
        if self.index == "expiry":
            life.expired = True
        return ()

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        client: Any = store.connection.client
        assert await client.zadd(getattr(store.keys, self.index), {task_id: 1}, xx=True, ch=True) <= 1
        if self.index == "expiry":
            await client.hset(store.keys.task(task_id), "expires", 1)
        return ()


@dataclass(frozen=True)
class Ripen(Move):
    """The run's hard limit (`deadline`), the retry's delay (`due`) or the first timer (`wake`) is over.

    Only for a task that has one.
    """

    field: str

    def expect(self, life: Life, at: Window) -> Answer:
        setattr(life, self.field, PAST)
        return ()

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        client: Any = store.connection.client
        await client.hset(store.keys.task(task_id), self.field, 1)
        return ()


@dataclass(frozen=True)
class RunOut(Move):
    """The time of an open question is up. Only for one that has a limit."""

    key: str

    def expect(self, life: Life, at: Window) -> Answer:
        life.limits[self.key] = (PAST, life.limits[self.key][1])
        life.places["expiry"] = PAST
        return ()

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        client: Any = store.connection.client
        task, name = store.keys.task(task_id), f"d:{self.key}"
        _, _, what = (await client.hget(task, name)).partition(" ")
        await client.hset(task, name, f"1 {what}")
        await client.zadd(store.keys.expiry, {task_id: 1}, xx=True)
        return ()


@dataclass(frozen=True)
class ComeEarly(Move):
    """The sweeper comes before any of the task's moments. Only for one that has a ttl."""

    def expect(self, life: Life, at: Window) -> Answer:
        life.places["expiry"] = PAST
        return ()

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        client: Any = store.connection.client
        await client.zadd(store.keys.expiry, {task_id: 1}, xx=True)
        return ()


@dataclass(frozen=True)
class Vanish(Move):
    """Redis has dropped the task's keys, because their time was over."""

    def expect(self, life: Life, at: Window) -> Answer:
        life.gone = True
        life.places["drops"] = PAST
        return ()

    async def do(self, store: TaskStore, task_id: str) -> Answer:
        client: Any = store.connection.client
        keys = store.keys
        own = (keys.task, keys.call, keys.journal, keys.result, keys.artifacts_of, keys.timeline)
        await client.delete(*(key(task_id) for key in own))
        await client.zadd(keys.drops, {task_id: 1}, xx=True)
        return ()


Script: TypeAlias = tuple[Move, ...]
"""Moves, one after the other."""
