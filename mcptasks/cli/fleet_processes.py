"""A whole fleet as child processes of one command: what `dev` runs until Ctrl-C and `demo` for the length of a tour."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final, cast
from urllib.parse import urlsplit

import typer

from mcptasks.cli.processes import Child, Processes
from mcptasks.cli.serve import bound
from mcptasks.cli.shared_store import SharedValkey
from mcptasks.cli.store_check import require_store
from mcptasks.cli.target import celery_target, load_target
from mcptasks.cli.worker import worker_argv
from mcptasks.errors import ConfigurationError, MCPTasksError, StoreUnavailable
from mcptasks.fleet.app import App
from mcptasks.fleet.health import answering_workers

HOST: Final = "127.0.0.1"
#: Runs may finish this long after Ctrl-C; what is not done then is done after the next start, the store has it.
STOP_GRACE_MS: Final = 5_000
#: The runs' share of it; in the rest they are stopped and given back, and the next start continues them at once.
_RUN_GRACE_MS: Final = 2_000
#: A cold start of Python with Celery takes seconds on a busy machine.
READY_WITHIN_MS: Final = 60_000
#: How long a worker may take to say what it does. All that live answer at once, so this is only spent on trouble.
ANSWER_S: Final = 10.0


class ChildDied(MCPTasksError):
    """A part of the development fleet ended by itself, or does not answer."""


def on_store(stack: ExitStack, data: Path, target: str, log: IO[str] | None = None) -> Processes:
    """MCPTASKS_REDIS_URL names a store that answers; what is returned runs the target's processes on it.

    Both end with the stack. What the processes say goes to `log`, None: to stderr.

    Raises:
        ConfigurationError: there can be no embedded Valkey in `data`, or it is another target's.
        StoreUnavailable: the store does not answer, or did not start.
    """
    os.environ.setdefault("MCPTASKS_ARTIFACTS_URL", str((data / "artifacts").absolute()))
    if "MCPTASKS_REDIS_URL" in os.environ:
        require_store()
        return stack.enter_context(Processes(grace_ms=STOP_GRACE_MS, log=log))
    store = stack.enter_context(SharedValkey(data / "valkey", target))
    os.environ["MCPTASKS_REDIS_URL"] = store.url
    # The store outlives the processes also if this one is killed: what they give back must find it.
    children = stack.enter_context(Processes(grace_ms=STOP_GRACE_MS, log=log, held=[store.fileno()]))
    store.watch(lambda: children.fail(StoreUnavailable(f"The embedded Valkey has ended; its log is {store.log}")))
    return children


class DevFleet:
    """The child processes that serve one TARGET on the store of `on_store`."""

    def __init__(self, children: Processes, target: str, workers: int) -> None:
        # Imported only now: a server reads its settings when its module is imported.
        load_target(target)
        self._children = children
        self._target = target
        self._app = celery_target(target)
        self._celery = cast("App", load_target(self._app))
        self._wanted = workers
        #: By name, "worker1" and so on; the part before the "@" of the name that Celery knows them by.
        self.workers: dict[str, Child] = {}

    def start_workers(self, *, pool: str, concurrency: int, run_grace_ms: int = _RUN_GRACE_MS) -> None:
        """The workers are starting. Told to end, they give their runs `run_grace_ms` before they give them back."""
        env = {"MCPTASKS_SHUTDOWN_GRACE_MS": str(run_grace_ms), **os.environ}
        for number in range(1, self._wanted + 1):
            name = f"worker{number}"
            # With our pid, for others may run the same fleet on the same store.
            node = f"{name}@%h-{os.getpid()}"
            argv = worker_argv(self._app, pool=pool, concurrency=concurrency, name=node, log_level="INFO")
            # What mingle tells the workers of each other is nothing to us, and it takes the start a second longer.
            self.workers[name] = self._children.start(name, [*argv, "--without-mingle"], env=env)

    def start_flower(self) -> None:
        """Flower is starting; its address is on stderr, with a password of today unless FLOWER_BASIC_AUTH names one.

        Unless FLOWER_READ_ONLY says false it only shows: what it can do to a task, the store knows nothing of.
        """
        if find_spec("flower") is None:
            raise ConfigurationError("Flower is not installed: pip install 'mcptasks[flower]'")
        with bound(HOST, 0) as free:
            port: int = free.getsockname()[1]
        given = os.environ.get("FLOWER_BASIC_AUTH")
        login = given or f"mcptasks:{secrets.token_urlsafe(9)}"
        # By the environment: what stands on a command line is everybody's to read.
        env = {"FLOWER_READ_ONLY": "true", **os.environ, "FLOWER_BASIC_AUTH": login}
        flower = ["flower", f"--address={HOST}", f"--port={port}"]
        self._children.start("flower", [sys.executable, "-m", "celery", "-A", self._app, *flower], env=env)
        who = "FLOWER_BASIC_AUTH says" if given else login
        typer.echo(f"mcptasks dev: Flower on http://{HOST}:{port}, log in as {who}", err=True)

    def start_console(self) -> None:
        """The console is starting; its address, and its token of today where the operator has none, are on stderr."""
        with bound(HOST, 0) as free:
            port: int = free.getsockname()[1]
        token = os.environ.get("MCPTASKS_CONSOLE_TOKEN", "")
        env = {**os.environ, "MCPTASKS_CONSOLE_TOKEN": token or secrets.token_urlsafe(12)}
        command = ["console", "--port", str(port), "--log-level", "warning"]
        self._children.start("console", [sys.executable, "-m", "mcptasks.cli.main", *command], env=env)
        login = "" if token else f", log in with the token {env['MCPTASKS_CONSOLE_TOKEN']}"
        typer.echo(f"mcptasks dev: console on http://{HOST}:{port}{login}", err=True)

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
        deadline = time.monotonic() + READY_WITHIN_MS / 1000
        address = urlsplit(url)
        while not (_listens(HOST, address.port or 0) and len(answering_workers(self._celery, 0.3)) >= self._wanted):
            self._fail_if_one_died(100)
            if time.monotonic() > deadline:
                raise ChildDied(f"The fleet of {self._target} was not ready within {READY_WITHIN_MS // 1000} s")

    def watch(self) -> None:
        """Returns never; a child that ends by itself is an error.

        Raises:
            ChildDied: one did.
            Exception: something else ended that the fleet cannot do without, or is there for.
        """
        while True:
            self._fail_if_one_died(None)

    def busy(self) -> int:
        """How many runs the living workers have in hand, by Celery's own account, not the store's.

        Raises:
            ChildDied: not all of them answered within ten seconds.
        """
        living = [name for name, child in self.workers.items() if child.returncode is None]
        inspector = self._celery.control.inspect(timeout=ANSWER_S, limit=len(living))
        replies = cast("dict[str, list[Any]]", inspector.active() or {})
        if len(replies) < len(living):
            raise ChildDied(f"Only {len(replies)} of {len(living)} workers said within {ANSWER_S:g} s what they do")
        return sum(len(runs) for runs in replies.values())

    def _fail_if_one_died(self, wait_ms: int | None) -> None:
        dead = self._children.wait(wait_ms)
        if dead is not None:
            raise ChildDied(f"{dead.name} {dead.fate}; its last words are {self._children.output}")


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.3)
        return probe.connect_ex((host, port)) == 0
