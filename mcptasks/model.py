"""The values that travel through the house. Plain, frozen, JSON-able; no Redis, no Celery, no MCP."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from mcptasks.progress import Progress
from mcptasks.times import InputLimit

#: Version of the stored record. A reader refuses a newer one (`SchemaTooNew`) instead of misreading it.
SCHEMA_VERSION: Final = 1

#: The ids' alphabet is URL- and header-safe; 32 characters of it carry 191 bits of chance (SEP-2663 asks for 128).
_ID_BYTES: Final = 24
_ID: Final = re.compile(r"[A-Za-z0-9_-]{32}")

#: How much of an id may be shown to people who are not its owner (Celery's id, logs): 60 of its 191 bits.
_LABEL_CHARS: Final = 10

#: Where a modern request's `_meta` says who its client is and what that can do.
CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"


class Status(StrEnum):
    """Where a task is. The last three are terminal: nothing ever leaves them."""

    QUEUED = "queued"
    RUNNING = "running"
    PARKED = "parked"
    RETRYING = "retrying"
    #: Until a durable timer is due.
    SLEEPING = "sleeping"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


class Reason(StrEnum):
    """Why a task ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    CANCEL_TIMEOUT = "cancel_timeout"
    SHUTDOWN = "shutdown"
    WALL_TIMEOUT = "wall_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    INPUT_TIMEOUT = "input_timeout"
    EXPIRED = "expired"
    WORKER_LOST = "worker_lost"
    RETRIES_EXHAUSTED = "retries_exhausted"
    FAILED = "failed"


class Undeclared(StrEnum):
    """What becomes of a durable tool's call from a client that did not declare the tasks extension."""

    #: It runs on the fleet, and the call waits for its end.
    WAIT = "wait"
    #: It runs in the server process, as if the tool were not durable.
    INLINE = "inline"
    #: It is an error, and nothing is stored.
    REFUSE = "refuse"


def new_task_id() -> str:
    """A fresh id: 191 random bits. Without authentication it is a bearer secret (protocol.md P81).

    It never begins with a dash: command lines, ours and other people's, take that for an option.
    """
    while (task_id := secrets.token_urlsafe(_ID_BYTES)).startswith("-"):
        pass
    return task_id


def is_task_id(text: str) -> bool:
    """The text could be an id of ours. What could not is in no store, and need not be sent there."""
    return _ID.fullmatch(text) is not None


def label(task_id: str) -> str:
    """The part of an id that logs, Flower and other people may see; the rest stays a secret of 132 bits."""
    return task_id[:_LABEL_CHARS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What is kept of a `tools/call` so that the tool can run without its request. JSON-able."""

    tool: str
    arguments: dict[str, Any]
    protocol_version: str
    request_id: int | str | None = None
    #: The request's `_meta`. At the modern versions it also says who the client is and what it can do.
    meta: dict[str, Any] | None = None
    #: The same two from an older client, whose requests do not repeat them; else None.
    client_info: dict[str, Any] | None = None
    client_capabilities: dict[str, Any] | None = None
    #: Only the allow-listed request headers (settings.headers), lower-case names. None: the call did not come by HTTP.
    headers: dict[str, str] | None = None
    #: Whether the client can be asked at all: in rounds, through its task, or live.
    can_be_asked: bool = True
    #: The caller's access token: client id, scopes, subject, claims; the token itself only with `settings.keep_token`.
    principal: dict[str, Any] | None = None
    #: W3C trace context of the call, so that the run can be part of the same trace.
    trace: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def client(self) -> dict[str, Any] | None:
        """Who the client says it is."""
        return self.client_info or (self.meta or {}).get(CLIENT_INFO)

    @property
    def capabilities(self) -> dict[str, Any] | None:
        """What the client declared on the call that it can do."""
        # An older client may have declared that it can do nothing: an empty object, which is not the same as none.
        told = self.client_capabilities
        return told if told is not None else (self.meta or {}).get(CLIENT_CAPABILITIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """One Celery message: look at this task. It carries names, never payloads."""

    task_id: str
    #: The run this message is for. A message for a run that was already claimed is stale and is dropped.
    run: int
    #: Which re-check of a parked task this is; 0 for an ordinary run. Stops duplicates from multiplying re-checks.
    look: int = 0
    tool: str = ""
    queue: str = ""
    countdown_ms: int = 0
    #: Seconds after which a prefork child that still runs this is killed; None: never.
    hard_limit_s: float | None = None
    trace: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def message_id(self) -> str:
        """The Celery id: the task's label and the run, so that an operator finds one from the other."""
        return f"{label(self.task_id)}-{self.run}" + (f".{self.look}" if self.look else "")


class Envelope(NamedTuple):
    """A message as the broker on the store's own server keeps it: pushed by the very script that queues the task."""

    key: str
    payload: str
    #: The run that it is for.
    run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One thing the tool asked the client, exactly as it goes out under `inputRequests`."""

    key: str
    method: str
    params: Mapping[str, Any]
    limit: InputLimit | None = None

    @property
    def request(self) -> dict[str, Any]:
        """One entry of `inputRequests`."""
        return {"method": self.method, "params": dict(self.params)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The task as the store has it. Times are Unix milliseconds by the store's clock."""

    task_id: str
    tool: str
    owner: str
    status: Status
    created_ms: int
    updated_ms: int
    #: None: never removed by time.
    ttl_ms: int | None
    poll_ms: int
    revision: int
    #: Fencing token: the generation of the latest claimed run, 0 before the first.
    token: int
    #: Runs that were started from the top by no question's answer: what `max_attempts` counts.
    attempt: int
    max_attempts: int = 3
    reason: Reason | None = None
    status_message: str | None = None
    progress: Progress | None = None
    cancel_requested: bool = False
    #: When the latest run was claimed; None: there was none.
    started_ms: int | None = None
    worker: str | None = None
    #: The worker that has it, or had it when it ended.
    ran_on: str | None = None
    queue: str = ""
    #: So long after its claim a run is over, whatever it does; None: no limit.
    hard_limit_ms: int | None = None
    #: Open questions, wire key -> {"method", "params"}.
    questions: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: Wire key of an open question with an input timeout -> when that is over.
    answer_by_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    artifacts: bool = False  #: It may have some.
    version: str = ""  #: Of the code that took the call; empty: it has none.
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The multi-round state of a tool that asks by returning (resolvers and guard tools), as of its latest round."""

    round: int
    #: The tool's own state, in plain text.
    request_state: str | None
    #: The tool's key of each question -> the wire key it went out under. Tools reuse their keys, the wire never does.
    keys: dict[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a pass over its tool a durable call was recorded."""

    #: The guard state's round, 0 before the tool returned its first question.
    round: int
    #: The call's number in its lane; None: it came from beside the lane, and says nothing about its order.
    nth: int | None

    def __str__(self) -> str:
        return f"{self.round}.{'-' if self.nth is None else self.nth}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The place that was written so."""
        number, _, nth = text.partition(".")
        return cls(int(number), None if nth == "-" else int(nth))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """A durable timer that the tool waits for. One of the two times is given; one that is recorded keeps its moment."""

    name: str
    place: Place
    #: From when it is recorded ...
    delay_ms: int | None = None
    #: ... or the moment, in Unix milliseconds by the store's clock.
    until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What a replay needs: questions, answers, steps and timers by their names, and the guard state."""

    #: Wire key -> digest of what was asked, place, and the first words of it.
    asked: dict[str, str] = field(default_factory=dict[str, str])
    #: Wire key -> the client's result.
    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    #: Name -> the step's place (`at`), and its `result` or its `error`.
    steps: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    #: Name -> when it is due (Unix milliseconds), and its place.
    timers: dict[str, str] = field(default_factory=dict[str, str])
    guard: Guard | None = None
    #: W3C traceparent of the run that parked last; empty: nobody traces it.
    parked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to run a task once, and all that the run needs."""

    record: Record
    #: None: the stored call is damaged; the task can only be failed.
    submission: Submission | None
    journal: Journal
    #: Numbers of the last progress that was stored, so that a replay does not repeat them.
    progress: float | None
    #: The store's clock when the task was claimed.
    at_ms: int

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self.record.task_id

    @property
    def token(self) -> int:
        """The fencing token every write of this run carries."""
        return self.record.token
