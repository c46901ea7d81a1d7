"""The Celery app of a fleet: one task, one message shape, and the profile that makes Celery safe to lean on.

The store decides what runs; a message is only a hint to look. That is what lets the profile choose speed and calm over
the broker's own guarantees.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Iterable
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

from celery import Celery, bootsteps
from celery.app.task import Task
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import (
    after_setup_logger,
    after_setup_task_logger,
    worker_process_init,
    worker_process_shutdown,
    worker_shutdown,
    worker_shutting_down,
)
from kombu.entity import Exchange, Queue

from mcptasks.celery_seams import ForgivingAMQP
from mcptasks.dispatch import TASK_NAME
from mcptasks.fleet.execute import STUCK, leave, perform
from mcptasks.fleet.isolation import app_argument
from mcptasks.fleet.portal import Portal
from mcptasks.fleet.pulse import Pulse
from mcptasks.fleet.request import SilentRequest, TaskRequest
from mcptasks.fleet.sweeper import Sweeper
from mcptasks.model import Hint
from mcptasks.observe import metrics_port
from mcptasks.observe.export import exporting
from mcptasks.observe.logs import write_json
from mcptasks.observe.tracing import FIELDS
from mcptasks.runtime.watchdog import Stop
from mcptasks.settings import Settings

log: Final = logging.getLogger("mcptasks.fleet")

#: Redis' own client waits for ever by default; a frozen broker must not freeze a worker. Above kombu's 1 s BRPOP.
_BROKER_TIMEOUT_S: Final = 10


#: The service's name in traces, where nobody gave it another.
WORKER: Final = "mcptasks-worker"

App: TypeAlias = Celery
"""What `Tasks.bind` returns."""


def make_app(settings: Settings) -> Celery:
    """A Celery app with this library's profile; it has no task yet."""
    app = Celery("mcptasks", broker=settings.broker, amqp=ForgivingAMQP, set_as_current=False)
    app.conf.update(
        # -- what a message is
        # JSON only: nobody who can write to the broker may run code here.
        task_serializer="json",
        accept_content=["json"],
        task_default_queue=settings.queue,
        # On RabbitMQ a quorum queue gives unacked messages back when a connection drops.
        task_default_queue_type="quorum" if _is_amqp(settings.broker) else "classic",
        # -- when it is gone
        # Acked when the run is over, one message per slot: nothing waits in a busy worker's hands.
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        # A message that killed its worker must not come back by itself: the store counts attempts, Celery does not.
        task_reject_on_worker_lost=False,
        task_acks_on_failure_or_timeout=True,
        broker_transport_options=_transport_options(settings),
        broker_connection_retry_on_startup=True,
        # Runs go on when the broker's connection drops; their claims live in the store.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        # -- what Celery need not do
        # The record is the result.
        task_ignore_result=True,
        result_backend=None,
        worker_disable_rate_limits=True,
        task_send_sent_event=False,
        # -- what people see
        # The worker's prints stay prints; a LoggingProxy as stdout breaks tools that ask for its file number.
        worker_redirect_stdouts=False,
    )
    return app


def _is_amqp(broker: str) -> bool:
    return urlsplit(broker).scheme in ("amqp", "amqps", "pyamqp")


def _transport_options(settings: Settings) -> dict[str, Any]:
    if _is_amqp(settings.broker):
        return {}
    return {
        # Off: 3.3 times the throughput, no redelivery of long or parked tasks after the visibility timeout, and a
        # broker restart no longer kills the worker. What a kill -9 loses, the sweeper sends again from the store.
        "ack_emulation": False,
        "socket_timeout": _BROKER_TIMEOUT_S,
        "socket_connect_timeout": _BROKER_TIMEOUT_S,
        "socket_keepalive": True,
        # The store's prefix also keeps two fleets on one database apart in the broker.
        "global_keyprefix": settings.prefix,
    }


def serve_tasks(app: Celery, portal: Portal, queues: Iterable[str]) -> None:
    """The app executes tasks on this portal, and its workers sweep. A worker without -Q serves all of these queues."""
    portal.leave = functools.partial(leave, portal)
    # Queues, not their options by name, which Celery takes as well: Flower reads their names off them.
    app.conf.task_queues = [Queue(name, Exchange(name), routing_key=name) for name in queues]
    _define_task(app, portal)
    cast("dict[str, set[Any]]", app.steps)["worker"].add(_upkeep(app, portal))
    if portal.settings.log_format == "json":
        # Celery's own handlers stay, with its level and its file.
        after_setup_logger.connect(_log_json, weak=False)
        after_setup_task_logger.connect(_log_json, weak=False)
    # weak=False: the closures are referenced from nowhere else.
    worker_process_init.connect(lambda **_: _enter(portal), weak=False)
    worker_process_shutdown.connect(lambda **_: _leave_child(portal), weak=False)
    worker_shutting_down.connect(lambda **_: portal.shutdown.begin(portal.settings.shutdown_grace_ms), weak=False)
    worker_shutdown.connect(lambda sender, **_: _leave(portal, sender), weak=False)


def _log_json(logger: logging.Logger, **_: Any) -> None:
    write_json(logger.handlers)


def _enter(portal: Portal) -> None:
    """A prefork child is ready: its spans leave, its loop runs. Threads of the parent would not have come along."""
    exporting.begin(WORKER)
    portal.warm()


def _leave_child(portal: Portal) -> None:
    portal.close()
    exporting.close()


def _leave(portal: Portal, worker: Any) -> None:
    """The process can end: with what Celery does next, or here where a tool's thread would hold it for ever."""
    closed = portal.close()
    exporting.close()
    if closed:
        return
    log.warning("A tool does not stop; its task was settled without it, and this worker ends without it")
    logging.shutdown()
    os._exit(worker.exitcode or 0)


def _define_task(app: Celery, portal: Portal) -> None:
    monitored = portal.settings.flower == "tasks"

    class Execute(Task):
        """The one Celery task: looks at a task of the store and does what it finds."""

        name = TASK_NAME
        # Our own few events instead of Celery's: Flower switches those on by itself and they halve the throughput.
        send_events = False
        portal: Portal
        Request = TaskRequest if monitored else SilentRequest

        def run(self, task_id: str, run: int, look: int = 0) -> str:
            """Returns the word for the monitors; never raises for the tool's reasons."""
            hint = self._hint(task_id, run, look)
            word = _wait(portal, hint, f"{self.request.hostname}:{os.getpid()}")
            if word.startswith(STUCK) and portal.expendable:
                # The tool's thread cannot be stopped, but a prefork child can be replaced.
                log.warning("This worker child is replaced, because its tool does not stop")
                raise SystemExit(1)
            return word

        def _hint(self, task_id: str, run: int, look: int) -> Hint:
            """The hint that this message was made of, complete: a worker that goes down sends it once more."""
            hard_limit_s, _ = self.request.timelimit or (None, None)
            return Hint(
                task_id=task_id,
                run=run,
                look=look,
                tool=self.request.shadow or "",
                queue=(self.request.delivery_info or {}).get("routing_key") or app.conf.task_default_queue,
                hard_limit_s=hard_limit_s,
                trace={name: text for name in FIELDS if isinstance(text := self.request.get(name), str)},
            )

    task = Execute()
    task.portal = portal
    app.register_task(task)


def _wait(portal: Portal, hint: Hint, worker: str) -> str:
    """The only edge between Celery's sync world and the tools' async one."""
    future = portal.start(perform, portal, hint, worker)
    while True:
        try:
            return future.result()
        except SoftTimeLimitExceeded:
            # An operator's own soft limit (Celery's `soft_time_limit`): the run is told, and still ends in order.
            run = portal.keeper.find(hint.task_id, hint.run)
            if run is not None:
                run.interrupt.request(Stop.WALL)
        except Exception:
            # The task stays queued, or its lease runs out; either way the sweeper sends it again.
            log.exception("A message could not be served")
            return "error"
        except BaseException:
            future.cancel()
            raise


def _forks(worker: Any) -> bool:
    return "prefork" in worker.pool_cls.__module__


def _upkeep(app: Celery, portal: Portal) -> type[bootsteps.StartStopStep]:
    class Upkeep(bootsteps.StartStopStep):
        """Starts and stops the sweeper and the pulse with the worker's main process."""

        requires = {"celery.worker.components:Timer"}  # noqa: RUF012 - Celery's own convention

        def __init__(self, parent: Any, **options: Any) -> None:
            super().__init__(parent, **options)
            self.sweeper = Sweeper(portal.settings, portal.dispatcher)
            self.pulse = Pulse(portal.settings, app, parent, app.amqp.queues.consume_from, portal)
            # Before the pool has forked its children, so that they count, too.
            self.metrics = metrics_port.serve(portal.settings, forks=_forks(parent), pulse=lambda: self.pulse.last)

        def start(self, parent: Any) -> None:
            if not _forks(parent):
                portal.lone_app = app_argument(sys.argv)
                exporting.begin(WORKER)
            self.sweeper.start()
            self.pulse.start()

        def stop(self, parent: Any) -> None:
            self.pulse.close()
            self.sweeper.close()
            if self.metrics is not None:
                self.metrics.close()
                self.metrics = None

        terminate = stop

    return Upkeep
