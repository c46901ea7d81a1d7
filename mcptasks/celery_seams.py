"""Every undocumented name of Celery and kombu, one function each; `tests/unit/test_celery_seams.py` pins each one.

When a pin breaks after an upgrade of Celery: read the docstring of the function, look at what moved, mend it here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from celery import Celery
from celery.worker import state
from celery.worker.request import Request
from kombu import serialization
from kombu.connection import Connection
from kombu.messaging import Producer

#: Held while one of our threads talks to the broker through kombu, and by every fork. A prefork child that is forked
#: while such a thread holds a lock of kombu's pools inherits it locked, and hangs in kombu's own after-fork clean-up.
FORK_GUARD: Final = threading.Lock()
os.register_at_fork(before=FORK_GUARD.acquire, after_in_parent=FORK_GUARD.release, after_in_child=FORK_GUARD.release)


class Message(NamedTuple):
    """A task message of Celery's protocol 2, ready for `Producer.publish`."""

    headers: dict[str, Any]
    properties: dict[str, Any]
    body: tuple[Any, ...]


def task_message(
    app: Celery,
    message_id: str,
    task_name: str,
    kwargs: Mapping[str, Any],
    *,
    shadow: str,
    countdown_s: float | None,
    time_limit_s: float | None,
) -> Message:
    """The message Celery itself would send.

    UNDOCUMENTED `app.amqp.as_task_v2`: eight times cheaper than `apply_async` (celery-facts 1), and the public
    `send_task` cannot be batched well. `argsrepr` and `kwargsrepr` are what logs and Flower show of the arguments: the
    task id must not be there. If it moves: `app.send_task(..., producer=producer)` inside the batch.
    """
    built = app.amqp.as_task_v2(
        message_id,
        task_name,
        (),
        dict(kwargs),
        countdown=countdown_s,
        time_limit=time_limit_s,
        shadow=shadow,
        argsrepr="()",
        kwargsrepr="{}",
        ignore_result=True,
    )
    return Message(built.headers, built.properties, built.body)


@contextmanager
def batched(connection: Connection) -> Generator[Producer]:
    """A producer whose messages leave together when the block ends.

    NEW in kombu 5.7 `Producer.batch()`: one pipeline on Redis, immediate publishing on brokers without it. If it moves:
    publish one by one.
    """
    producer = Producer(connection)
    with producer.batch():
        yield producer


class Capture:
    """Stands in for kombu's batch and keeps what would have been sent."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, tuple[Any, ...]]] = []

    def add(self, name: str, *args: Any) -> None:
        """Kombu's one way to fill a batch."""
        self.commands.append((name, args))


def envelope(channel: Any, message: Message, queue: str) -> tuple[str, str] | None:
    """The Redis list and the text that kombu would push for this message; None where it would do anything else.

    PRIVATE `basic_publish(_publish_batch=)`: kombu itself makes envelope, key and priority, and nothing touches the
    network. If it moves this answers None or raises, and the publisher's thread sends everything, as on other brokers.
    """
    content_type, encoding, body = serialization.dumps(message.body, serializer="json")
    properties = {**message.properties, "delivery_mode": 2}
    prepared = channel.prepare_message(body, 0, content_type, encoding, message.headers, properties)
    capture = Capture()
    channel.basic_publish(prepared, exchange="", routing_key=queue, _publish_batch=capture)
    if len(capture.commands) != 1 or capture.commands[0][0] != "lpush":
        return None
    key, payload = capture.commands[0][1]
    # The prefixing client would put it there; a script must do it itself.
    return f"{channel.global_keyprefix}{key}", payload


def worker_counts() -> tuple[int, int]:
    """How many messages this worker is working on, and how many it has received since it started.

    UNDOCUMENTED `celery.worker.state`, which `inspect active` and `inspect stats` read too. If it moves: ask the worker
    through `app.control.inspect()`.
    """
    return len(state.active_requests), int(state.all_total_count[0])


class EventfulRequest(Request):
    """Celery's own request, with `send_event` and `end_cold` free to be overridden.

    UNDOCUMENTED that `on_accepted` and `on_success` report through `self.send_event`; that `Task.Request` names the
    class is documented ("Custom task classes"). If it moves: emit from the signals `task_prerun` and `task_success`.
    """

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """The work on this message ends with a cold shutdown: a prefork child is killed, elsewhere see `end_cold`.

        UNDOCUMENTED that a cold shutdown calls this for each message in work. Celery's own raises where the pool cannot
        kill, and the worker then waits for its threads for ever. If it moves: a handler of our own for SIGQUIT.
        """
        if "prefork" in type(pool).__module__:
            super().cancel(pool, signal, emit_retry)
        else:
            self.end_cold()

    def end_cold(self) -> None:
        """The worker is to end now, but its pool can kill nothing."""

    def send_event(self, type: str, **fields: Any) -> None:
        """The event goes to the monitors, if any listens."""
        if self.eventer is not None and self.eventer.enabled:
            self.eventer.send(type, uuid=self.id, **fields)
