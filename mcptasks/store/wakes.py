"""Hears the wakes that the scripts publish. A wake may be lost: the lease renewal tells the same, later."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final, Literal, NamedTuple, cast

from mcptasks.settings import Settings
from mcptasks.store.connection import Connection, translated
from mcptasks.store.keys import Keys

#: A silent socket is probed this often, so that a connection that died without a word is noticed.
_PROBE_S: Final = 15.0


class Wake(NamedTuple):
    """What happened to a task that some worker may be running."""

    kind: Literal["cancel", "answer", "lost"]
    task_id: str
    #: Of a lost run; None for news that every run of the task should hear.
    token: int | None = None

    def concerns(self, task_id: str, token: int) -> bool:
        """The run with that token should hear it."""
        return task_id == self.task_id and self.token in (None, token)


async def wakes(settings: Settings, listening: Callable[[], None] = lambda: None) -> AsyncIterator[Wake]:
    """Every wake of the fleet, from the moment of the first `anext`. `listening` is called once none is missed.

    Raises:
        StoreUnavailable: the connection is gone; listen again.
    """
    with translated(settings):
        async with Connection(settings).blocking_client() as client, client.pubsub() as subscription:
            await subscription.subscribe(Keys(settings.prefix).wakes)
            while True:
                # Not `ignore_subscribe_messages`: an ignored pong would look like silence, and be answered with a ping.
                message = await subscription.get_message(timeout=_PROBE_S)
                if message is None:
                    await subscription.ping()
                elif message["type"] == "subscribe":
                    listening()
                elif message["type"] == "message":
                    yield _parse(str(message["data"]))


def _parse(data: str) -> Wake:
    kind, task_id, *token = data.split(" ")
    return Wake(cast("Literal['cancel', 'answer', 'lost']", kind), task_id, int(token[0]) if token else None)
