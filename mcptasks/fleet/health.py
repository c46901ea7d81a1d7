"""The broker and the workers as an operator would look at them, through Celery's own remote control."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, cast

from celery import Celery
from kombu.connection import Connection
from kombu.pidbox import Mailbox

from mcptasks.dispatch import TASK_NAME
from mcptasks.fleet.app import make_app
from mcptasks.settings import Settings

#: Connecting to the broker, and collecting answers: a worker answers within milliseconds unless its machine is busy.
_CONNECT_S: Final = 1.0
_ANSWERS_S: Final = 1.0
#: For the transport's reads; above kombu's 1 s BRPOP.
_READ_S: Final = 1.5

#: What a broker's clients raise, by the names of the classes: there is one client per kind of broker.
_WORDS: Final = {
    "AuthenticationError": "refuses the user or password",
    "AccessRefused": "refuses the user or password",
    "NotAllowed": "refuses this user its virtual host",
    "gaierror": "has a host name that cannot be resolved",
    "ConnectionRefusedError": "refuses connections",
    "TimeoutError": "does not answer in time",
    "timeout": "does not answer in time",
    "SSLError": "does not agree on TLS",
    "InvalidResponse": "is something else than Redis or Valkey",
    "BusyLoadingError": "is loading its data after a restart",
    "ModuleNotFoundError": "needs a Python package that is not installed here",
    "KeyError": "has a URL whose scheme Celery does not know",
}

#: The options of `make_app` that safety or speed hang on, and those of Celery's that undo them.
_PROFILE: Final = (
    "accept_content",
    "task_serializer",
    "task_acks_late",
    "task_acks_on_failure_or_timeout",
    "task_reject_on_worker_lost",
    "task_ignore_result",
    "task_time_limit",
    "task_soft_time_limit",
    "task_always_eager",
    "worker_prefetch_multiplier",
    "worker_disable_prefetch",
    "worker_eta_task_limit",
    "worker_cancel_long_running_tasks_on_connection_loss",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker that answered."""

    name: str
    #: "prefork", "threads", "solo", ...
    pool: str
    slots: int
    #: None: it did not say in time.
    queues: frozenset[str] | None
    #: It has this library's Celery task; on a shared RabbitMQ other people's workers answer too.
    ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What the broker and the workers answered."""

    #: Why the broker cannot be asked, in a few words; "" when it can.
    trouble: str = ""
    workers: tuple[Worker, ...] = ()
    #: Node names that more than one worker answered to.
    shared_names: tuple[str, ...] = ()


class Rule(StrEnum):
    """What makes the broker deliver a message again that a living worker still works on."""

    NEVER = "never"
    VISIBILITY = "visibility_timeout"
    CONSUMER = "consumer_timeout"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Redelivery:
    """When the broker loses patience with a message that is not acknowledged."""

    rule: Rule
    after_ms: int = 0


def answering_workers(app: Celery, timeout_s: float = 1.0) -> list[str]:
    """Names of the workers that answered within the time; empty when none did.

    Raises:
        OSError: the broker cannot be reached.
    """
    replies = cast("list[dict[str, Any]]", app.control.ping(timeout=timeout_s))
    return sorted(name for reply in replies for name in reply)


def broker_urls(app: Celery) -> list[str]:
    """Where the app's broker is; several where it has spares."""
    urls = app.conf.broker_write_url
    return [url for one in ([urls] if isinstance(urls, str) else urls) for url in one.split(";")]


def broker_alone(settings: Settings) -> Survey:
    """Whether the settings' broker answers; no worker is asked. Raises nothing."""
    return _survey(make_app(settings), ask=False)


def survey(app: Celery) -> Survey:
    """What the app's broker and workers answer. Raises nothing. Takes about 2 s, more only where the broker freezes."""
    return _survey(app, ask=True)


def _survey(app: Celery, *, ask: bool) -> Survey:
    # Own limits on everything: the app's are made for workers, which have time.
    options = {} if _speaks_amqp(app) else {"socket_timeout": _READ_S, "socket_connect_timeout": _CONNECT_S}
    try:
        with app.connection_for_write(connect_timeout=_CONNECT_S, transport_options=options) as connection:
            # One attempt per address.
            connection.ensure_connection(max_retries=len(broker_urls(app)) - 1, interval_start=0, interval_step=0)
            return _workers(connection, app.conf.control_exchange) if ask else Survey()
    except Exception as exc:  # whatever the broker's client raises; its text may hold the URL
        return Survey(trouble=_in_words(exc))


def _in_words(exc: Exception) -> str:
    for cause in _causes(exc):
        if words := _WORDS.get(type(cause).__name__):
            return words
    return f"cannot be used ({type(exc).__name__})"


def _causes(exc: BaseException | None) -> Generator[BaseException]:
    while exc is not None:
        yield exc
        exc = exc.__cause__ or exc.__context__


def _workers(connection: Connection, namespace: str) -> Survey:
    mailbox: Any = Mailbox(namespace, type="fanout", accept=["json"], serializer="json")(connection)
    # Twice, because a busy machine may answer late, and "no worker" is what people are woken up for.
    replies = _broadcast(mailbox) or _broadcast(mailbox)
    names = [name for reply in replies for name in reply]
    if not names:
        return Survey()
    stats = _by_name(replies)
    queues = _by_name(mailbox.call(names, "active_queues", timeout=_ANSWERS_S))
    tasks = _by_name(mailbox.call(names, "registered", timeout=_ANSWERS_S))
    return Survey(
        workers=tuple(_worker(name, stats[name], queues.get(name), tasks.get(name)) for name in sorted(stats)),
        shared_names=tuple(sorted({name for name in names if names.count(name) > 1})),
    )


def _broadcast(mailbox: Any) -> list[dict[str, Any]]:
    return list(mailbox.multi_call("stats", timeout=_ANSWERS_S))


def _by_name(replies: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {name: answer for reply in replies for name, answer in reply.items()}


def _worker(name: str, stats: dict[str, Any], queues: Any, tasks: Any) -> Worker:
    pool = cast("dict[str, Any]", stats.get("pool") or {})
    module = str(pool.get("implementation", "")).partition(":")[0].rpartition(".")[2]
    return Worker(
        name=name,
        pool="threads" if module == "thread" else module or "unknown",
        slots=int(pool.get("max-concurrency") or 1),
        queues=None if queues is None else frozenset(str(queue["name"]) for queue in queues),
        # Celery puts a task's options behind its name. Who does not say in time gets the benefit of the doubt.
        ours=tasks is None or any(str(task).split()[0] == TASK_NAME for task in tasks),
    )


def redelivery(app: Celery) -> Redelivery:
    """What the app's broker does with a message that is not acknowledged for long."""
    options = app.conf.broker_transport_options
    if _speaks_amqp(app):
        # RabbitMQ's default; a client cannot read what the server is set to.
        return Redelivery(Rule.CONSUMER, 30 * 60_000)
    match _scheme(app).partition("+")[0]:
        case "redis" | "rediss" | "sentinel" if not options.get("ack_emulation", True):
            return Redelivery(Rule.NEVER)
        case "redis" | "rediss" | "sentinel":
            return Redelivery(Rule.VISIBILITY, round(options.get("visibility_timeout", 3600) * 1000))
        case "sqs":
            return Redelivery(Rule.VISIBILITY, round(options.get("visibility_timeout", 1800) * 1000))
        case _:
            return Redelivery(Rule.UNKNOWN)


def _speaks_amqp(app: Celery) -> bool:
    return _scheme(app) in ("amqp", "amqps", "pyamqp", "librabbitmq")


def _scheme(app: Celery) -> str:
    return broker_urls(app)[0].partition("://")[0]


def changed_options(app: Celery, settings: Settings) -> list[str]:
    """Names of the options of this library's Celery profile that the app sets otherwise."""
    ours = make_app(settings).conf
    return [name for name in _PROFILE if app.conf[name] != ours[name]]


def runs_only_json(app: Celery) -> bool:
    """Nobody who can write to the broker can run code in a worker."""
    return set(app.conf.accept_content) <= {"json", "application/json"}
