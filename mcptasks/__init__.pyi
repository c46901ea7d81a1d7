"""Durable background tasks for MCP servers, on the Celery fleet you already run."""

from mcptasks.errors import ArtifactsUnavailable, BadPayload, Cancelled, ClaimLost, MCPTasksError, TooLarge
from mcptasks.operations import Operations
from mcptasks.policy import Mode, exponential, fixed
from mcptasks.runtime.artifacts import artifact
from mcptasks.runtime.asking import input_timeout
from mcptasks.runtime.current import attempt, cancelled, idempotency_key, raise_if_cancelled
from mcptasks.runtime.extending import extend
from mcptasks.runtime.gathering import gather
from mcptasks.runtime.noting import note
from mcptasks.runtime.retry import Retry
from mcptasks.runtime.sleeping import sleep, sleep_until
from mcptasks.runtime.steps import StepFailed, step
from mcptasks.settings import Settings
from mcptasks.tasks import Tasks

__all__ = [
    "ArtifactsUnavailable",
    "BadPayload",
    "Cancelled",
    "ClaimLost",
    "MCPTasksError",
    "Mode",
    "Operations",
    "Retry",
    "Settings",
    "StepFailed",
    "Tasks",
    "TooLarge",
    "artifact",
    "attempt",
    "cancelled",
    "exponential",
    "extend",
    "fixed",
    "gather",
    "idempotency_key",
    "input_timeout",
    "note",
    "raise_if_cancelled",
    "sleep",
    "sleep_until",
    "step",
]
