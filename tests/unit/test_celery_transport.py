"""Contract tests of kombu's Redis transport as a worker uses it, and what `ForgivingChannel` makes of bad items."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from celery import Celery
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.transport.redis import Transport as RedisTransport

from mcptasks.celery_seams import ForgivingChannel, ForgivingConnection, ForgivingTransport
from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.dispatch import Publisher
from mcptasks.fleet.app import make_app
from mcptasks.model import Hint
from mcptasks.settings import Settings

#: Stands for what nobody may read in a log.
SECRET: Final = "s3cret"

_PROPERTIES: Final = '"properties": {"delivery_tag": "1", "delivery_info": {}, "body_encoding": "base64"}'
_REST: Final = '"content-type": "application/json", "content-encoding": "utf-8", "headers": {}'
#: Items that are no message -> what is said of them.
ITEMS: Final[dict[bytes, str]] = {
    SECRET.encode(): "no JSON",
    b"\xff\xfe" + SECRET.encode(): "no JSON",
    b"": "no JSON",
    b"[" * 100_000: "no JSON",
    b'{"__type__": "decimal", "__value__": "s3cret"}': "no JSON",
    b"17": "no JSON object",
    b'["s3cret"]': "no JSON object",
    b"null": "no JSON object",
    b'{"s3cret": 1}': "without a proper body",
    f'{{"body": "", {_REST}}}'.encode(): "without a proper properties",
    f'{{"body": "", {_REST}, "properties": {{}}}}'.encode(): "without a proper delivery_tag",
    f'{{"body": 17, {_REST}, {_PROPERTIES}}}'.encode(): "without a proper body",
    f'{{"body": "{SECRET}", {_REST}, {_PROPERTIES}}}'.encode(): "its body cannot be decoded",
}


@pytest.fixture
def app(settings: Settings) -> Celery:
    return make_app(settings)


def send(app: Celery, settings: Settings, task_id: str) -> None:
    """The task's message is in the queue."""
    publisher = Publisher(app, broker_is_store=False)
    publisher.send(Hint(task_id=task_id, run=1, tool="report", queue=settings.queue))
    publisher.close()


def consumer(connection: Connection, settings: Settings, take: Callable[[object, Any], None]) -> Any:
    """Takes what is in the default queue; for `with`."""
    queue = Queue(settings.queue, Exchange(settings.queue), routing_key=settings.queue)
    return connection.Consumer(queue, callbacks=[take], accept=["json"])


def received(connection: Connection, settings: Settings, wanted: int = 1) -> list[Any]:
    """What a consumer of the default queue is given, as soon as it was given that much."""
    messages: list[Any] = []

    def take(_body: object, message: Any) -> None:
        message.ack()
        messages.append(message)

    with consumer(connection, settings, take):
        while len(messages) < wanted:
            connection.drain_events(timeout=30)
    return messages


def test_a_connection_of_the_app_takes_our_channel_and_still_says_redis(app: Celery) -> None:
    """Undocumented `Connection.get_transport_cls`; Flower knows brokers by their URL."""
    why = "Celery or kombu make their connections in another way: see ForgivingConnection"
    with app.connection_for_read() as connection:
        assert isinstance(connection, ForgivingConnection), why
        assert isinstance(connection.transport, ForgivingTransport), why
        assert isinstance(connection.default_channel, ForgivingChannel), why
        assert isinstance(connection.clone(), ForgivingConnection), why
        assert connection.as_uri().startswith("redis://"), why


def test_other_brokers_keep_their_own_transport() -> None:
    """Only kombu's Redis transport hands over whatever lies in the list."""
    with ForgivingConnection("memory://") as connection:
        assert not isinstance(connection.transport, RedisTransport)


@pytest.mark.parametrize(("item", "flaw"), ITEMS.items(), ids=[repr(item[:30]) for item in ITEMS])
def test_an_item_that_is_no_message_is_dropped_with_a_line(
    app: Celery, settings: Settings, raw: redis.Redis, caplog: pytest.LogCaptureFixture, item: bytes, flaw: str
) -> None:
    """Private `_create_client`: between two good messages a bad item stops nothing, and none of it is in the log."""
    key = f"{settings.prefix}{settings.queue}"
    send(app, settings, "t1")
    raw.lpush(key, item)
    send(app, settings, "t2")
    with app.connection_for_read() as connection:
        messages = received(connection, settings, wanted=2)
    assert [message.payload[1]["task_id"] for message in messages] == ["t1", "t2"]
    assert raw.llen(key) == 0
    [line] = [record for record in caplog.records if record.levelno == logging.ERROR]
    said = f"The queue {settings.queue} held {len(item)} bytes that are no message of Celery's ({flaw})"
    assert line.getMessage().startswith(said)
    assert SECRET not in caplog.text


def test_kombus_own_channel_lets_such_an_item_out_of_its_loop(settings: Settings, raw: redis.Redis) -> None:
    """The reason why there is a channel of our own; when this fails it can go."""
    raw.lpush(settings.queue, "no JSON")
    with Connection(settings.redis_url) as connection, pytest.raises(ValueError, match="Expecting value"):
        received(connection, settings)


def test_a_message_that_its_taker_stumbles_over_is_dropped(
    app: Celery, settings: Settings, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A message may be well formed and hold nonsense: Celery's own code raised, the worker ended, and gave it back."""
    for task_id in ("t1", "t2"):
        send(app, settings, task_id)
    taken: list[str] = []

    def take(_body: object, message: Any) -> None:
        taken.append(message.payload[1]["task_id"])
        raise TypeError(f"{SECRET} is not iterable")

    with app.connection_for_read() as connection, consumer(connection, settings, take) as opened:
        # One message at a time: the second is only taken if the first one's slot is free again.
        opened.qos(prefetch_count=1)
        while len(taken) < 2:
            connection.drain_events(timeout=30)
    assert raw.llen(f"{settings.prefix}{settings.queue}") == 0
    assert caplog.messages == ["A message has nothing in it that a task can be made of (TypeError); it is dropped"] * 2


@pytest.mark.parametrize("error", [ConnectionResetError, redis.ConnectionError, RuntimeError, MemoryError])
def test_what_is_no_fault_of_the_message_comes_out(app: Celery, settings: Settings, error: type[Exception]) -> None:
    """A connection that broke or a pool that is gone: Celery has its own answers, and the message stays unanswered."""
    send(app, settings, "t1")

    def take(_body: object, message: Any) -> None:
        raise error("on purpose")

    with (
        app.connection_for_read() as connection,
        consumer(connection, settings, take),
        pytest.raises(error, match="on purpose"),
    ):
        connection.drain_events(timeout=30)


# ------------------------------------------------------------------------------------------------ a broker that refuses


@pytest.fixture
def fragile(tmp_path: Path) -> Generator[EmbeddedValkey]:
    """A broker of this test's own, to be broken."""
    with EmbeddedValkey(tmp_path) as valkey:
        yield valkey


#: How a broker comes to take no writes -> what makes it so, and what ends it.
REFUSALS: Final = {
    "READONLY": ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    "OOM": ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
    "NOREPLICAS": ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
}


@contextmanager
def refusing(broker: EmbeddedValkey, how: str) -> Generator[redis.Redis]:
    """Inside the block the broker takes no writes; yields a client of it."""
    begin, end = REFUSALS[how]
    with redis.Redis.from_url(broker.url) as client:
        client.execute_command(*begin.split())
        try:
            yield client
        finally:
            client.execute_command(*end.split())


@pytest.mark.parametrize("how", REFUSALS)
def test_no_channel_opens_on_a_broker_that_takes_no_writes(fragile: EmbeddedValkey, how: str) -> None:
    """So Celery waits longer each time before it tries again: it knows this for a broker that is away."""
    app = make_app(Settings(redis_url=fragile.url))
    with refusing(fragile, how) as client, app.connection_for_read() as connection:
        with pytest.raises(ConnectionError, match="the broker takes no writes"):
            connection.transport.establish_connection()
        with pytest.raises(OperationalError, match="the broker takes no writes"):
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
        assert len(client.client_list()) == 1, "what did not open leaves no connection behind"
    with app.connection_for_read() as connection:
        assert connection.default_channel.client.ping()


def test_a_refusal_that_a_waiting_consumer_reads_is_a_lost_connection(fragile: EmbeddedValkey) -> None:
    """After a failover a BRPOP is answered with an error. Celery ended its worker: "Unrecoverable error"."""
    settings = Settings(redis_url=fragile.url)
    app = make_app(settings)
    with app.connection_for_read() as connection, consumer(connection, settings, lambda *_: None):
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
        with (
            refusing(fragile, "READONLY"),
            pytest.raises(connection.connection_errors, match="takes no writes: UNBLOCKED"),
        ):
            connection.drain_events(timeout=30)


def test_a_consumer_that_begins_on_a_broker_that_refuses_has_lost_its_connection(fragile: EmbeddedValkey) -> None:
    """Private `_queue_bind`: the broker may have begun to refuse a moment after the channel opened."""
    settings = Settings(redis_url=fragile.url)
    app = make_app(settings)
    with app.connection_for_read() as connection:
        connection.connect()
        with refusing(fragile, "OOM"), pytest.raises(ConnectionError, match="the broker takes no writes"):
            consumer(connection, settings, lambda *_: None)


def test_an_error_that_is_no_refusal_stays_what_it_is(app: Celery, settings: Settings, raw: redis.Redis) -> None:
    """What no waiting heals must not be waited for."""
    with app.connection_for_read() as connection, consumer(connection, settings, lambda *_: None):
        raw.set(f"{settings.prefix}{settings.queue}", "no list", ex=60)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            connection.drain_events(timeout=30)
