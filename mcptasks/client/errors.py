"""How waiting for a task can end other than with a result. All are `MCPError`s that carry the task's id.

Messages name a task by its label only: without authentication the full id is a bearer secret (protocol.md P81).
"""

from __future__ import annotations

from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY, ErrorData

from mcptasks.model import label

#: JSON-RPC leaves -32800 free and the Language Server Protocol made it "request cancelled"; MCP has no code for it.
CANCELLED_CODE: Final = -32800


class _TaskError(MCPError):
    """Keeps `MCPError`'s own signature, so that copying, pickling and `from_error_data` work on the subclasses."""

    def __init__(self, code: int, message: str, data: Any = None, *, task_id: str = "") -> None:
        super().__init__(code, message, data)
        self.task_id = task_id


class TaskFailed(_TaskError):
    """The task ended as `failed`; `code`, `message` and `data` are the JSON-RPC error it failed with."""


class TaskCancelled(_TaskError):
    """The task ended as `cancelled`, whoever cancelled it. `code` is -32800."""


class TaskRefused(_TaskError):
    """The task asked something that this client's callbacks refused or that it has no callback for.

    Nothing was answered: the task still waits, and can be answered with `TaskHandle.update` or cancelled.
    """


class TaskUnreachable(_TaskError):
    """Eight requests about the task failed in a row; `code` and `data` are the last failure's.

    The task itself goes on. Attach to its id again when the server is back.
    """


def cancelled(task_id: str, status_message: str | None) -> TaskCancelled:
    """The error for a cancelled task, with the server's reason where it gave one."""
    why = f": {status_message}" if status_message else ""
    return TaskCancelled(CANCELLED_CODE, f"Task {label(task_id)} was cancelled{why}", task_id=task_id)


def not_shown(task_id: str) -> TaskRefused:
    """The error for questions that the server shows only to clients that can be asked them."""
    why = "its questions need a capability that this client does not declare"
    return refused(task_id, ErrorData(code=MISSING_REQUIRED_CLIENT_CAPABILITY, message=why))


def refused(task_id: str, error: ErrorData) -> TaskRefused:
    """The error for a question nobody answers."""
    message = (
        f"Task {label(task_id)} asks something that this client does not answer: {error.message}. "
        "It keeps waiting: answer with TaskHandle.update, attach with a Client that has a callback for it, or cancel."
    )
    return TaskRefused(error.code, message, error.data, task_id=task_id)
