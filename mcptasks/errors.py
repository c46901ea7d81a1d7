"""What can go wrong, for people: one root, the docstring says when, the message says what to do.

The store raises these; the server extension turns them into JSON-RPC errors, the command line into exit codes.
No message ever carries arguments, answers, results or tokens.
"""


class MCPTasksError(Exception):
    """The root of every error this library raises on purpose."""


class ConfigurationError(MCPTasksError):
    """A setting, a policy or a TARGET cannot mean anything; the message names it and the fix."""


class StoreUnavailable(MCPTasksError):
    """Redis or Valkey did not answer in time, refused the connection, or refused the write."""


class ArtifactsUnavailable(StoreUnavailable):
    """The place where artifacts are kept did not take, give or remove a file."""


class TooLarge(MCPTasksError):
    """A payload is over its limit; nothing was stored."""

    def __init__(self, what: str, size: int, limit: int, setting: str) -> None:
        super().__init__(f"{what} has {size:,} bytes; the limit is {limit:,} bytes ({setting}). Nothing was stored.")
        self.what, self.size, self.limit = what, size, limit


class BadPayload(MCPTasksError):
    """A payload is not JSON that every client can read (NaN, Infinity, nested too deep, an unserializable value)."""


class BadAnswer(MCPTasksError):
    """An answer does not satisfy its question, or its question is not open; nothing was stored."""


class RetryRefused(MCPTasksError):
    """The task cannot be retried: it has not failed, its call is not kept, or the fleet takes no task now."""


class UnknownTask(MCPTasksError):
    """There is no task with this id: it never was, or its time is over."""


class AmbiguousTask(MCPTasksError):
    """More than one task that may be seen has an id that begins so."""


class BadCursor(MCPTasksError):
    """The text is no cursor that a list of tasks gave out."""


class SchemaTooNew(MCPTasksError):
    """A record was written by a newer mcptasks; it is left untouched. Upgrade this process first."""


class Sealed(MCPTasksError):
    """What is stored is sealed with a key that this process has not got; it is left untouched."""


class ClaimLost(MCPTasksError):
    """The run lost its claim while it worked; whatever it does now does not count."""


class ReplayMismatch(MCPTasksError):
    """A run did not do what the task's record says an earlier run of it did."""


class Cancelled(BaseException):
    """The task is to stop: raised by `mcptasks.raise_if_cancelled()` inside a tool.

    Not an `Exception`, so that a tool's `except Exception` does not turn a cancel into a result.
    """
