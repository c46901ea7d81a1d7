"""Sets up the OpenTelemetry SDK of a process that is ours to set up, from the standard OTEL_* variables."""

from __future__ import annotations

import atexit
import os
import threading
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, Final

from opentelemetry import trace

from mcptasks.errors import ConfigurationError

#: Any of these says that traces are to be sent by OTLP.
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
#: The exporter's name in entry points, by OTEL_EXPORTER_OTLP_PROTOCOL.
_OTLP: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
#: What the end of a process waits for its last spans.
_FLUSH_S: Final = 2.0


class Exporting:
    """The export of this process's spans, which begins once."""

    def __init__(self) -> None:
        self._provider: Any = None

    def begin(self, service: str) -> None:
        """Spans leave this process as OTEL_* says. Nothing happens where that names no exporter, or somebody was first.

        `service`: `service.name`, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES has one.

        Raises:
            ConfigurationError: the extra `otel` is not installed, or there is no exporter of that name.
        """
        names = _exporters()
        # Somebody's own set-up stands: opentelemetry-instrument's, or that of the user's module.
        if not names or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return
        if find_spec("opentelemetry.sdk") is None:
            raise ConfigurationError(
                "OTEL_* asks for traces, and the SDK is missing: pip install 'mcptasks[otel]', or set "
                "OTEL_TRACES_EXPORTER=none."
            )
        self._provider = _provider(names, service)
        trace.set_tracer_provider(self._provider)
        atexit.register(self.close)

    def close(self) -> None:
        """The spans that have ended have left, or two seconds have passed; later ones do not leave.

        For processes that end without `atexit`; the others need not call it.
        """
        if (provider := self._provider) is None:
            return
        self._provider = None
        # In a thread: an exporter whose collector is away goes on trying for longer than a process has to end.
        closing = threading.Thread(target=provider.shutdown, name="mcptasks-spans", daemon=True)
        closing.start()
        closing.join(_FLUSH_S)


#: Of this process.
exporting: Final = Exporting()


def _exporters() -> list[str]:
    """The names of the exporters that OTEL_* asks for."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    told = os.environ.get("OTEL_TRACES_EXPORTER", "")
    if not told and any(os.environ.get(name) for name in _ENDPOINTS):
        # The specification's default is otlp, always; here it takes an endpoint, so that nobody is surprised by a
        # process that tries to reach localhost:4318.
        told = "otlp"
    return [name for part in told.split(",") if (name := part.strip()) not in ("", "none")]


def _provider(names: list[str], service: str) -> Any:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415 - the extra `otel`
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    # Sampler, limits and the rest the SDK reads from OTEL_* by itself.
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: service}))
    # Its own hook at the interpreter's end may wait 30 seconds for a collector that is away.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for name in names:
        provider.add_span_processor(BatchSpanProcessor(_exporter(name)))
    return provider


def _exporter(name: str) -> Any:
    if name == "otlp":
        variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        protocol = next((value for variable in variables if (value := os.environ.get(variable))), "http/protobuf")
        name = _OTLP.get(protocol, protocol)
    found = tuple(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        raise ConfigurationError(
            f"OTEL_* asks for the trace exporter {name!r}, and no installed package has it. "
            "The extra mcptasks[otel] brings otlp (http/protobuf) and console."
        )
    return found[0].load()()
