"""The Celery message and its publisher.

A message is a hint to look at a task; the store decides. So publishing may fail at any time: create.lua left the task
in the outbox (`unsent`), and the sweeper sends again what no worker claimed. Publishing never happens on an event
loop, because a frozen broker blocks it.

Where the broker is the store itself, a message need not be published at all: the script that queues the task pushes it.
That is an optimisation behind a self-test; without it everything works through the thread.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterable
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from celery import Celery
from kombu.connection import Connection
from kombu.entity import Queue

from mcptasks.celery_seams import FORK_GUARD, Message, batched, envelope, task_message
from mcptasks.model import Envelope, Hint

log: Final = logging.getLogger("mcptasks.dispatch")

#: The one Celery task of this library.
TASK_NAME: Final = "mcptasks.execute"
#: Messages per pipeline: larger batches gain nothing and lose more when the broker goes away in the middle.
_BATCH: Final = 100
#: After a failed publish the thread waits this long; what it held is sent again by the sweeper.
_BACKOFF_S: Final = 1.0
#: What the interpreter's exit waits for the last messages.
_FLUSH_S: Final = 2.0


class Dispatcher(Protocol):
    """What the server and the workers need of a publisher."""

    def send(self, hint: Hint) -> None:
        """The message will be sent; returns at once, never raises for the broker's sake."""
        ...

    def envelope(self, hint: Hint) -> Envelope | None:
        """The message for a script to push together with its transition; None: use `send` after it."""
        ...


class Publisher:
    """One thread per process that publishes hints in batches. Survives a fork: the child gets a thread of its own."""

    def __init__(self, app: Celery, *, broker_is_store: bool) -> None:
        self._app = app
        self._broker_is_store = broker_is_store
        #: A kombu channel that makes envelopes; opened by the thread, because opening one talks to the broker.
        self._channel: Any = None
        self._lock = threading.Lock()
        self._pid = 0
        self._hints: SimpleQueue[Hint | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def send(self, hint: Hint) -> None:
        """The message will be sent by the publisher thread."""
        if self._pid != os.getpid():
            self._start()
        self._hints.put(hint)

    def envelope(self, hint: Hint) -> Envelope | None:
        """The message, if the broker is the store and kombu still makes messages as the self-test knows them."""
        if self._pid != os.getpid():
            self._start()
        if self._channel is None:
            return None
        made = envelope(self._channel, self._message(hint), hint.queue)
        return None if made is None else Envelope(*made, hint.run)

    def close(self) -> None:
        """What was handed over has been sent, or `_FLUSH_S` has passed; the sweeper sends the rest."""
        if self._thread is not None and self._pid == os.getpid():
            self._hints.put(None)
            self._thread.join(_FLUSH_S)

    def _start(self) -> None:
        with self._lock:
            if self._pid == os.getpid():
                return
            self._hints = SimpleQueue()
            self._thread = threading.Thread(
                target=self._drain, args=(self._hints,), name="mcptasks-publisher", daemon=True
            )
            self._thread.start()
            self._pid = os.getpid()
            atexit.register(self.close)

    def _drain(self, hints: SimpleQueue[Hint | None]) -> None:
        connection: Connection | None = None
        if self._broker_is_store:
            with FORK_GUARD:
                self._channel = self._open_channel()
        while (first := hints.get()) is not None:
            batch, last = _take(hints, first)
            try:
                connection = connection or self._app.connection_for_write()
                with FORK_GUARD:
                    self._publish(connection, batch)
            except Exception as exc:  # whatever the broker's client raises, the outbox has these tasks
                log.warning(
                    "The broker did not take %d message(s) (%s: %s); the sweeper sends them again.",
                    len(batch),
                    type(exc).__name__,
                    exc,
                )
                if connection is not None:
                    with FORK_GUARD:
                        connection.collect()
                    connection = None
                threading.Event().wait(_BACKOFF_S)
            if last:
                break
        if connection is not None:
            with FORK_GUARD:
                connection.release()

    def _publish(self, connection: Connection, batch: Iterable[Hint]) -> None:
        with batched(connection) as producer:
            for hint in batch:
                message = self._message(hint)
                producer.publish(
                    message.body,
                    exchange="",
                    routing_key=hint.queue,
                    serializer="json",
                    headers=message.headers,
                    declare=[self._queue(hint.queue)],
                    retry=False,
                    **message.properties,
                )

    def _message(self, hint: Hint) -> Message:
        message = task_message(
            self._app,
            hint.message_id,
            TASK_NAME,
            {"task_id": hint.task_id, "run": hint.run, "look": hint.look},
            shadow=hint.tool,
            countdown_s=hint.countdown_ms / 1000 if hint.countdown_ms else None,
            time_limit_s=hint.hard_limit_s,
        )
        message.headers.update(hint.trace)
        return message

    def _open_channel(self) -> Any:
        """A channel whose envelopes passed the self-test, or None."""
        try:
            channel = self._app.connection_for_write().channel()
            probe = Hint(task_id="self-test", run=1, tool="self-test", queue=self._app.conf.task_default_queue)
            return channel if envelope(channel, self._message(probe), probe.queue) is not None else None
        except Exception as exc:  # private ground: whatever moved there, the thread's way works
            log.info("Messages go through the publisher thread (%s: %s)", type(exc).__name__, exc)
            return None

    def _queue(self, name: str) -> Queue:
        return self._app.amqp.queues[name]


def _take(hints: SimpleQueue[Hint | None], first: Hint) -> tuple[list[Hint], bool]:
    """Up to a batch of what waits, and whether the end was among it."""
    batch = [first]
    while len(batch) < _BATCH:
        try:
            hint = hints.get_nowait()
        except Empty:
            break
        if hint is None:
            return batch, True
        batch.append(hint)
    return batch, False
