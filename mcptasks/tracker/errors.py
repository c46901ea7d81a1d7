"""What can go wrong with a task on somebody else's server, for its submitter and for those who are told of it."""

from __future__ import annotations

from mcptasks.errors import MCPTasksError


class SubmitUncertain(MCPTasksError):
    """The call was sent, and no answer came: whether the server took it is not known yet. `task_id` follows it."""

    def __init__(self, message: str, task_id: str) -> None:
        super().__init__(message)
        self.task_id = task_id


class AlreadyTracked(MCPTasksError):
    """The server answered with the handle of another tracked task (`task_id`), which was left as it is."""

    def __init__(self, message: str, task_id: str) -> None:
        super().__init__(message)
        self.task_id = task_id


class KeyConflict(MCPTasksError):
    """The key was used before, for another call; nothing was sent."""


class Refused(MCPTasksError):
    """Raised by a consumer: it will never take this event, which goes to the dead letters at once."""


class Unhandled(MCPTasksError):
    """Raised by a consumer: it has not handled the event now. The text says why, is stored, and holds no secret."""
