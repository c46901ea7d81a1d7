"""Contract tests of Celery and kombu: one for each function of `mcptasks/celery_seams.py` and each fact leaned on.

A failure here after an upgrade says what moved and what to do, before anything else breaks without a word.
"""

from __future__ import annotations

import inspect
import json
import signal
import time
import uuid
from collections import defaultdict
from collections.abc import Generator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
import redis
from celery import Celery, bootsteps
from celery.app.amqp import AMQP
from celery.app.task import Task
from celery.apps.worker import on_cold_shutdown
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.thread import TaskPool as ThreadsPool
from celery.worker import request as celery_request
from celery.worker import state as worker_state
from celery.worker.consumer import Consumer
from celery.worker.request import Request, create_request_cls
from celery.worker.worker import WorkController
from kombu.connection import Connection
from kombu.messaging import Producer
from kombu.transport.redis import Channel as RedisChannel

from mcptasks.celery_seams import EventfulRequest, Message, batched, envelope, task_message
from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.dispatch import TASK_NAME
from mcptasks.fleet.app import make_app
from mcptasks.settings import Settings

TASK_ID: Final = "the-secret-task-id"


def message(app: Celery, *, countdown_s: float | None = None, time_limit_s: float | None = None) -> Message:
    """A message as the dispatcher makes it."""
    kwargs = {"task_id": TASK_ID, "run": 1, "look": 0}
    return task_message(
        app, "label-1", TASK_NAME, kwargs, shadow="report", countdown_s=countdown_s, time_limit_s=time_limit_s
    )


@pytest.fixture
def app(settings: Settings) -> Celery:
    """The library's own app; it connects to nothing by itself."""
    return make_app(settings)


@pytest.fixture
def connection(app: Celery) -> Generator[Connection]:
    """To the broker."""
    with app.connection_for_write() as opened:
        yield opened


def queue_of(settings: Settings) -> str:
    """The Redis list of the default queue."""
    return f"{settings.prefix}{settings.queue}"


def publish(producer: Producer, made: Message, queue: str) -> None:
    """As the dispatcher does it."""
    producer.publish(
        made.body,
        exchange="",
        routing_key=queue,
        serializer="json",
        headers=made.headers,
        retry=False,
        **made.properties,
    )


# ------------------------------------------------------------------------------------------------ the message


def test_as_task_v2_takes_the_arguments_we_give() -> None:
    """Undocumented `app.amqp.as_task_v2`."""
    parameters = inspect.signature(AMQP.as_task_v2).parameters
    assert list(parameters)[:5] == ["self", "task_id", "name", "args", "kwargs"]
    assert {"countdown", "time_limit", "shadow", "argsrepr", "kwargsrepr", "ignore_result"} <= set(parameters), (
        "as_task_v2 changed: use app.send_task(..., producer=producer) inside the batch"
    )


def test_a_message_has_the_headers_of_celerys_protocol_2(app: Celery) -> None:
    """Workers and monitors read these."""
    made = message(app, time_limit_s=16.0)
    why = "Celery's message protocol moved: compare with docs 'Message Protocol' and mend task_message"
    expected = {
        "task": TASK_NAME,
        "id": "label-1",
        "shadow": "report",
        "eta": None,
        "timelimit": [16.0, None],
        "argsrepr": "()",
        "kwargsrepr": "{}",
        "ignore_result": True,
        "lang": "py",
    }
    assert {name: made.headers.get(name) for name in expected} == expected, why
    assert made.properties["correlation_id"] == "label-1", why
    args, kwargs, embed = made.body
    assert (args, kwargs) == ((), {"task_id": TASK_ID, "run": 1, "look": 0}), why
    assert isinstance(embed, dict), why


def test_the_task_id_is_only_in_the_body_of_a_message(app: Celery) -> None:
    """Headers are what logs, Flower and events show (P81)."""
    made = message(app)
    assert TASK_ID not in json.dumps([made.headers, made.properties]), "something shows the arguments: find the repr"


def test_a_countdown_becomes_a_time_with_its_zone(app: Celery) -> None:
    """Worker and publisher may live in different zones."""
    before = datetime.now(UTC).timestamp()
    eta = datetime.fromisoformat(str(message(app, countdown_s=5).headers["eta"]))
    after = datetime.now(UTC).timestamp()
    assert eta.utcoffset() is not None, "Celery's eta lost its zone: set it ourselves"
    assert before - 1 <= eta.timestamp() - 5 <= after + 1


# ------------------------------------------------------------------------------------------------ publishing


def test_messages_of_a_batch_leave_together_at_its_end(
    app: Celery, connection: Connection, settings: Settings, raw: redis.Redis
) -> None:
    """New in kombu 5.7: `Producer.batch()`; one pipeline on Redis."""
    queue = queue_of(settings)
    with batched(connection) as producer:
        for _ in range(3):
            publish(producer, message(app), settings.queue)
        assert raw.llen(queue) == 0, "Producer.batch() does not buffer on Redis any more: publishing is 8 times dearer"
    assert raw.llen(queue) == 3


def test_a_batch_that_fails_sends_nothing(
    app: Celery, connection: Connection, settings: Settings, raw: redis.Redis
) -> None:
    """The outbox sends all of it again, later."""

    def half_a_batch() -> None:
        with batched(connection) as producer:
            publish(producer, message(app), settings.queue)
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        half_a_batch()
    assert raw.llen(queue_of(settings)) == 0


def test_a_broker_without_batches_is_published_to_at_once(app: Celery) -> None:
    """RabbitMQ and others: the same code, one message at a time."""
    with Connection("memory://") as connection:
        queue = connection.SimpleQueue(f"q{uuid.uuid4().hex}")
        with batched(connection) as producer:
            publish(producer, message(app), queue.queue.name)
            assert queue.qsize() == 1
        queue.close()


def test_an_envelope_is_the_list_and_text_that_kombu_itself_pushes(
    app: Celery, connection: Connection, settings: Settings, raw: redis.Redis
) -> None:
    """Private `basic_publish(_publish_batch=)`; the prefix is put on by hand."""
    made = envelope(connection.default_channel, message(app), settings.queue)
    why = "kombu builds or stores messages in another way: mend envelope(), or let it answer None"
    assert made is not None, why
    key, payload = made
    publish(Producer(connection), message(app), settings.queue)
    assert raw.llen(key) == 1, why
    published = cast("list[str]", raw.lrange(key, 0, -1))[0]
    by_kombu, by_us = json.loads(published), json.loads(payload)
    for either in (by_kombu, by_us):
        del either["properties"]["delivery_tag"]
    assert by_us == by_kombu, why


def test_an_envelope_alone_touches_no_network(
    app: Celery, connection: Connection, settings: Settings, raw: redis.Redis
) -> None:
    """It is made on the server's event loop, which a frozen broker must not block."""
    channel = connection.default_channel
    envelope(channel, message(app), settings.queue)
    raw.config_resetstat()
    assert envelope(channel, message(app), settings.queue) is not None
    stats = raw.info("commandstats")
    assert set(stats) <= {"cmdstat_config|resetstat", "cmdstat_info"}, "making an envelope asks the broker something"


# ------------------------------------------------------------------------------------------------ the worker


def test_the_redis_transport_can_do_without_acknowledgements(valkey: EmbeddedValkey, settings: Settings) -> None:
    """`broker_transport_options={"ack_emulation": False}`: 3.3 times the throughput, and no redelivery."""
    why = "ack_emulation is gone: set a visibility_timeout above every time limit and expect redeliveries (harmless)"
    assert RedisChannel.ack_emulation is True, why
    app = make_app(settings)
    assert app.conf.broker_transport_options["ack_emulation"] is False
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        assert channel.ack_emulation is False, why
        assert channel.QoS is not RedisChannel.QoS, why
        assert channel.global_keyprefix == settings.prefix


def test_a_task_class_names_the_request_class_of_its_messages() -> None:
    """Documented as `Task.Request`; the worker's strategy builds on it."""
    assert Task.Request == "celery.worker.request:Request", "see fleet/app.py: the monitors' events hang on it"
    assert issubclass(EventfulRequest, Request)


class Noted(EventfulRequest):
    """Notes what it would have told the monitors."""

    told: list[str]

    def send_event(self, type: str, **fields: Any) -> None:
        self.told.append(type)


class Silent(Task):
    """As the library's one task: its own events are switched off."""

    name = TASK_NAME
    acks_late = True
    send_events = False

    def run(self, **_: object) -> None: ...


class Pool:
    """The only thing a request asks of its pool here."""

    def apply_async(self, *args: Any, **kwargs: Any) -> None: ...


class Eventer:
    """A dispatcher of events that notes them."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, type: str, **fields: Any) -> None:
        self.sent.append((type, fields))


def request_of(app: Celery, base: type[Request], eventer: Eventer) -> Any:
    """A request of that class, as the worker makes one for a message."""
    task = app.register_task(Silent())
    cls = create_request_cls(base, task, Pool(), "host", eventer, app=cast("Any", app))
    made = message(app)
    with Connection("memory://") as connection:
        channel = connection.channel()
        prepared = channel.prepare_message(json.dumps(made.body), None, "application/json", "utf-8", made.headers, {})
        delivered = channel.message_to_python(
            {**prepared, "properties": {**prepared["properties"], "delivery_tag": "1", "delivery_info": {}}}
        )
        return cls(delivered, app=app, task=task, hostname="host", eventer=eventer, decoded=False)


def test_the_start_and_the_end_of_a_run_are_reported_through_send_event(app: Celery) -> None:
    """Undocumented: `on_accepted` and `on_success` call `self.send_event`, whatever the task's `send_events` says."""
    why = "emit from the signals task_prerun and task_success instead, see EventfulRequest"
    made = request_of(app, Noted, Eventer(enabled=True))
    made.told = []
    made.on_accepted(1, 0.0)
    assert made.told == ["task-started"], why
    made.on_success((False, "'completed'", 0.1))
    assert made.told == ["task-started", "task-succeeded"], why


def test_an_event_is_sent_although_the_task_sends_none_by_itself(app: Celery) -> None:
    """`send_events=False` keeps Celery's own many events away; ours are few."""
    eventer = Eventer(enabled=True)
    request_of(app, EventfulRequest, eventer).send_event("task-started", n=1)
    assert eventer.sent == [("task-started", {"uuid": "label-1", "n": 1})], "Request.eventer or Request.id moved"


def test_no_event_is_sent_when_nobody_listens(app: Celery) -> None:
    """Monitors switch events on while they are there."""
    asleep = Eventer(enabled=False)
    request_of(app, EventfulRequest, asleep).send_event("task-started")
    assert asleep.sent == []


def test_celerys_own_request_would_not_have_sent_it(app: Celery) -> None:
    """The reason why there is a class of our own; when this fails it can go."""
    eventer = Eventer(enabled=True)
    request_of(app, Request, eventer).send_event("task-started")
    assert eventer.sent == []
    assert "send_events" in inspect.getsource(celery_request.Request.send_event)


def test_inspection_shows_nothing_of_what_a_message_carries(app: Celery) -> None:
    """Undocumented `Request.info(safe=)`; Flower's worker page and `celery inspect active` print it (P81)."""
    shown = request_of(app, EventfulRequest, Eventer(enabled=False)).info()
    assert (shown["id"], shown["args"], shown["kwargs"]) == ("label-1", "()", "{}")
    assert TASK_ID not in repr(shown)


def test_celerys_own_inspection_shows_what_a_message_carries(app: Celery) -> None:
    """The reason for `EventfulRequest.info`; when this fails it can go."""
    assert TASK_ID in repr(request_of(app, Request, Eventer(enabled=False)).info())


class Cold(EventfulRequest):
    """Notes that it was told to end cold."""

    ended = False

    def end_cold(self) -> None:
        self.ended = True


@pytest.fixture
def no_work() -> Generator[None]:
    """Celery remembers per process what it works on and what went well; nothing of it stays or was there."""
    worker_state.reset_state()
    yield
    worker_state.reset_state()


def in_work(app: Celery, base: type[Request]) -> Any:
    """A request of that class that a pool works on, as process 17."""
    made = request_of(app, base, Eventer(enabled=False))
    made.on_accepted(17, time.monotonic())
    return made


@pytest.mark.usefixtures("no_work")
def test_a_cold_shutdown_cancels_each_message_in_work(app: Celery) -> None:
    """Undocumented `Consumer.cancel_active_requests`, which SIGQUIT leads to."""
    why = "Celery ends its work in another way now: see EventfulRequest.cancel, or handle SIGQUIT ourselves"
    made = in_work(app, Cold)
    Consumer.cancel_active_requests(cast("Any", SimpleNamespace(pool=ThreadsPool(limit=1))))
    assert made.ended, why
    assert "cancel_active_requests()" in inspect.getsource(on_cold_shutdown), why


@pytest.mark.usefixtures("no_work")
def test_a_prefork_child_is_killed_by_a_cold_shutdown(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """There Celery's own way works, and is taken."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(PreforkPool, "terminate_job", lambda _self, pid, signum: killed.append((pid, signum)))
    made = in_work(app, Cold)
    made.cancel(PreforkPool(limit=1), emit_retry=False)
    assert killed == [(17, signal.SIGTERM)], "Request.cancel or the name of the prefork pool's module moved"
    assert not made.ended


@pytest.mark.usefixtures("no_work")
def test_celerys_own_request_could_not_be_cancelled_in_a_pool_of_threads(app: Celery) -> None:
    """It raised out of the shutdown, which then waited for the threads for ever; when this fails, ours can go."""
    with pytest.raises(NotImplementedError):
        in_work(app, Request).cancel(ThreadsPool(limit=1), emit_retry=False)


def test_a_bootstep_is_made_started_and_stopped_by_its_blueprint(app: Celery) -> None:
    """The sweeper hangs on one; `terminate` is what a cold shutdown calls."""
    why = "Celery's bootsteps changed: see _upkeep in mcptasks/fleet/app.py"
    happened: list[str] = []

    class Step(bootsteps.StartStopStep):
        def __init__(self, parent: Any, **options: Any) -> None:
            super().__init__(parent, **options)
            happened.append("made")

        def start(self, parent: Any) -> None:
            happened.append("start")

        def stop(self, parent: Any) -> None:
            happened.append("stop")

        def terminate(self, parent: Any) -> None:
            happened.append("terminate")

    for cold in (False, True):
        happened.clear()
        worker = SimpleNamespace(steps=[])
        blueprint = bootsteps.Blueprint([Step], name="worker")
        blueprint.apply(worker)
        blueprint.start(worker)
        blueprint.stop(worker, terminate=cold)
        assert happened == ["made", "start", "terminate" if cold else "stop"], why
    assert isinstance(app.steps, defaultdict), why
    assert "celery.worker.components:Timer" in WorkController.Blueprint.default_steps, f"{why}; Upkeep requires it"
