"""Which workers answer, asked through Celery's own remote control."""

from __future__ import annotations

from typing import Any, cast

from celery import Celery


def answering_workers(app: Celery, timeout_s: float = 1.0) -> list[str]:
    """Names of the workers that answered within the time; empty when none did.

    Raises:
        OSError: the broker cannot be reached.
    """
    replies = cast("list[dict[str, Any]]", app.control.ping(timeout=timeout_s))
    return sorted(name for reply in replies for name in reply)
