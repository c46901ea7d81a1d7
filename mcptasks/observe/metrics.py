"""Prometheus metrics: what this process's calls of the store came to, counted where each is answered.

Nothing is imported, kept or served while `MCPTASKS_METRICS_PORT` is empty. Every number is of one process and only
grows; sum over processes. Labels are tools, transitions and the like, never owners, ids or texts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from mcptasks.store.scripts import Ran

#: Seconds. From the shortest tool to one that waited for a person over a weekend.
_LIFE: Final = (0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400, 259_200)
_WAIT: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 1_800)
_STORE: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

#: Tools that are told apart; those beyond count as "other". A tool's name comes with calls of other people.
TOOLS_MAX: Final = 200
OTHER: Final = "other"


class Metrics:
    """Hears of every call of a script in this process, and counts."""

    def __init__(self, registry: CollectorRegistry, *, forks: bool = False) -> None:
        """`forks`: children that are forked off this process go on counting."""
        self._tools: set[str] = set()
        # A child that is forked while another thread counts would have the metrics' locks held for ever.
        self._guard = threading.Lock()
        if forks:
            release = self._guard.release
            os.register_at_fork(before=self._guard.acquire, after_in_parent=release, after_in_child=release)

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"mcptasks_{name}", about, labels, registry=registry)

        def histogram(name: str, about: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"mcptasks_{name}", about, labels, buckets=buckets, registry=registry)

        self._transitions = counter(
            "transitions", "Calls of the store's scripts, by name and answer.", "transition", "answer"
        )
        self._store = histogram("store_seconds", "What a call of the store took.", _STORE, "transition")
        self._store_errors = counter("store_errors", "Calls that the store did not answer.", "transition")
        self._created = counter("created", "Tasks that were accepted.", "tool")
        self._refused = counter("refused", "Calls that were not accepted, by what stood against it.", "tool", "why")
        self._claims = counter(
            "claims", "Runs that began; attempt is `first`, `again` or `resumed`.", "tool", "attempt"
        )
        self._queue_wait = histogram(
            "queue_wait_seconds", "From a task's creation to the beginning of its first run.", _WAIT, "tool"
        )
        self._ended = counter("ended", "Tasks that ended.", "tool", "status", "reason")
        self._life = histogram(
            "duration_seconds", "From a task's creation to its end, people's time included.", _LIFE, "tool", "status"
        )
        self._lost = counter("leases_lost", "Runs whose worker was taken for dead, and that run again.", "tool")
        self._tracked = counter("tracked_ended", "Tracked remote tasks that ended.", "server", "status", "reason")
        self._by_name: Mapping[str, Callable[[Ran], None]] = {
            "create": self._on_create,
            "claim": self._on_claim,
            "reap": self._on_reap,
        }

    def __call__(self, ran: Ran) -> None:
        """The call is counted."""
        with self._guard:
            self._store.labels(ran.name).observe(ran.seconds)
            if not ran.reply:
                self._store_errors.labels(ran.name).inc()
                return
            self._transitions.labels(ran.name, ran.reply[0].lower()).inc()
            if (more := self._by_name.get(ran.name)) is not None:
                more(ran)
            if ran.ended is not None:
                self._on_end(ran, *ran.ended)

    def _on_create(self, ran: Ran) -> None:
        tool = self._tool(ran.args["tool"])
        match ran.reply:
            case ["CREATED", *_]:
                self._created.labels(tool).inc()
            case ["CLOSED", *_]:
                self._refused.labels(tool, "closed").inc()
            case ["FULL", what, *_]:
                self._refused.labels(tool, f"{what}_max").inc()
            case _:
                pass

    def _on_claim(self, ran: Ran) -> None:
        if ran.reply[0] != "CLAIMED":
            return
        fields = dict(zip(*[iter(ran.reply[2])] * 2, strict=True))
        tool = self._tool(fields["tool"])
        if fields["token"] == "1":
            self._queue_wait.labels(tool).observe((int(fields["started"]) - int(fields["created"])) / 1000)
        first = "first" if fields["token"] == "1" else "resumed"
        self._claims.labels(tool, first if fields["attempt"] == "1" else "again").inc()

    def _on_reap(self, ran: Ran) -> None:
        if ran.reply[0] == "LOST":
            self._lost.labels(self._tool(ran.reply[2])).inc()

    def _on_end(self, ran: Ran, of: str, status: str, reason: str, age_ms: str) -> None:
        if ran.name.startswith("track."):  # where a server stands in the place of a tool
            self._tracked.labels(of, status, reason).inc()
            return
        tool = self._tool(of)
        self._ended.labels(tool, status, reason).inc()
        self._life.labels(tool, status).observe(int(age_ms) / 1000)

    def _tool(self, name: str) -> str:
        if name not in self._tools:
            if len(self._tools) >= TOOLS_MAX:
                return OTHER
            self._tools.add(name)
        return name
