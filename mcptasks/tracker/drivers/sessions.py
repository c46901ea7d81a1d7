"""Handles of tasks that belong to a session.

Servers of 2025-11-25 may show a task only to the session that made it (the official SDK's do). So the handle says in
which session the task was made, and every process asks in that one: "<session> <task id>"; a session id has no space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcptasks.tracker.drivers.shapes import new_handle


def handle_in(session: str | None, task: Mapping[str, Any], server: str) -> str:
    """The handle of a task that was just made; raises as `new_handle`."""
    task_id = task.get("taskId")
    if isinstance(task_id, str) and task_id:
        task_id = f"{session or ''} {task_id}"
    return new_handle({"taskId": task_id}, server)


def session_of(handle: str) -> str | None:
    """The session that the task was made in; None: the server has none."""
    return handle.partition(" ")[0] or None


def task_of(handle: str) -> str:
    """The task's id at its server."""
    return handle.partition(" ")[2]
