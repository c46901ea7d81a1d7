"""Tells a deaf worker from a live one.

A worker that lost its broker in the wrong moment may live, answer pings, and take no work. What gives it away: messages
wait, it has free slots, and it receives nothing. Each worker measures that of itself and says so in the register.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterable
from contextlib import aclosing, suppress
from typing import Any, Final

from celery import Celery
from kombu.connection import Connection
from kombu.exceptions import OperationalError

from mcptasks.celery_seams import FORK_GUARD, worker_counts
from mcptasks.errors import StoreUnavailable
from mcptasks.fleet.portal import Portal
from mcptasks.fleet.threads import LoopThread
from mcptasks.observe.trouble import Trouble
from mcptasks.settings import Settings
from mcptasks.store.registry import WorkerPulse
from mcptasks.store.store import TaskStore

log: Final = logging.getLogger("mcptasks.fleet")

_EVERY_S: Final = 2.0


class Hearing:
    """Decides from one look after the other whether the worker hears its queues."""

    def __init__(self) -> None:
        self._received = -1
        self._since_ms: int | None = None

    def deaf_ms(self, now_ms: int, *, waiting: int | None, active: int, slots: int, received: int) -> int:
        """For how long messages have waited that this worker could have taken. `waiting=None`: the broker is away."""
        took_some, self._received = received != self._received, received
        if took_some or waiting == 0 or active >= slots:
            self._since_ms = None
            return 0
        if self._since_ms is None:
            self._since_ms = now_ms
        return now_ms - self._since_ms


class Pulse:
    """Reports the worker of this process to the register, from a thread of its own."""

    def __init__(self, settings: Settings, app: Celery, worker: Any, queues: Iterable[str], portal: Portal) -> None:
        self._app, self._queues, self._portal = app, tuple(queues), portal
        self._name: str = worker.hostname
        self._slots: int = worker.concurrency
        self._store = TaskStore(settings)
        self._hearing = Hearing()
        self._trouble = Trouble(log, "The worker's health is not reported")
        #: What was said last.
        self.last: WorkerPulse | None = None
        self._thread = LoopThread("mcptasks-pulse", [self._beating])

    def start(self) -> None:
        """The worker reports itself."""
        self._thread.start()

    def close(self) -> None:
        """The worker has signed off."""
        self._thread.close()

    async def _beating(self) -> None:
        async with aclosing(self._store):
            try:
                while True:
                    await self._beat()
                    await asyncio.sleep(_EVERY_S)
            finally:
                with suppress(StoreUnavailable):
                    await asyncio.shield(self._store.sign_off(self._name))

    async def _beat(self) -> None:
        active, received = worker_counts()
        waiting = await asyncio.to_thread(self._waiting)
        try:
            now_ms = await self._store.now_ms()
            deaf_ms = self._hearing.deaf_ms(
                now_ms, waiting=waiting, active=active, slots=self._slots, received=received
            )
            pulse = WorkerPulse(
                at_ms=now_ms,
                host=socket.gethostname(),
                pid=os.getpid(),
                slots=self._slots,
                active=active,
                received=received,
                waiting=waiting,
                deaf_ms=deaf_ms,
                stuck=self._portal.leftovers,
                held_by=self._portal.keeper.held_by,
                artifacts=self._store.files.where,
                queues=self._queues,
            )
            self.last = pulse
            await self._store.report(self._name, pulse)
            self._trouble.over()
        except StoreUnavailable as exc:
            self._trouble.failed(exc)

    def _waiting(self) -> int | None:
        with FORK_GUARD, self._app.connection_for_read() as connection:
            try:
                # Not kombu's own patience, which is endless: a broker that is away is what is to be told.
                connection.ensure_connection(max_retries=0)
                return sum(_messages(connection, queue) for queue in self._queues)
            except (OperationalError, *connection.connection_errors):
                return None


def _messages(connection: Connection, queue: str) -> int:
    # Declaring a queue changes nothing on Redis. Asking whether it is there does not work: kombu looks for it without
    # the prefix, and an empty list does not exist.
    only_look = connection.transport.driver_type == "amqp"
    return connection.default_channel.queue_declare(queue, passive=only_look).message_count
