"""The system under test as real processes on free loopback ports: store, server processes, worker, load balancer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from mcptasks.cli.embedded import EmbeddedValkey
from tests.conformance.round_robin import round_robin
from tests.support.raw_client import TASKS, VERSION
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
TARGET: Final = "tests.conformance.server:mcp"

#: Three Pythons that import the SDK and Celery at once took 51 s here on two cores under a load of 11.
START_TIMEOUT_S: Final = 180
#: How long a process may take for a clean stop before that counts as a failure.
STOP_TIMEOUT_S: Final = 30
#: The console script by its module, so that it also runs in a checkout that nobody installed.
MCPTASKS: Final = (sys.executable, "-m", "mcptasks.cli.main")


@dataclass
class System:
    """A running system. `served` counts the requests each server process got, behind a balancer only."""

    url: str
    served: list[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class _Started:
    command: str
    process: psutil.Popen
    log: Path

    @property
    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-40:]
        return "\n".join([f"--- the end of {self.log.name}", *lines])


@contextmanager
def one_server(mode: str, folder: Path) -> Generator[System]:
    """`mcptasks dev` alone: its own embedded Valkey in `folder`, its own worker, one server."""
    port = free_port()
    with _process("dev", TARGET, "--port", str(port), mode=mode, folder=folder) as dev:
        system = System(f"http://127.0.0.1:{port}/mcp")
        _wait_until_it_works(system.url, dev)
        wait_until(lambda: system.url in dev.log.read_text(), description="`mcptasks dev` says where it serves")
        yield system


@contextmanager
def two_servers(mode: str, folder: Path) -> Generator[System]:
    """Two `mcptasks serve` behind a round robin, one `mcptasks worker`, all on one embedded Valkey."""
    ports = [free_port(), free_port()]
    with ExitStack() as stack:
        valkey = stack.enter_context(EmbeddedValkey(folder / "valkey"))
        more = {"MCPTASKS_REDIS_URL": valkey.url}
        parts = [
            stack.enter_context(_process("serve", TARGET, "--port", str(port), mode=mode, folder=folder, more=more))
            for port in ports
        ]
        parts.append(stack.enter_context(_process("worker", TARGET, mode=mode, folder=folder, more=more)))
        for port in ports:
            _wait_until_it_works(f"http://127.0.0.1:{port}/mcp", *parts)
        balancer = stack.enter_context(round_robin(ports))
        yield System(f"http://127.0.0.1:{balancer.port}/mcp", balancer.served)


def free_port() -> int:
    """A loopback port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _process(
    command: str, *args: str, mode: str, folder: Path, more: dict[str, str] | None = None
) -> Generator[_Started]:
    """`mcptasks command args` runs in `folder`, its output goes to a file there."""
    log = folder / f"{command}-{len(list(folder.glob('*.log')))}.log"
    # A developer's own MCPTASKS_* must not reach the system under test; `dev` would use their store.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MCPTASKS_")}
    env |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "MCPTASKS_CONFORMANCE_MODE": mode, **(more or {})}
    with log.open("wb") as out:
        process = psutil.Popen(
            [*MCPTASKS, command, *args], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
        started = _Started(command, process, log)
        try:
            yield started
        finally:
            _stop(started)


def _stop(started: _Started) -> None:
    family = [started.process]
    if started.process.is_running():
        family += started.process.children(recursive=True)
        started.process.terminate()
    _, alive = psutil.wait_procs(family, timeout=STOP_TIMEOUT_S)
    for survivor in alive:
        survivor.kill()
    # A killed child of ours stays a zombie until it is waited for.
    psutil.wait_procs(alive, timeout=STOP_TIMEOUT_S)
    if alive:
        raise AssertionError(
            f"`mcptasks {started.command}` left {len(alive)} processes after SIGTERM\n{started.last_words}"
        )


def _wait_until_it_works(url: str, *parts: _Started) -> None:
    """A task has been made and finished through `url`: the server serves and a worker works."""
    task: dict[str, Any] = {}

    def finished() -> bool:
        for part in parts:
            assert part.process.poll() is None, f"`mcptasks {part.command}` ended by itself"
        try:
            if not task:
                task.update(call(url, "tools/call", name="slow_compute", arguments={"seconds": 0, "label": "ready?"}))
            return call(url, "tasks/get", taskId=task["taskId"])["status"] == "completed"
        except (urllib.error.URLError, ConnectionError):
            return False

    try:
        wait_until(finished, description=f"{url} makes and finishes a task", within_s=START_TIMEOUT_S)
    except AssertionError as problem:
        raise AssertionError("\n".join([str(problem), *(part.last_words for part in parts)])) from None


def call(url: str, method: str, **params: Any) -> dict[str, Any]:
    """The `result` of one request by a client that declares the Tasks extension.

    Raises:
        urllib.error.URLError: nobody listens there yet.
        AssertionError: the server answered with an error.
    """
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "conformance-fixture", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}},
    }
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method,
        "Mcp-Name": str(params.get("taskId") or params["name"]),
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    request = urllib.request.Request(url, json.dumps(message).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            answer = _answer(response.read().decode())
    except urllib.error.HTTPError as refused:
        with refused:
            raise AssertionError(f"{method}: HTTP {refused.code}: {refused.read().decode()}") from None
    if "result" not in answer:
        raise AssertionError(f"{method}: {answer}")
    return answer["result"]


def _answer(body: str) -> dict[str, Any]:
    """The JSON-RPC response in a body that is either one JSON value or an event stream."""
    for line in body.splitlines():
        message = json.loads(line.removeprefix("data:")) if line.startswith(("data:", "{")) else {}
        if "result" in message or "error" in message:
            return message
    raise AssertionError(f"no JSON-RPC response in {body!r}")
