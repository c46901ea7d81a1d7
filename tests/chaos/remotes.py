"""The task servers that are tracked while processes are killed: each with its worker and a store of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis

from benchmarks import fastmcp_env
from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.cli.worker import worker_argv
from tests.chaos.herd import Member
from tests.fleet.system import MCPTASKS, ROOT, free_port

_FASTMCP_FILE: Final = str(Path(__file__).with_name("fastmcp_tools.py"))

#: What the remote's lost workers and messages take to be noticed.
_SHORT: Final = {
    "MCPTASKS_LEASE_MS": "3000",
    "MCPTASKS_RENEW_MS": "1000",
    "MCPTASKS_SWEEP_MS": "300",
    "MCPTASKS_RESEND_MS": "700",
    "MCPTASKS_POLL_MS": "1000",
    "MCPTASKS_TTL_MS": "7200000",
}


@dataclass(frozen=True)
class Remote:
    """A task server."""

    url: str
    #: The tool that takes `label` and `seconds`, and returns a text that begins with the label.
    tool: str
    server: Member
    worker: Member
    env: dict[str, str]
    #: The same key is the same task there: calls may be cut off.
    honours_key: bool
    store: redis.Redis
    #: Of the keys in its store, those there is one of per task.
    per_task: str
    #: What its tool has written; None: it writes nothing.
    effects: Path | None

    def tasks(self) -> int:
        """How many tasks were made there."""
        return sum(1 for _ in self.store.scan_iter(self.per_task, count=1_000))

    def made_for(self) -> dict[str, set[str]]:
        """By label, the tasks that ran for it."""
        found: dict[str, set[str]] = {}
        if self.effects is not None:
            for label, task_id in map(json.loads, self.effects.read_text().splitlines()):
                found.setdefault(label, set()).add(task_id)
        return found


def own(valkey: EmbeddedValkey, store: redis.Redis, folder: Path) -> Remote:
    """This project's server, with a tool that writes down its runs."""
    return _ours(valkey, store, folder / "effects.jsonl", "tests.chaos.remote_tools", "work")


def conformance(valkey: EmbeddedValkey, store: redis.Redis, folder: Path) -> Remote:
    """The server that the official suite is run against, as two processes on a store that outlives them."""
    return _ours(valkey, store, None, "tests.conformance.server", "slow_compute")


def fastmcp(valkey: EmbeddedValkey, store: redis.Redis, folder: Path) -> Remote:
    """FastMCP's tasks on Docket. It takes a key that it knows for a new call, so no call to it may be cut off."""
    fastmcp_env.ensure()
    port, effects = free_port(), folder / "effects.jsonl"
    env = {
        **_clean(),
        "CHAOS_EFFECTS": str(effects),
        "FASTMCP_DOCKET_URL": valkey.url,
        "FASTMCP_DOCKET_CONCURRENCY": "16",
        "FASTMCP_DOCKET_REDELIVERY_TIMEOUT": "PT5S",
        "FASTMCP_CHECK_FOR_UPDATES": "off",
    }
    work = [str(fastmcp_env.PYTHON), "-m", "fastmcp_tasks.worker_cli", "worker", _FASTMCP_FILE]
    return Remote(
        url=f"http://127.0.0.1:{port}/mcp",
        tool="work",
        server=Member("remote-server", [str(fastmcp_env.PYTHON), _FASTMCP_FILE, str(port)], r"Uvicorn running"),
        worker=Member("remote-worker", work, r"Starting worker"),
        env=env,
        honours_key=False,
        store=store,
        per_task="fastmcp:fastmcp:task:*:created_at",
        effects=effects,
    )


REMOTES: Final[dict[str, Callable[[EmbeddedValkey, redis.Redis, Path], Remote]]] = {
    "own": own,
    "conformance": conformance,
    "fastmcp": fastmcp,
}


def _ours(valkey: EmbeddedValkey, store: redis.Redis, effects: Path | None, module: str, tool: str) -> Remote:
    port = free_port()
    own: dict[str, Any] = {} if effects is None else {"CHAOS_EFFECTS": str(effects)}
    env = {**_clean(), **_SHORT, **own, "MCPTASKS_REDIS_URL": valkey.url, "MCPTASKS_PREFIX": "remote:"}
    work = worker_argv(f"{module}:celery", pool="threads", concurrency=16, name="remote", log_level="INFO")
    return Remote(
        url=f"http://127.0.0.1:{port}/mcp",
        tool=tool,
        server=Member("remote-server", [*MCPTASKS, "serve", f"{module}:mcp", "--port", str(port)], r"serving http"),
        worker=Member("remote-worker", [*work, "--without-mingle"], r"\sready\."),
        env=env,
        honours_key=True,
        store=store,
        per_task="remote:task:{*}",
        effects=effects,
    )


def _clean() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MCPTASKS_")}
    return {**clean, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def tracker(name: str) -> Member:
    """A worker that tracks."""
    argv = worker_argv("tests.fleet.tracking_app:celery", pool="solo", concurrency=1, name=name, log_level="INFO")
    return Member(name, [*argv, "--without-mingle"], r"\sready\.")


def submitter() -> Member:
    """The process that submits."""
    return Member("submitter", [sys.executable, "-m", "tests.chaos.tracking_submitter"], r"submitting")
