"""Serves this process's metrics to Prometheus, when the settings say so."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcptasks.settings import Settings
from mcptasks.store import scripts
from mcptasks.store.registry import WorkerPulse

if TYPE_CHECKING:
    from mcptasks.observe.shared_counts import SharedCounts

log: Final = logging.getLogger("mcptasks.metrics")


@dataclass
class MetricsPort:
    """A port that answers `GET /metrics`."""

    port: int
    _server: Any
    _thread: threading.Thread
    _metrics: Callable[[scripts.Ran], None]
    #: Where its forked children count, too.
    _shared: SharedCounts | None = None

    def close(self) -> None:
        """Nothing is counted or served any more."""
        scripts.observers.remove(self._metrics)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self._shared is not None:
            self._shared.close()


def serve(
    settings: Settings, *, forks: bool = False, pulse: Callable[[], WorkerPulse | None] | None = None
) -> MetricsPort | None:
    """What this process does is counted from now on, and served; None: the settings want none, or no port is free.

    A port that is taken is an error in the log, and nothing else: nobody's tasks wait because nobody watches them.

    Args:
        forks: so do children that are forked off later (Celery's prefork); they count together with this process.
        pulse: of a worker, what it last said of itself.
    """
    if not settings.metrics_port:
        return None
    # Only here: without metrics the package need not be there.
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415

    from mcptasks.observe.gauges import StoreGauges, WorkerGauges  # noqa: PLC0415
    from mcptasks.observe.metrics import Metrics  # noqa: PLC0415
    from mcptasks.observe.shared_counts import SharedCounts  # noqa: PLC0415

    shared = SharedCounts() if forks else None
    counted = CollectorRegistry()
    metrics = Metrics(counted, forks=forks)
    served = counted if shared is None else shared.registry()
    served.register(StoreGauges(settings))
    if pulse is not None:
        served.register(WorkerGauges(pulse))
    why: str | None = ""
    first, _, last = settings.metrics_port.partition("-")
    for port in range(int(first), int(last or first) + 1):
        try:
            server, thread = start_http_server(port, settings.metrics_host, served)
        except OSError as exc:
            why = exc.strerror
            continue
        scripts.observers.append(metrics)
        if forks:
            # Or a child that outlives this process would keep the port from the next one.
            os.register_at_fork(after_in_child=server.socket.close)
        log.info("Metrics are at http://%s:%d/metrics", settings.metrics_host, port)
        return MetricsPort(port, server, thread, metrics, shared)
    log.error(
        "No metrics: cannot listen on %s, port %s (%s). MCPTASKS_METRICS_PORT may be a range, such as 9400-9409, "
        "of which each process takes the first free port.",
        settings.metrics_host,
        settings.metrics_port,
        why,
    )
    if shared is not None:
        shared.close()
    return None


@contextmanager
def serving(settings: Settings) -> Generator[MetricsPort | None]:
    """As `serve`, for the time of the block."""
    port = serve(settings)
    try:
        yield port
    finally:
        if port is not None:
            port.close()
