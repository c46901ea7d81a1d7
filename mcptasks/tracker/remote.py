"""What a remote task server says, in words of our own: the one language between drivers and the tracker.

A driver (one per way of speaking) turns answers of a server into these; store, poller and outbox know nothing of MCP.
A driver checks shapes, never sizes: what is cut, refused or kept whole is decided where it is stored.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from mcptasks.errors import MCPTasksError

#: Of a task's id at its server; a longer one is a broken protocol, because cut off it would be somebody else's task.
HANDLE_MAX: Final = 4_096


class RemoteStatus(StrEnum):
    """Where a remote task is, as SEP-2663 has it. The last three are terminal."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL: Final = frozenset({RemoteStatus.COMPLETED, RemoteStatus.FAILED, RemoteStatus.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A remote task as one answer of its server showed it."""

    status: RemoteStatus
    #: The status message; whatever is no text is None, for what is only for show costs no task.
    message: str | None = field(default=None, repr=False)
    #: Open questions: the server's key -> {"method", "params"}.
    questions: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    #: With `completed`: the CallToolResult, as JSON.
    result: dict[str, Any] | None = field(default=None, repr=False)
    #: With `failed`: the JSON-RPC error, as JSON.
    error: dict[str, Any] | None = field(default=None, repr=False)
    #: When to ask again, in milliseconds, as the server wrote it: any JSON, or None. Nobody has judged it yet.
    hint: object = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The server took the call. handle None: it answered at once, and there is no task to track."""

    handle: str | None = field(repr=False)
    #: A new task's is `working` or `cancelled`; whatever else it already is comes with its payload at the first look.
    snapshot: Snapshot


class RemoteUnavailable(MCPTasksError):
    """The network or the server's front failed: this says nothing about the task."""

    def __init__(self, message: str, *, retry_after_ms: int | None = None, sent: bool = True) -> None:
        super().__init__(message)
        #: What the server asks to wait (Retry-After), 0 or more; None where it does not say.
        self.retry_after_ms = retry_after_ms
        #: The request may have been carried out. False: it surely was not, so it may be sent again whatever it is.
        self.sent = sent


class PushUnavailable(MCPTasksError):
    """The server tells of no tasks by itself, or of none of these; it has to be asked."""


class RemoteGone(MCPTasksError):
    """The server says that it knows no such task (-32602)."""


class RemoteRefused(MCPTasksError):
    """The server answered with a JSON-RPC error. On submit: nothing was started."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


class ProtocolBroken(MCPTasksError):
    """The answer is no answer of the protocol: a wrong shape, NaN, another task's, too large."""

    def __init__(self, message: str, *, handle: str | None = None) -> None:
        super().__init__(message)
        #: On submit: of the task that exists all the same, as far as that can be told, so that it can be cancelled.
        self.handle = handle


class Driver(Protocol):
    """One server, spoken to in one way. Safe to use from several tasks of one event loop.

    Every method raises RemoteUnavailable and ProtocolBroken; none retries, beyond opening a lost session once.
    """

    @property
    def honours_key(self) -> bool:
        """The server returns the same task for the same key, so a submit whose answer was lost may be sent again."""
        ...

    async def submit(
        self, tool: str, arguments: Mapping[str, Any], *, key: str, on_send: Callable[[], None] | None = None
    ) -> Accepted:
        """The server has taken the call.

        Args:
            key: the idempotency key, 1 to 255 visible ASCII characters.
            on_send: called right before the call goes out; until then, whatever happens, it surely was not carried out.

        Raises:
            RemoteRefused: nothing was started.
        """
        ...

    async def look(self, handle: str) -> Snapshot:
        """The task as the server has it now.

        Raises:
            RemoteGone: it knows no such task.
            RemoteRefused: it refused for another reason.
        """
        ...

    async def answer(self, handle: str, answers: Mapping[str, Any]) -> None:
        """The server has the answers: key of a question -> the wire form of its result.

        Raises:
            RemoteGone: it knows no such task.
            RemoteRefused: it does not take them (-32602: not what the question asks for).
        """
        ...

    async def cancel(self, handle: str) -> None:
        """The server has the wish to cancel. The task may still end in any way.

        Raises:
            RemoteGone: it knows no such task.
            RemoteRefused: it cannot cancel, or refused to.
        """
        ...

    def listen(self, handles: Sequence[str]) -> AsyncGenerator[tuple[str, Snapshot]]:
        """Yields what the server tells of these tasks, by handle, until the stream breaks (RemoteUnavailable).

        Close it (`aclosing`) when nobody listens any more: it holds a connection.

        Raises:
            PushUnavailable: at the first step, where the server has no such thing.
        """
        ...
