"""What the tracker knows of a task that runs on somebody else's server. Plain, frozen; times are Unix milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

#: So many failed polls in a row, and people are shown that something is wrong with the server.
DEGRADED_AFTER: Final = 5


class TrackStatus(StrEnum):
    """Where a tracked task is. The last three are terminal: nothing ever leaves them."""

    #: Its call may or may not have reached the server; its submitter, or the fleet, is about to know.
    INTENDED = "intended"
    WORKING = "working"
    #: A question is open that nobody has answered.
    INPUT_REQUIRED = "input_required"
    #: Whether the server took the call is not known, and it must not be sent again: a person has to look.
    UNKNOWN = "unknown"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL: Final = frozenset({TrackStatus.COMPLETED, TrackStatus.FAILED, TrackStatus.CANCELLED})


class End(StrEnum):
    """Why a tracked task ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    #: The server says that its task failed.
    FAILED = "failed"
    #: The server answered the call with an error, or was not reached; nothing was started.
    REFUSED = "refused"
    #: The server said what is not of the protocol, or was too large to be stored.
    PROTOCOL = "protocol"
    #: The server knows its task no more.
    LOST = "lost"
    #: The server answered the call with the handle of another task that is tracked.
    DUPLICATE = "duplicate"
    #: Its handle could not be stored, or its caller went away, and its remote task was cancelled.
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What is to be submitted."""

    task_id: str
    server: str
    tool: str
    arguments: Mapping[str, Any] = field(repr=False)
    #: The idempotency key that travels with the call, the same at every attempt.
    key: str = field(repr=False)
    owner: str = ""
    #: Names of those who are to be told.
    consumers: tuple[str, ...] = ()
    #: The caller can come again with the same id, because it follows from a key of his own.
    repeatable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a server said of its task, judged and within all limits: fit to be stored."""

    status: TrackStatus
    reason: End | None = None
    message: str = field(default="", repr=False)
    #: Key -> {"method", "params"}.
    questions: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    result: dict[str, Any] | None = field(default=None, repr=False)
    #: The result is a preview of one that was over the limit.
    truncated: bool = False
    error: dict[str, Any] | None = field(default=None, repr=False)
    #: How long the server wants to be left alone (clamped).
    pace_ms: int
    #: How soon the next poll is due.
    next_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """A tracked task as it is stored now."""

    task_id: str
    owner: str
    server: str
    tool: str
    status: TrackStatus
    reason: End | None
    message: str | None = field(repr=False)
    #: The server's own id of its task; on many servers who knows it may do anything with it.
    handle: str | None = field(repr=False)
    #: Open questions that nobody has answered: the server's key -> {"method", "params"}.
    questions: Mapping[str, Any] = field(repr=False)
    #: Keys whose answer is stored and not yet delivered.
    answered: tuple[str, ...] = ()
    created_ms: int
    updated_ms: int
    revision: int
    #: Failed polls in a row, the last one's error, and how many polls there were in all.
    failures: int
    last_error: str | None = field(repr=False)
    polls: int
    cancel_requested: bool
    #: The server has taken the cancel.
    cancel_delivered: bool
    consumers: tuple[str, ...]
    #: With `completed`: the CallToolResult, as JSON.
    result: dict[str, Any] | None = field(repr=False, default=None)
    truncated: bool = False
    #: With `failed`: the JSON-RPC error, as JSON, where there was one.
    error: dict[str, Any] | None = field(repr=False, default=None)

    @property
    def degraded(self) -> bool:
        """Its server has not answered for several polls."""
        return self.failures >= DEGRADED_AFTER and not self.status.terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A due task in a tracker's hand. What it writes counts while its token is the newest."""

    task: Tracked
    token: int
    #: How much too late it was claimed.
    late_ms: int
    #: The last hint of the server, clamped; 0: there was none.
    pace_ms: int
    key: str = field(repr=False)
    #: Of an intent: what to submit.
    arguments: Mapping[str, Any] = field(repr=False)
    #: Answers to deliver, by key.
    answers: Mapping[str, Any] = field(repr=False)
    #: Keys of questions that were seen and are over: answered, or shown no more.
    handled: frozenset[str] = frozenset()
    #: The cancel is stored and not yet delivered.
    to_cancel: bool


class EventKind(StrEnum):
    """What happened to a tracked task."""

    #: There is a new question.
    INPUT_REQUIRED = "input_required"
    #: A person must find out whether the server took the call.
    UNKNOWN = "unknown"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """News of one task, told at least once; the same news always has the same id."""

    event_id: str
    kind: EventKind
    task_id: str
    server: str
    tool: str
    owner: str

    def as_json(self) -> dict[str, Any]:
        """Fit for a message: no arguments, questions or results."""
        return {
            "event_id": self.event_id,
            "kind": str(self.kind),
            "task_id": self.task_id,
            "server": self.server,
            "tool": self.tool,
            "owner": self.owner,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """An event in the hand of one process, which is to bring it to one consumer."""

    event: Event
    consumer: str
    #: The task as it is now; a newer event replaces an older one, so it is what the event is about.
    task: Tracked
    token: int
    revision: int
    #: Attempts that failed before this one.
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An event that its consumer refused, or did not handle in so many attempts."""

    event: Event
    consumer: str
    #: When it was given up.
    at_ms: int
    attempts: int
    why: str


@dataclass(frozen=True, slots=True)
class TrackPage:
    """Some tracked tasks, newest first; without their results and questions."""

    tasks: list[Tracked]
    #: Gives the page that follows, which may turn out empty; None: there is none.
    cursor: str | None
    #: Tasks in between that a newer mcptasks wrote: they are left out.
    newer: int = 0


def checkable(question: Mapping[str, Any]) -> bool:
    """The question is of a kind whose answers can be checked before they are stored."""
    return question.get("method") in _KINDS and isinstance(question.get("params"), dict)


_KINDS: Final = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})
