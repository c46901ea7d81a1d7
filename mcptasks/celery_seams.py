"""Every undocumented name of Celery and kombu, one function or class each, pinned by `tests/unit/test_celery_*.py`.

When a pin breaks after an upgrade of Celery: read the docstring of the function, look at what moved, mend it here.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from queue import Empty
from typing import Any, Final, NamedTuple, cast

from celery import Celery
from celery.app.amqp import AMQP
from celery.worker import state
from celery.worker.request import Request
from kombu import serialization
from kombu.connection import Connection
from kombu.messaging import Producer
from kombu.transport.redis import Channel as RedisChannel
from kombu.transport.redis import Transport as RedisTransport
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

log: Final = logging.getLogger("mcptasks.fleet")

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

    def info(self, safe: bool = False) -> dict[str, Any]:
        """What `inspect active` and the like, and through them Flower's worker page, show of this message.

        UNDOCUMENTED that it shows what the message carries, whatever its `kwargsrepr`, unless `safe`: a whole task id
        among it. If it moves: look what `celery inspect active` prints.
        """
        return cast("dict[str, Any]", super().info(safe=True))

    def send_event(self, type: str, **fields: Any) -> None:
        """The event goes to the monitors, if any listens."""
        if self.eventer is not None and self.eventer.enabled:
            self.eventer.send(type, uuid=self.id, **fields)


#: What kombu's Redis transport puts around every message, and reads without a second look.
_ENVELOPE: Final = {"body": str, "content-type": str, "content-encoding": str, "headers": dict, "properties": dict}
_PROPERTIES: Final = {"delivery_tag": str, "delivery_info": dict}
#: What is raised where something has not the shape that was expected; not what a broken connection or pool raises.
_SHAPE_ERRORS: Final = (TypeError, ValueError, LookupError, AttributeError)
#: How a server begins its answer while it takes no writes for a time: after or during a failover, when it cannot write
#: its file, has no memory or not the replicas it must have. (LOADING is a lost connection for redis-py already.)
_REFUSALS: Final = frozenset({"UNBLOCKED", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "MISCONF", "OOM"})


class ForgivingChannel(RedisChannel):
    """Kombu's own channel, on which neither a bad item of a queue nor a server that takes no writes ends the worker.

    PRIVATE `_brpop_read` and `_create_client`, and UNDOCUMENTED that the one takes what `parse_response` of the other's
    client gives it. Kombu and Celery let what is no message of Celery's raise out of the event loop, and the worker
    ends with it: one LPUSH of somebody else takes down the fleet. Here such an item costs a line in the log.
    PRIVATE `_queue_bind`, the one write of a consumer that begins. Celery knows a server's refusal for no loss of the
    connection, and the worker ends. Here it is one, and a channel opens only where the server takes writes: so Celery
    waits longer each time before it tries again, as for a broker that is away.
    If either moves: a supervisor restarts the worker.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: The queue and the item that were taken last.
        self._taken: tuple[bytes, bytes] | None = None
        super().__init__(*args, **kwargs)
        try:
            with _refusal_is_loss():
                self.client.set("probe", "1", px=1)
        except BaseException:
            self.close()
            raise

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        with _refusal_is_loss():
            super()._queue_bind(exchange, routing_key, pattern, queue)

    def basic_consume(self, *args: Any, callback: Callable[[Any], Any], **kwargs: Any) -> Any:
        """As kombu's own; what a message has wrong inside does not come out of the callback."""
        return super().basic_consume(*args, callback=partial(self._receive_message, callback), **kwargs)

    def _receive_message(self, callback: Callable[[Any], Any], message: Any) -> None:
        try:
            callback(message)
        except _SHAPE_ERRORS as exc:
            # Its text may quote the message.
            log.error("A message has nothing in it that a task can be made of (%s); it is dropped", type(exc).__name__)
            if not message.acknowledged:
                message.ack()

    def _create_client(self, asynchronous: bool = False) -> Any:
        client: Any = super()._create_client(asynchronous)
        if asynchronous:
            client.parse_response = partial(self._parse, client.parse_response)
        return client

    def _parse(self, parse: Callable[..., Any], connection: Any, command_name: str, **options: Any) -> Any:
        if command_name != "BRPOP":
            return parse(connection, command_name, **options)
        with _refusal_is_loss():
            self._taken = parse(connection, command_name, **options)
        return self._taken

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except Exception:
            # Only now, because nearly every item is a message, and to look into it costs as much as to read it.
            taken, self._taken = self._taken, None
            flaw = self._flaw(taken[1]) if taken else ""
            if not taken or not flaw:
                raise
        log.error(
            "The queue %s held %d bytes that are no message of Celery's (%s); they are dropped. "
            "Who else writes to this list of the broker? MCPTASKS_PREFIX keeps programs apart.",
            bytes_to_str(taken[0]).rsplit(self.sep, 1)[0],
            len(taken[1]),
            flaw,
        )
        raise Empty

    def _flaw(self, item: bytes) -> str:
        """What is wrong with the item, without a word of it; nothing: kombu can read it."""
        try:
            message = loads(bytes_to_str(item))
        except Exception:  # what a decoder of kombu's raises depends on the item
            return "no JSON"
        flaw = _misshapen(message, _ENVELOPE) or _misshapen(message["properties"], _PROPERTIES)
        if flaw:
            return flaw
        try:
            self.decode_body(message["body"], message["properties"].get("body_encoding"))
        except Exception:  # as above
            return "its body cannot be decoded"
        return ""


@contextmanager
def _refusal_is_loss() -> Generator[None]:
    try:
        yield
    except RedisTransport.channel_errors as exc:
        # redis-py cuts the code off a message it has a class for.
        if (getattr(exc, "status_code", None) or str(exc).partition(" ")[0]) in _REFUSALS:
            raise ConnectionError(f"the broker takes no writes: {exc}") from exc
        raise


def _misshapen(part: Any, shape: Mapping[str, type]) -> str:
    if not isinstance(part, dict):
        return "no JSON object"
    fields = cast("dict[str, object]", part)
    wrong = [name for name, kind in shape.items() if not isinstance(fields.get(name), kind)]
    return f"without a proper {wrong[0]}" if wrong else ""


class ForgivingTransport(RedisTransport):
    """Kombu's own Redis transport with that channel."""

    Channel = ForgivingChannel


class ForgivingConnection(Connection):
    """Kombu's own connection, which takes that transport where it would take its own for Redis.

    UNDOCUMENTED that `get_transport_cls` alone decides. Celery's setting `broker_transport` would do it too, but then
    the broker's URL in logs and monitors no longer says redis, and Flower refuses it.
    """

    def get_transport_cls(self) -> Any:
        """The transport's class."""
        found: Any = super().get_transport_cls()
        return ForgivingTransport if found is RedisTransport else found


class ForgivingAMQP(AMQP):
    """For `Celery(amqp=...)`: every connection of the app, a worker's first of all, is such a connection."""

    Connection = ForgivingConnection
