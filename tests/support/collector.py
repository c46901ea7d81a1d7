"""An OTLP collector on loopback: takes the spans of real exporters in real processes, and prints their trees."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Seen:
    """One span that arrived."""

    name: str
    service: str
    #: The process that it is of.
    pid: int
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    attributes: dict[str, Any]
    start_ns: int
    error: bool


class Collector:
    """What arrived so far. Any thread may ask."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Seen] = []
        #: Everything, as it came.
        self.bodies: list[bytes] = []

    def take(self, body: bytes) -> None:
        """One export's spans have arrived."""
        self.bodies.append(body)
        request: Any = ExportTraceServiceRequest()
        request.ParseFromString(body)
        for resource in request.resource_spans:
            whose = _attributes(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans.extend(_seen(span, whose) for span in scope.spans)

    def tree(self, trace_id: str, *, shown: Callable[[Seen], bool] = lambda _: True) -> str:
        """The trace, a line per span, children below their parents in the order of their start; links by name."""
        spans = sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.start_ns)
        names = {span.span_id: span.name for span in spans}
        lines: list[str] = []

        def add(parent: str, depth: int) -> None:
            for span in spans:
                if (span.parent_id if span.parent_id in names else "") == parent and shown(span):
                    links = "".join(f" ~> {names.get(link, 'another trace')}" for link in span.links)
                    lines.append(f"{'  ' * depth}{span.name} [{span.service}]{links}")
                    add(span.span_id, depth + 1)

        add("", 0)
        return "\n".join(lines)


def _seen(span: Any, whose: dict[str, Any]) -> Seen:
    return Seen(
        name=span.name,
        service=str(whose.get("service.name")),
        pid=int(whose.get("process.pid", 0)),
        kind=span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        links=tuple(link.span_id.hex() for link in span.links),
        attributes=_attributes(span.attributes),
        start_ns=span.start_time_unix_nano,
        error=span.status.code == span.status.STATUS_CODE_ERROR,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, cast("str", pair.value.WhichOneof("value"))) for pair in pairs}


@contextmanager
def collecting() -> Generator[Collector]:
    """A collector that takes OTLP over HTTP at its `url` inside the block."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
