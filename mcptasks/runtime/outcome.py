"""What a run can come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcptasks.model import Guard, Hint, Question, Reason, Timer


@dataclass(frozen=True, slots=True)
class Completed:
    """The tool returned: its `CallToolResult` in wire form as JSON, without the server's stamp."""

    payload: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The call ends with a JSON-RPC error."""

    error: dict[str, Any]
    reason: Reason = Reason.FAILED


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The caller's cancel stopped the tool, or its grace ran out (`cancel_timeout`)."""

    reason: Reason = Reason.CANCELLED


@dataclass(frozen=True, slots=True)
class Retrying:
    """The tool asked to be run again later; `error` is what the task fails with when no retry is left."""

    message: str
    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Deferred:
    """This worker cannot run the task, and another may; `error` is what it fails with when none takes it in time."""

    #: For the log of this worker.
    why: str
    #: For the client.
    waiting: str
    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parked:
    """The task waits for a person without a worker; `hint` is its next re-check, None when it went cold."""

    hint: Hint | None


@dataclass(frozen=True, slots=True)
class Sleeping:
    """The task waits for a timer without a worker; `hint` is the message for its next run, None: the sweeper's."""

    hint: Hint | None


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The worker goes down and the tool has stopped unfinished: the claim is to be given back."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """The run lost its claim; the store refused with this word and changed nothing."""

    word: str


@dataclass(frozen=True, slots=True)
class Asked:
    """Not an end yet: the tool waits. `guard`: it returned its questions instead of waiting for them."""

    #: Each with its note for the record: digest of what is asked, place, and a few words of it.
    questions: tuple[tuple[Question, str], ...]
    guard: Guard | None = None
    timers: tuple[Timer, ...] = ()


End = Completed | Failed | Cancelled | Retrying | Interrupted | Superseded
Outcome = End | Parked | Sleeping | Deferred


def worker_lost(attempts: int) -> Failed:
    """The end of a task whose runs keep losing their worker processes (-32603, internal error)."""
    text = f"The worker process was lost {attempts} times while it ran this task; it is given up"
    return Failed(error(-32603, text), Reason.WORKER_LOST)


def cannot_go_on(why: str) -> Failed:
    """The end of a task that no further run could bring to a result (-32603, internal error)."""
    return Failed(error(-32603, f"The task cannot go on: {why}"))


def error(code: int, message: str, data: Any = None) -> dict[str, Any]:
    """A JSON-RPC error object; `data` only where there is some."""
    return {"code": code, "message": message} | ({} if data is None else {"data": data})
