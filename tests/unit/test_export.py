"""When a process of ours exports its spans, and what it says when it cannot."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry import trace

from mcptasks.errors import ConfigurationError
from mcptasks.observe.export import Exporting

VARIABLES = (
    *("OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"),
    *("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "console"},
    ],
    ids=["nothing", "none", "disabled"],
)
def test_without_an_exporter_nothing_is_set_up(monkeypatch: pytest.MonkeyPatch, told: dict[str, str]) -> None:
    """A process that nobody told to trace must not try to reach a collector."""
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    Exporting().begin("test")
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "zipkin"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "otlp_proto_grpc",
        ),
    ],
)
def test_an_exporter_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, str], wanted: str
) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=f"'{wanted}'.*no installed package"):
        Exporting().begin("test")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setattr("mcptasks.observe.export.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'mcptasks\[otel\]'"):
        Exporting().begin("test")


def test_a_collector_that_is_away_does_not_hold_a_process_at_its_end() -> None:
    """In a process of its own, because a provider is set once per process."""
    code = (
        "from mcptasks.observe.export import exporting\n"
        "from opentelemetry import trace\n"
        "exporting.begin('x')\n"
        "trace.get_tracer('t').start_span('lost').end()\n"
        "assert trace.get_tracer_provider().resource.attributes['service.name'] == 'x'\n"
    )
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "60"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr.decode()
