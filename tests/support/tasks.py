"""Tasks in every state, made by the store's own transitions, and every write that a worker can do to one."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

from mcptasks.links import Artifact
from mcptasks.model import (
    Claim,
    Envelope,
    Guard,
    Hint,
    Place,
    Question,
    Reason,
    Record,
    Status,
    Submission,
    Timer,
    new_task_id,
)
from mcptasks.policy import Policy
from mcptasks.runtime.replay import digest
from mcptasks.store.callers import Created, Refused
from mcptasks.store.store import TaskStore
from mcptasks.store.timeline import Remark

ANN: Final = "ann"
Terminal = Literal[Status.COMPLETED, Status.FAILED, Status.CANCELLED]
TERMINAL: Final[tuple[Terminal, ...]] = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)

_REASONS: Final = {
    Status.COMPLETED: Reason.COMPLETED,
    Status.FAILED: Reason.FAILED,
    Status.CANCELLED: Reason.CANCELLED,
}
_PAYLOADS: Final = {
    Status.COMPLETED: '{"content":[],"isError":false}',
    Status.FAILED: '{"code":-32050,"message":"No"}',
    Status.CANCELLED: "",
}


def submission(tool: str = "report", **arguments: Any) -> Submission:
    """A call of the tool."""
    return Submission(tool=tool, arguments=arguments, protocol_version="2026-07-28")


async def offer(
    store: TaskStore,
    task_id: str | None = None,
    call: Submission | None = None,
    *,
    owner: str = ANN,
    policy: Policy | None = None,
    key: str | None = None,
    digest: str = "d1",
    settled: tuple[Guard, Mapping[str, Any]] | None = None,
    message: Envelope | None = None,
    origin: str | None = None,
) -> Created | Refused:
    """What the store answers to this call, which it may refuse."""
    return await store.create(
        task_id or new_task_id(),
        call or submission(),
        owner=owner,
        policy=policy or Policy(),
        idempotency_key=key,
        arguments_digest=digest,
        settled=settled,
        message=message,
        origin=origin,
    )


async def create(store: TaskStore, task_id: str | None = None, call: Submission | None = None, **how: Any) -> Created:
    """What the store answers to this call, which it does not refuse."""
    answer = await offer(store, task_id, call, **how)
    assert isinstance(answer, Created)
    return answer


async def queued(store: TaskStore, *, owner: str = ANN, policy: Policy | None = None, **arguments: Any) -> str:
    """The id of a task that waits for a worker."""
    answer = await create(store, call=submission(**arguments), owner=owner, policy=policy)
    assert answer.outcome == "CREATED"
    return answer.task_id


def hint(task_id: str, run: int = 1, look: int = 0) -> Hint:
    """The message for that run."""
    return Hint(task_id=task_id, run=run, look=look, tool="report", queue="mcptasks")


async def claimed(store: TaskStore, task_id: str, *, run: int = 1, worker: str = "w1") -> Claim:
    """The claim of the task's next run."""
    claim = await store.claim(hint(task_id, run), worker)
    assert isinstance(claim, Claim), claim
    return claim


async def read(store: TaskStore, task_id: str, owner: str = ANN) -> Record:
    """What the owner sees of the task, which exists."""
    record = await store.read(task_id, owner)
    assert record is not None
    return record


async def running(store: TaskStore, **how: Any) -> Claim:
    """A new task that runs on a worker."""
    return await claimed(store, await queued(store, **how))


def question(key: str = "sure", text: str = "Sure?") -> Question:
    """A form to fill in, under that key."""
    params = {"mode": "form", "message": text, "requestedSchema": {"type": "object", "properties": {}}}
    return Question(key=key, method="elicitation/create", params=params)


def asking(*questions: Question) -> list[tuple[Question, str]]:
    """The questions as `ask` wants them."""
    return [(one, digest(one.method, one.params)) for one in questions]


def timer(number: int = 1, *, delay_ms: int | None = 60_000, until_ms: int | None = None) -> Timer:
    """The tool's sleep of that number."""
    delay_ms = None if until_ms is not None else delay_ms
    return Timer(name=f"sleep#{number}", place=Place(0, number), delay_ms=delay_ms, until_ms=until_ms)


async def sleeping(store: TaskStore, *timers: Timer, **how: Any) -> Claim:
    """A new task that sleeps; the claim is the one of the run that came to the timers."""
    claim = await running(store, **how)
    assert (await store.sleep(claim, timers or (timer(),), hold=False)).outcome == "SLEEPING"
    return claim


async def asking_and_sleeping(store: TaskStore, *keys: str, delay_ms: int = 60_000, **how: Any) -> Claim:
    """A new task that waits for a person and for a timer, whichever comes first."""
    claim = await running(store, **how)
    assert (await store.sleep(claim, [timer(delay_ms=delay_ms)], hold=True)).outcome == "SET"
    answer = await store.ask(claim, asking(*map(question, keys or ("sure",))), guard=None, hold=False)
    assert answer.outcome == "PARKED"
    return claim


async def parked(store: TaskStore, *keys: str, hold: bool = False, **how: Any) -> Claim:
    """A new task that waits for a person; held, it still has its worker. The claim is the one of the run that asked."""
    claim = await running(store, **how)
    answer = await store.ask(claim, asking(*map(question, keys or ("sure",))), guard=None, hold=hold)
    assert answer.outcome == ("HELD" if hold else "PARKED")
    return claim


async def end(store: TaskStore, claim: Claim, status: Terminal = Status.COMPLETED) -> str:
    """The run has ended its task so."""
    return await store.finish(claim, status, _REASONS[status], message="Over", payload=_PAYLOADS[status])


async def ended(store: TaskStore, status: Terminal = Status.COMPLETED, **how: Any) -> Claim:
    """A new task that has ended; the claim is the one of the run that ended it."""
    claim = await running(store, **how)
    assert await end(store, claim, status) == "FINISHED"
    return claim


# ------------------------------------------------------------------------------------------------ all writes

#: Every write of a worker, by the name of its script; each returns the word of the answer.
WORKER_WRITES: Final[dict[str, Callable[[TaskStore, Claim], Awaitable[str]]]] = {}


def _write(name: str) -> Callable[[Callable[[TaskStore, Claim], Awaitable[str]]], None]:
    return lambda write: WORKER_WRITES.update({name: write})


@_write("renew")
async def _renew(store: TaskStore, claim: Claim) -> str:
    return (await store.renew([(claim.task_id, claim.token)]))[0]


@_write("progress")
async def _progress(store: TaskStore, claim: Claim) -> str:
    return await store.progress(claim, "Half way", 1, 2)


@_write("note")
async def _note(store: TaskStore, claim: Claim) -> str:
    return await store.note(claim, [Remark(0, "note", '{"text":"Half way"}')])


@_write("ask")
async def _ask(store: TaskStore, claim: Claim) -> str:
    return (await store.ask(claim, asking(question("late")), guard=None, hold=False)).outcome


@_write("sleep")
async def _sleep(store: TaskStore, claim: Claim) -> str:
    return (await store.sleep(claim, [timer()], hold=False)).outcome


@_write("park")
async def _park(store: TaskStore, claim: Claim) -> str:
    return (await store.park(claim)).outcome


@_write("step")
async def _step(store: TaskStore, claim: Claim) -> str:
    return (await store.step(claim, "charge#1", "1"))[0]


@_write("reserve")
async def _reserve(store: TaskStore, claim: Claim) -> str:
    return await store.reserve(claim)


def artifact(name: str = "report.csv", data: str = "a,b", *, file: str = "") -> Artifact:
    """The artifact that these bytes would be, in that file."""
    digest = hashlib.sha256(data.encode()).hexdigest()
    return Artifact(name=name, sha256=digest, size=len(data), mime="text/csv", file=file or f"{digest}.1")


@_write("artifact")
async def _artifact(store: TaskStore, claim: Claim) -> str:
    return (await store.artifact(claim, artifact()))[0]


@_write("retry")
async def _retry(store: TaskStore, claim: Claim) -> str:
    return (await store.retry(claim, "Busy", '{"code":1,"message":"Busy"}')).outcome


@_write("defer")
async def _defer(store: TaskStore, claim: Claim) -> str:
    return (await store.defer(claim, "Waits", {"code": 1, "message": "Nobody"})).outcome


@_write("finish")
async def _finish(store: TaskStore, claim: Claim) -> str:
    return await end(store, claim)


@_write("extend")
async def _extend(store: TaskStore, claim: Claim) -> str:
    return (await store.extend(claim, 10 * 86_400_000)).outcome


@_write("release")
async def _release(store: TaskStore, claim: Claim) -> str:
    return (await store.release(claim)).outcome
