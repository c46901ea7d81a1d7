"""Commands that can do nothing without the store say so at once, instead of letting Celery try for minutes."""

from __future__ import annotations

from mcptasks.settings import Settings
from mcptasks.store.probe import ping


def require_store() -> None:
    """The store that MCPTASKS_REDIS_URL names answers.

    Raises:
        StoreUnavailable: it does not.
    """
    ping(Settings.load())
