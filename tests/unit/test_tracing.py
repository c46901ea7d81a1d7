"""What of a trace travels with a task: W3C's two fields, valid ones, of a bounded length."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from mcptasks.observe import tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def span(**state: str) -> NonRecordingSpan:
    """A span of somebody else."""
    flags = TraceFlags(TraceFlags.SAMPLED)
    return NonRecordingSpan(
        SpanContext(0xA, 0xB, is_remote=True, trace_flags=flags, trace_state=TraceState(list(state.items())))
    )


def test_without_a_trace_nothing_travels() -> None:
    assert tracing.carried() == {} == tracing.carried({"progressToken": 1})
    assert tracing.marked() == ""


def test_the_current_span_travels_and_not_what_the_client_sent() -> None:
    with trace.use_span(span(vendor="x")):
        assert tracing.carried({"traceparent": PARENT}) == {
            "traceparent": "00-0000000000000000000000000000000a-000000000000000b-01",
            "tracestate": "vendor=x",
        }


def test_what_the_client_sent_travels_where_the_server_has_no_span() -> None:
    """With OTEL_PROPAGATORS=b3, for instance, the SDK reads no traceparent."""
    assert tracing.carried({"traceparent": PARENT, "tracestate": "a=b", "x": 1}) == {
        "traceparent": PARENT,
        "tracestate": "a=b",
    }


@pytest.mark.parametrize("given", ["", "x" * 100_000, "00-zz-1-01", 17, None, f"{PARENT}\nx-evil: 1"])
def test_what_is_no_traceparent_does_not_travel(given: Any) -> None:
    """It would stand in every message and every record, whatever a client puts there."""
    assert tracing.carried({"traceparent": given}) == {}


def test_baggage_and_long_states_stay_where_they_are() -> None:
    """Both are what a caller says, and a message carries no payloads."""
    token = context.attach(baggage.set_baggage("customer", "Ann"))
    try:
        with trace.use_span(span(**{f"v{n}": "x" * 100 for n in range(10)})):
            assert tracing.carried().keys() == {"traceparent"}
    finally:
        context.detach(token)


def test_a_context_that_came_from_elsewhere_is_current_inside_the_block_only() -> None:
    with tracing.continuing({"traceparent": PARENT}):
        assert tracing.carried() == {"traceparent": PARENT}
        assert tracing.marked() == "", "nothing here records it"
    assert tracing.carried() == {}
