"""The Tasks extension on the wire (SEP-2663, protocol 2026-07-28): both ends' shapes.

The server sends plain dicts, because the SDK passes them on untouched: a model's `exclude_none` would drop the
`ttlMs: null` that the schema requires. The client reads models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import Notification, Request, RequestParams, Result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import field_validator

from mcptasks.model import Record, Status
from mcptasks.progress import Progress
from mcptasks.times import iso, moment

EXTENSION: Final = "io.modelcontextprotocol/tasks"

#: Versions that know extensions. Older clients never see a task (protocol.md P06).
MODERN: Final = frozenset(MODERN_PROTOCOL_VERSIONS)

#: Where a call's idempotency key may stand besides `params.idempotencyKey` (behaviours.md N2).
IDEMPOTENCY_META: Final = "mcptasks/idempotencyKey"
IDEMPOTENCY_HEADER: Final = "idempotency-key"

#: Where a task's `_meta` says in numbers what its `statusMessage` says in words; SEP-2663 has no place for them.
PROGRESS_META: Final = "mcptasks/progress"

_STATUS: Final = {
    Status.QUEUED: "working",
    Status.RUNNING: "working",
    Status.RETRYING: "working",
    Status.SLEEPING: "working",
    Status.PARKED: "input_required",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}


# ------------------------------------------------------------------------------------------------ server


def _status(record: Record) -> str:
    """A timer may set a task going whose questions are open: they stay answerable, so the client still sees them."""
    asks = record.questions and not record.status.terminal
    return "input_required" if asks else _STATUS[record.status]


def _task(record: Record) -> dict[str, Any]:
    out: dict[str, Any] = {
        "taskId": record.task_id,
        "status": _status(record),
        "createdAt": iso(record.created_ms),
        "lastUpdatedAt": iso(record.updated_ms),
        "ttlMs": record.ttl_ms,
        "pollIntervalMs": record.poll_ms,
    }
    if record.status_message:
        out["statusMessage"] = record.status_message
    if record.progress is not None:
        _tell_progress(out, record.progress)
    return out


def _tell_progress(out: dict[str, Any], progress: Progress) -> None:
    # A rate is of a run that works: whoever waits for a person, or has ended, is not about to get anywhere.
    working = out["status"] == "working"
    if working and progress.estimate and "statusMessage" in out:
        out["statusMessage"] += f", {progress.estimate}"
    out["_meta"] = {PROGRESS_META: progress.told(working=working)}


def created(record: Record) -> dict[str, Any]:
    """`CreateTaskResult`: flat, `resultType: "task"`, no payload (SEP-2663, Task Creation)."""
    return {"resultType": "task", **_task(record)}


def detailed(record: Record, questions: Mapping[str, Any]) -> dict[str, Any]:
    """`GetTaskResult`: `resultType: "complete"` and exactly the payload of the status (SEP-2663, Getting Tasks).

    `questions`: those of the record's that the client is shown.
    """
    return {"resultType": "complete", **_detailed(record, questions)}


def pushed(record: Record, questions: Mapping[str, Any], subscription: int | str) -> dict[str, Any]:
    """Parameters of `notifications/tasks`: the task as `tasks/get` answers it, which is no result here (SEP-2663).

    `subscription`: the request id of the `subscriptions/listen` on whose stream it is sent.
    """
    out = _detailed(record, questions)
    return {**out, "_meta": {**out.get("_meta", {}), SUBSCRIPTION_ID_META_KEY: subscription}}


def _detailed(record: Record, questions: Mapping[str, Any]) -> dict[str, Any]:
    out = _task(record)
    match out["status"]:
        case "input_required":
            out["inputRequests"] = dict(questions)
        case "completed":
            out["result"] = record.result
        case "failed":
            out["error"] = record.error
        case _:
            pass
    return out


def complete() -> dict[str, Any]:
    """The empty acknowledgement of `tasks/update` and `tasks/cancel` (SEP-2663)."""
    return {"resultType": "complete"}


class TaskNotification(Notification[dict[str, Any], Literal["notifications/tasks"]]):
    """`notifications/tasks`. Its parameters are a plain dict, for the same reason as the results above."""

    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: dict[str, Any]


class TaskIdParams(RequestParams):
    """Parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str


class UpdateParams(RequestParams):
    """Parameters of `tasks/update`: answers by the keys of `inputRequests`."""

    task_id: str
    input_responses: dict[str, Any]


# ------------------------------------------------------------------------------------------------ client


class _Task(Result):
    task_id: str
    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    status_message: str | None = None
    created_at: str
    last_updated_at: str
    ttl_ms: int | None = None
    poll_interval_ms: int | None = None

    @field_validator("poll_interval_ms", mode="before")
    @classmethod
    def _no_integer_is_absent(cls, value: Any) -> Any:
        # A hint that is no integer must not cost the caller the task.
        return value if type(value) is int else None


class CreateTaskResult(_Task):
    """What a task-aware client gets instead of the tool's result."""

    result_type: Literal["task"] = "task"


class DetailedTask(_Task):
    """A task as `tasks/get` answers it; `result`, `error` and `input_requests` stand only in their own status."""

    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    input_requests: dict[str, Any] | None = None

    @property
    def terminal(self) -> bool:
        """Nothing changes any more."""
        return self.status in ("completed", "failed", "cancelled")

    @property
    def progress(self) -> Progress | None:
        """What the tool reported last, in numbers; None where it reported nothing, or the server does not tell."""
        told = (self.meta or {}).get(PROGRESS_META)
        return Progress.read(cast("dict[str, Any]", told)) if isinstance(told, dict) else None

    @property
    def looks(self) -> tuple[str, str, str | None]:
        """What differs between two states of the task that a caller wants to hear of."""
        return self.status, self.last_updated_at, self.status_message

    def older_than(self, other: DetailedTask) -> bool:
        """The other state came later; False where their times do not say."""
        mine, its = moment(self.last_updated_at), moment(other.last_updated_at)
        return mine is not None and its is not None and mine < its


class GetTask(Request[TaskIdParams, Literal["tasks/get"]]):
    """`tasks/get`."""

    method: Literal["tasks/get"] = "tasks/get"
    params: TaskIdParams
    name_param = "taskId"


class UpdateTask(Request[UpdateParams, Literal["tasks/update"]]):
    """`tasks/update`."""

    method: Literal["tasks/update"] = "tasks/update"
    params: UpdateParams
    name_param = "taskId"


class CancelTask(Request[TaskIdParams, Literal["tasks/cancel"]]):
    """`tasks/cancel`."""

    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: TaskIdParams
    name_param = "taskId"
