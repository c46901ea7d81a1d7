"""Commands that can do nothing without the store say so at once, instead of letting Celery try for minutes."""

from __future__ import annotations

import typer

from mcptasks.cli.shared_store import running_on
from mcptasks.settings import Settings
from mcptasks.store.connection import address
from mcptasks.store.probe import ping


def require_store() -> None:
    """The store that MCPTASKS_REDIS_URL names answers.

    Raises:
        StoreUnavailable: it does not.
    """
    settings = Settings.load()
    tell_of_dev(settings)
    ping(settings)


def tell_of_dev(settings: Settings) -> None:
    """Where nothing names a store, and a `mcptasks dev` in this folder has one, standard error says which.

    It is not taken: it ends with the last process of that `dev`, and whoever else works on it would stand there.
    """
    if "redis_url" not in settings.model_fields_set and (url := running_on()):
        typer.echo(
            f"mcptasks: nothing names a store, so this works on {address(settings.redis_url)}. "
            f"To work on that of the `mcptasks dev` in this folder, set MCPTASKS_REDIS_URL={url}",
            err=True,
        )
