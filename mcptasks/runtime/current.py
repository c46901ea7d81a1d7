"""What a running tool may ask about the task it runs in. Outside a task every answer is the harmless one."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from mcptasks.errors import Cancelled
from mcptasks.model import Claim
from mcptasks.runtime.channel import TaskChannel
from mcptasks.runtime.replay import Replay
from mcptasks.store.store import TaskStore


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """The run that the calling code belongs to."""

    claim: Claim
    replay: Replay
    channel: TaskChannel
    store: TaskStore
    stop_requested: Callable[[], bool]
    #: The `Retry` errors this pass has made, raised or not.
    wishes: list[Exception] = field(default_factory=list[Exception])


current_run: Final[ContextVar[CurrentRun | None]] = ContextVar("mcptasks_current_run", default=None)


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
