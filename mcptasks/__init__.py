"""Durable background tasks for MCP servers, on the Celery fleet you already run."""

from importlib import import_module
from typing import Any, Final

#: Where each public name lives; `__init__.pyi` says the same to type checkers. Imported when it is first asked for: the
#: SDK and Celery take a second and 80 MB, which the small processes of the command line can do without.
_HOMES: Final = {
    "ArtifactsUnavailable": "errors",
    "BadPayload": "errors",
    "Cancelled": "errors",
    "ClaimLost": "errors",
    "MCPTasksError": "errors",
    "Mode": "policy",
    "Operations": "operations",
    "Retry": "runtime.retry",
    "Settings": "settings",
    "StepFailed": "runtime.steps",
    "Tasks": "tasks",
    "TooLarge": "errors",
    "artifact": "runtime.artifacts",
    "attempt": "runtime.current",
    "cancelled": "runtime.current",
    "exponential": "policy",
    "extend": "runtime.extending",
    "fixed": "policy",
    "gather": "runtime.gathering",
    "idempotency_key": "runtime.current",
    "input_timeout": "runtime.asking",
    "note": "runtime.noting",
    "raise_if_cancelled": "runtime.current",
    "sleep": "runtime.sleeping",
    "sleep_until": "runtime.sleeping",
    "step": "runtime.steps",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
