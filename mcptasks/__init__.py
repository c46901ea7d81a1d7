"""Durable background tasks for MCP servers, on the Celery fleet you already run."""

from mcptasks.errors import Cancelled, MCPTasksError
from mcptasks.policy import Mode
from mcptasks.runtime.current import cancelled, raise_if_cancelled
from mcptasks.runtime.steps import step
from mcptasks.settings import Settings
from mcptasks.tasks import Tasks

__all__ = [
    "Cancelled",
    "MCPTasksError",
    "Mode",
    "Settings",
    "Tasks",
    "cancelled",
    "raise_if_cancelled",
    "step",
]
