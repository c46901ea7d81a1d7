"""What a running tool may ask about the task it runs in. Outside a task every answer is the harmless one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from mcptasks.errors import Cancelled
from mcptasks.model import Claim
from mcptasks.runtime.channel import TaskChannel
from mcptasks.runtime.replay import Replay
from mcptasks.runtime.shelf import Shelf
from mcptasks.store.store import TaskStore


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """The run that the calling code belongs to."""

    claim: Claim
    replay: Replay
    channel: TaskChannel
    store: TaskStore
    shelf: Shelf
    stop_requested: Callable[[], bool]
    #: The `Retry` errors this pass has made, raised or not.
    wishes: list[Exception] = field(default_factory=list[Exception])


current_run: Final[ContextVar[CurrentRun | None]] = ContextVar("mcptasks_current_run", default=None)


_IDEMPOTENCY: Final = uuid.UUID("5cb1d1a2-6a0c-4d55-8e0e-6f3b2d0c7a41")


def attempt() -> int:
    """How often the task was begun: 1, and one more for each run whose worker was lost (`max_attempts` bounds it).

    Questions, sleeps, retries and shutdowns do not count. Outside a task: 1.
    """
    run = current_run.get()
    return 1 if run is None else run.claim.record.attempt


def idempotency_key(name: str = "") -> str:
    """A UUID that is the task's own: the same in every run of it, and no other task's.

    Hand it to whatever you change outside, so that a repeated call is recognised there. With a name it is the key of
    one thing among several that the task does; use a step's key. It is derived from the task id and does not give it
    away. Outside a task nothing runs again by itself: a fresh one with each call, so keep it for as long as you retry.
    """
    if (run := current_run.get()) is None:
        return str(uuid.uuid4())
    # As JSON, so that no id and name together look like another pair, and half an emoji can be encoded.
    return str(uuid.uuid5(_IDEMPOTENCY, json.dumps([run.claim.task_id, name])))


def cancelled() -> bool:
    """True once the task this code runs in is to stop: cancelled by its caller, over its time, or run elsewhere.

    For sync tools, which nobody can interrupt: look here between two pieces of work. Async tools are interrupted at
    their next `await`. Outside a task: False.
    """
    run = current_run.get()
    return run is not None and run.stop_requested()


def raise_if_cancelled() -> None:
    """Returns only while the task is to go on.

    Raises:
        Cancelled: the task is to stop. It is no `Exception`: let it pass, clean up in `finally`.
    """
    if cancelled():
        raise Cancelled("the task is to stop")
