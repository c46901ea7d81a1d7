"""`mcptasks dev TARGET`: store, workers and server of one MCP server, in one command, gone with it."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final, cast
from urllib.parse import urlsplit

import typer

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.cli.processes import Processes, interrupt_on_termination
from mcptasks.cli.serve import Target, bound
from mcptasks.cli.store_check import require_store
from mcptasks.cli.target import celery_target, load_target
from mcptasks.cli.worker import worker_argv
from mcptasks.errors import ConfigurationError, MCPTasksError
from mcptasks.fleet.app import App
from mcptasks.fleet.health import answering_workers

HOST: Final = "127.0.0.1"
#: Runs may finish this long after Ctrl-C; what is not done then is done after the next start, the store has it.
STOP_GRACE_MS: Final = 5_000
#: A cold start of Python with Celery takes seconds on a busy machine.
READY_WITHIN_MS: Final = 60_000


class ChildDied(MCPTasksError):
    """A part of the development fleet ended by itself."""


def dev(
    target: Target,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the MCP server; 0 takes a free one.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    pool: Annotated[str, typer.Option(help="Pool of the workers: threads or prefork.")] = "threads",
    concurrency: Annotated[int, typer.Option(min=0, help="Runs at a time per worker; 0: the pool's default.")] = 0,
    flower: Annotated[bool, typer.Option("--flower", help="Also Flower, on a free port.")] = False,
    data: Annotated[Path, typer.Option(help="Folder of the embedded Valkey's data.")] = Path(".mcptasks"),
) -> None:
    """Run all TARGET needs until Ctrl-C: an embedded Valkey (unless MCPTASKS_REDIS_URL is set), workers, server."""
    with interrupt_on_termination(), ExitStack() as stack:
        # Held until the server takes it: a taken port is told now, not after everything else has started.
        listener = bound(HOST, port)
        stack.callback(listener.close)
        try:
            _use_store(stack, data)
            fleet = _Fleet(stack.enter_context(Processes(grace_ms=STOP_GRACE_MS)), target, workers)
            fleet.start_workers(pool=pool, concurrency=concurrency)
            if flower:
                fleet.start_flower()
            url = fleet.start_server(listener)
            fleet.await_ready(url)
            print(f"mcptasks dev: serving {url}", flush=True)
            fleet.watch()
        except KeyboardInterrupt:
            typer.echo("mcptasks dev: stopping", err=True)


def _use_store(stack: ExitStack, data: Path) -> None:
    """MCPTASKS_REDIS_URL names a store that answers, for this process and its children."""
    if "MCPTASKS_REDIS_URL" in os.environ:
        require_store()
        return
    store = stack.enter_context(EmbeddedValkey(data / "valkey"))
    os.environ["MCPTASKS_REDIS_URL"] = store.url


class _Fleet:
    """The child processes of one `dev`."""

    def __init__(self, children: Processes, target: str, workers: int) -> None:
        # Imported only now: a server reads its settings when its module is imported.
        load_target(target)
        self._children = children
        self._target = target
        self._app = celery_target(target)
        self._workers = workers

    def start_workers(self, *, pool: str, concurrency: int) -> None:
        """The workers are starting."""
        for number in range(1, self._workers + 1):
            name = f"worker{number}@%h"
            argv = worker_argv(self._app, pool=pool, concurrency=concurrency, name=name, log_level="INFO")
            self._children.start(f"worker{number}", argv)

    def start_flower(self) -> None:
        """Flower is starting; its address and its password of today are on stderr."""
        if find_spec("flower") is None:
            raise ConfigurationError("Flower is not installed: pip install 'mcptasks[flower]'")
        with bound(HOST, 0) as free:
            port: int = free.getsockname()[1]
        login = f"mcptasks:{secrets.token_urlsafe(9)}"
        flower = ["flower", f"--address={HOST}", f"--port={port}", f"--basic-auth={login}"]
        self._children.start("flower", [sys.executable, "-m", "celery", "-A", self._app, *flower])
        typer.echo(f"mcptasks dev: Flower on http://{HOST}:{port}, log in as {login}", err=True)

    def start_server(self, listener: socket.socket) -> str:
        """The server is starting on the listener's port; returns its URL."""
        port: int = listener.getsockname()[1]
        listener.close()
        serve = ["serve", self._target, "--port", str(port), "--log-level", "warning"]
        self._children.start("server", [sys.executable, "-m", "mcptasks.cli.main", *serve])
        return f"http://{HOST}:{port}/mcp"

    def await_ready(self, url: str) -> None:
        """The server takes connections and every worker answers.

        Raises:
            ChildDied: one of them ended instead, or it took longer than a minute.
        """
        app = cast("App", load_target(self._app))
        deadline = time.monotonic() + READY_WITHIN_MS / 1000
        address = urlsplit(url)
        while not (_listens(HOST, address.port or 0) and len(answering_workers(app, 0.3)) >= self._workers):
            self._fail_if_one_died(100)
            if time.monotonic() > deadline:
                raise ChildDied(f"The fleet of {self._target} was not ready within {READY_WITHIN_MS // 1000} s")

    def watch(self) -> None:
        """Returns never; a child that ends by itself is an error.

        Raises:
            ChildDied: one did.
        """
        while True:
            self._fail_if_one_died(None)

    def _fail_if_one_died(self, wait_ms: int | None) -> None:
        dead = self._children.wait(wait_ms)
        if dead is not None:
            raise ChildDied(f"{dead.name} {dead.fate}; its last words are above")


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.3)
        return probe.connect_ex((host, port)) == 0
