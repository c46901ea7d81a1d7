"""One OpenTelemetry trace per task: from the client's call over every run to its end, whichever process has it.

The context of the call is stored with the call, so every run, also one that the sweeper or an answer brings about, is
part of the same trace. A message carries the context of whoever sent it, as Celery headers; a run that was woken links
to that, and a run after a park to the run that parked. Only W3C's two fields travel, no baggage.

This needs the API alone, which without an SDK does nothing. Names follow the conventions for messaging and for tools
(semconv `messaging`, `gen_ai`); the MCP SDK makes the spans of requests. No span has payloads, nor an exception's text.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import context, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mcptasks.model import Claim, Hint, label

#: The W3C fields, as keys of `_meta` (SEP-414) and as Celery headers.
FIELDS: Final = ("traceparent", "tracestate")
#: What W3C asks everybody to carry at least; a longer one is somebody's abuse, and would stand in every message.
_STATE_MAX: Final = 512

_tracer: Final = trace.get_tracer("mcptasks")
_w3c: Final = TraceContextTextMapPropagator()


def carried(meta: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The current context's W3C fields, for a message or the store; where there is none, what `meta` has that is valid.

    Empty: nobody traces.
    """
    carrier: dict[str, str] = {}
    _w3c.inject(carrier)
    if not carrier and meta and "traceparent" in meta:
        # The server's OTEL_PROPAGATORS may leave out the one that MCP uses.
        given = {name: meta[name] for name in FIELDS if isinstance(meta.get(name), str)}
        _w3c.inject(carrier, _w3c.extract(given))
    if len(carrier.get("tracestate", "")) > _STATE_MAX:
        del carrier["tracestate"]
    return carrier


def marked() -> str:
    """The traceparent of the current span, for a later run to link to; empty where nothing is recorded."""
    if not trace.get_current_span().is_recording():
        return ""
    return carried().get("traceparent", "")


@contextmanager
def continuing(fields: Mapping[str, str]) -> Generator[None]:
    """Inside the block the current context is the one that another process carried over."""
    token = context.attach(_w3c.extract(fields))
    try:
        yield
    finally:
        context.detach(token)


@contextmanager
def sending(tool: str, queue: str) -> Generator[None]:
    """Inside the block the task is stored together with its message, or moved on by it; what is carried names this."""
    with _doing(f"send {queue}", SpanKind.PRODUCER, _messaging("send", queue) | {"gen_ai.tool.name": tool}):
        yield


def began_ns() -> int:
    """Now, for the start of spans that are made once it is known to which trace they belong."""
    return time.time_ns()


@contextmanager
def processing(hint: Hint, claim: Claim, start_ns: int) -> Generator[Span]:
    """Inside the block the claimed run of this message is done; `start_ns` is when the claim was begun."""
    own = claim.submission.trace if claim.submission is not None and claim.submission.trace else hint.trace
    if not own:
        # Who did not trace the call does not trace the run; and a lone root per run is no trace of anything.
        yield trace.INVALID_SPAN
        return
    if _off():
        # The log still names the trace that others record.
        with continuing(own):
            yield trace.INVALID_SPAN
        return
    others = [dict(hint.trace), {"traceparent": claim.journal.parked}]
    links = [Link(other) for fields in others if fields != own and (other := _context_of(fields)).is_valid]
    record = claim.record
    with _tracer.start_as_current_span(
        f"process {record.queue}",
        context=_w3c.extract(own),
        kind=SpanKind.CONSUMER,
        attributes=_messaging("process", record.queue)
        | {
            "messaging.message.id": hint.message_id,
            "mcptasks.task.id": label(claim.task_id),
            "mcptasks.run": claim.token,
            "mcptasks.attempt": record.attempt,
        },
        links=links,
        start_time=start_ns,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        _tracer.start_span("claim", start_time=start_ns).end()
        yield span


@contextmanager
def executing(tool: str) -> Generator[None]:
    """Inside the block the tool runs; its own spans are below this one."""
    if not trace.get_current_span().is_recording():
        yield
        return
    with _tracer.start_as_current_span(
        f"execute_tool {tool}",
        attributes={"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool},
        record_exception=False,
        set_status_on_exception=False,
    ):
        yield


@contextmanager
def transition(name: str) -> Generator[None]:
    """Inside the block the store makes this transition."""
    if not trace.get_current_span().is_recording():
        yield
        return
    with _tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False):
        yield


@contextmanager
def operating(what: str, task_id: str) -> Generator[None]:
    """Inside the block an operator does this, to a task where one is named. A trace of its own, not the caller's."""
    with _doing(f"operator {what}", SpanKind.INTERNAL, {"mcptasks.task.id": label(task_id)} if task_id else {}):
        yield


@contextmanager
def _doing(name: str, kind: SpanKind, attributes: Mapping[str, Any]) -> Generator[None]:
    if _off():
        yield
        return
    with _tracer.start_as_current_span(
        name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield
        except Exception as exc:
            _failed(span, type(exc).__name__)
            raise


def ended(span: Span, word: str, error_type: str | None = None) -> None:
    """The span says what it came to; with an `error_type` it counts as an error."""
    span.set_attribute("mcptasks.outcome", word)
    if error_type is not None:
        _failed(span, error_type)


def _off() -> bool:
    """Nobody has set up an SDK here."""
    return isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def _failed(span: Span, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


def _messaging(operation: str, queue: str) -> dict[str, Any]:
    return {
        "messaging.system": "celery",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
    }


def _context_of(fields: Mapping[str, str]) -> trace.SpanContext:
    return trace.get_current_span(_w3c.extract(fields)).get_span_context()
