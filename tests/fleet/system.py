"""A fleet of real processes: a Valkey of its own, MCP servers, Celery workers, and what became of them."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, cast

import psutil
import redis
from mcp.client import ClientRequestContext
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, ErrorData, TextContent

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.cli.spawn import spawn
from mcptasks.cli.worker import worker_argv
from mcptasks.client import Connection, TaskHandle, TasksClient, connect
from mcptasks.model import Record
from mcptasks.settings import Settings
from mcptasks.store.keys import Keys
from mcptasks.store.records import read_record, with_payload
from mcptasks.store.seal import Seal
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
TARGET: Final = "tests.fleet.tools:mcp"
CELERY: Final = "tests.fleet.tools:celery"
MCPTASKS: Final = (sys.executable, "-m", "mcptasks.cli.main")

LEASE_MS: Final = 2_000
SWEEP_MS: Final = 200
RESEND_MS: Final = 500
#: Everything that waits is short, so that a recovery takes about a second.
SHORT: Final = {
    "MCPTASKS_LEASE_MS": str(LEASE_MS),
    "MCPTASKS_RENEW_MS": "500",
    "MCPTASKS_SWEEP_MS": str(SWEEP_MS),
    "MCPTASKS_RESEND_MS": str(RESEND_MS),
    "MCPTASKS_POLL_MS": "100",
    "MCPTASKS_POLL_PARKED_MS": "100",
    "MCPTASKS_TTL_MS": "600000",
    "MCPTASKS_HEADERS": "x-team",
}

#: A cold Python with the SDK and Celery on a busy two-core machine.
START_S: Final = 90.0
STOP_S: Final = 60.0


class Proc:
    """One process in a session of its own, with its output in a file."""

    def __init__(self, name: str, argv: list[str], *, env: Mapping[str, str], cwd: Path) -> None:
        self.name = name
        self.log = cwd / f"{name}-{uuid.uuid4().hex[:6]}.log"
        self._adopted: list[subprocess.Popen[bytes]] = []
        with self.log.open("wb") as out:
            # Tied to our life: should the test run be killed, the kernel tells it to end.
            spawn(argv, self._adopted.append, env=env, cwd=cwd, output=out)
        self._family = psutil.Process(self.pid)

    @property
    def pid(self) -> int:
        return self._adopted[0].pid

    @property
    def exit_code(self) -> int | None:
        return self._adopted[0].poll()

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def children(self) -> list[int]:
        """The process numbers of all that descend from it."""
        return [child.pid for child in self._family.children(recursive=True)]

    def await_output(self, pattern: str, *, within_s: float = START_S) -> re.Match[str]:
        """The first match; fails with the whole output when the process ends or the time passes without one."""

        def found() -> re.Match[str] | None:
            match = re.search(pattern, self.output)
            assert match or self.exit_code is None, f"{self.name} ended ({self.exit_code}):\n{self.output}"
            return match

        return wait_until(found, description=f"{self.name} says {pattern!r}", within_s=within_s)

    def terminate(self) -> None:
        """It was told to end in order."""
        self._adopted[0].terminate()

    def await_end(self, *, within_s: float = STOP_S) -> int:
        """Its exit code, once it has ended by itself."""
        try:
            return self._adopted[0].wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} has not ended within {within_s:g} s:\n{self.output[-4000:]}") from None

    def stop(self) -> int:
        """It ended in order, with everything it had started; returns its exit code."""
        family = [self._family, *self._family.children(recursive=True)] if self.exit_code is None else []
        self.terminate()
        code = self.await_end()
        _, alive = psutil.wait_procs(family, timeout=STOP_S)
        assert not alive, f"{self.name} left processes behind: {alive}"
        return code

    def quit(self) -> None:
        """It was told to stop at once: Celery's cold shutdown."""
        self._adopted[0].send_signal(signal.SIGQUIT)

    def kill(self) -> None:
        """The whole process group got `kill -9`."""
        self._signal_group(signal.SIGKILL)
        self._adopted[0].wait()

    def freeze(self) -> None:
        """The whole process group stands still."""
        self._signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        """The whole process group goes on."""
        self._signal_group(signal.SIGCONT)

    def _signal_group(self, signum: int) -> None:
        # Not reaped yet, so its number is nobody else's.
        if self._adopted[0].poll() is None:
            os.killpg(self.pid, signum)


@dataclass
class Ledger:
    """What tools really did, one line each."""

    path: Path

    def of(self, key: str) -> list[dict[str, Any]]:
        """The key's lines, oldest first."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [line for line in map(json.loads, lines) if line["key"] == key]

    def events(self, key: str) -> list[str]:
        """What happened under the key, in order."""
        return [line["event"] for line in self.of(key)]

    def count(self, key: str, event: str = "run") -> int:
        """How often the event happened under the key."""
        return self.events(key).count(event)

    def await_event(self, key: str, event: str, *, times: int = 1) -> dict[str, Any]:
        """The line of the event's `times`-th happening."""

        def line() -> dict[str, Any] | None:
            found = [line for line in self.of(key) if line["event"] == event]
            return found[times - 1] if len(found) >= times else None

        return wait_until(line, description=f"the ledger has {event!r} of {key} {times} time(s)")


@dataclass
class Store:
    """The fleet's Valkey, which tests freeze, kill and start again on the same folder and port."""

    folder: Path
    server: EmbeddedValkey = field(init=False)

    def __post_init__(self) -> None:
        self.server = EmbeddedValkey(self.folder)

    @property
    def url(self) -> str:
        return self.server.url

    def kill(self) -> None:
        """It got `kill -9`; what it had answered is in its AOF."""
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.stop()

    def restart(self) -> None:
        """It runs again with its data, where it was."""
        self.server = EmbeddedValkey(self.folder, self.server.port)
        self.server.start()

    def freeze(self) -> None:
        """It takes connections and answers nothing."""
        os.kill(self.server.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """It answers again, first what it was asked meanwhile."""
        os.kill(self.server.pid, signal.SIGCONT)


class Fleet:
    """One store and the processes that were started on it. None of them lives after the `with` block."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self.ledger = Ledger(folder / "ledger.jsonl")
        self.store = Store(folder / "valkey")
        self.artifacts = folder / "artifacts"
        self.prefix = f"f{uuid.uuid4().hex[:8]}:"
        self._env, self._stack, self._procs = env, ExitStack(), list[Proc]()

    def __enter__(self) -> Self:
        self.store.server.start()
        self._stack.callback(lambda: self.store.server.stop())
        self.raw = redis.Redis.from_url(self.store.url, decode_responses=True)
        self._stack.callback(self.raw.close)
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            self.kill_since(0)

    @property
    def started(self) -> int:
        """How many processes were started so far."""
        return len(self._procs)

    def kill_since(self, mark: int) -> None:
        """None of the processes that were started after the first `mark` lives."""
        for proc in self._procs[mark:]:
            proc.kill()

    # -------------------------------------------------------------------------------------------- processes

    def start_server(self, **env: str) -> Proc:
        """A server process is starting on a free port."""
        return self.start("serve", TARGET, "--port", "0", **env)

    def start_worker(self, pool: str = "threads", *, concurrency: int = 4, **env: str) -> Proc:
        """A worker is starting: what `mcptasks worker` turns into, without importing everything twice for it."""
        name = f"w{len(self._procs)}"
        argv = worker_argv(CELERY, pool=pool, concurrency=concurrency, name=f"{name}@test", log_level="INFO")
        return self._start(f"worker-{name}", [*argv, "--without-mingle"], env)

    def start(self, *argv: str, **env: str) -> Proc:
        """`mcptasks ARGV` is running."""
        return self._start(argv[0], [*MCPTASKS, *argv], env)

    def start_other(self, name: str, argv: list[str], **env: str) -> Proc:
        """Any program is running in the fleet's environment."""
        return self._start(name, argv, env)

    def ready(self, *procs: Proc) -> str:
        """All of them are ready; returns the URL of the last server among them ("" without one)."""
        url = ""
        for proc in procs:
            if proc.name == "serve":
                url = proc.await_output(r"serving (http://[^\s\"]+)").group(1)
            else:
                proc.await_output(r"\sready\.")
        return url

    def worker(self, pool: str = "threads", *, concurrency: int = 4, **env: str) -> Proc:
        """A worker that is ready."""
        proc = self.start_worker(pool, concurrency=concurrency, **env)
        self.ready(proc)
        return proc

    def server(self, **env: str) -> tuple[Proc, str]:
        """A server that is ready, and its URL."""
        proc = self.start_server(**env)
        return proc, self.ready(proc)

    def environment(self, **more: str) -> dict[str, str]:
        """What the fleet's processes see: nothing of a developer's own MCPTASKS_*."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MCPTASKS_")}
        mine = {
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "FLEET_LEDGER": str(self.ledger.path),
            "MCPTASKS_REDIS_URL": self.store.url,
            "MCPTASKS_PREFIX": self.prefix,
            "MCPTASKS_ARTIFACTS_URL": str(self.artifacts),
        }
        return {**clean, **mine, **SHORT, **self._env, **more}

    def _start(self, name: str, argv: list[str], env: Mapping[str, str]) -> Proc:
        proc = Proc(name, argv, env=self.environment(**env), cwd=self.folder)
        self._procs.append(proc)
        return proc

    # -------------------------------------------------------------------------------------------- the store's view

    @property
    def settings(self) -> Settings:
        """The settings the fleet's processes have."""
        keys: Any = self._env.get("MCPTASKS_ENCRYPTION_KEYS", "")
        return Settings(
            redis_url=self.store.url,
            prefix=self.prefix,
            artifacts_url=str(self.artifacts),
            lease_ms=LEASE_MS,
            renew_ms=500,
            resend_ms=RESEND_MS,
            encryption_keys=keys,
        )

    @property
    def keys(self) -> Keys:
        return Keys(self.prefix)

    def record(self, task: TaskHandle | str) -> Record:
        """The task as the store has it, seen as an operator."""
        task_id, seal = task if isinstance(task, str) else task.task_id, Seal(self.settings.encryption_keys)
        fields = cast("dict[str, str]", self.raw.hgetall(self.keys.task(task_id)))
        payload = cast("str | None", self.raw.get(self.keys.result(task_id)))
        return read_record(with_payload(fields, payload), seal)

    def task_keys(self) -> list[str]:
        """Every key of every task there is."""
        return sorted(str(key) for key in self.raw.scan_iter(f"{self.prefix}task:*"))

    def task_ids(self) -> set[str]:
        """Every task that any key is left of."""
        return {key.removeprefix(f"{self.prefix}task:{{").partition("}")[0] for key in self.task_keys()}

    def keys_for_ever(self) -> list[str]:
        """Keys without an expiry, besides the broker's own bookkeeping, which its queues bound."""
        keys = [str(key) for key in self.raw.scan_iter()]
        brokers = ("_kombu.binding", "unacked")
        mine = [key for key in keys if not any(name in key for name in brokers) and not self._is_queue(key)]
        return [key for key in mine if self.raw.ttl(key) == -1]

    def _is_queue(self, key: str) -> bool:
        return self.raw.type(key) == "list" and not key.startswith(f"{self.prefix}task:")

    @property
    def queue(self) -> str:
        """Where kombu keeps the messages that no worker has taken."""
        return f"{self.prefix}mcptasks"

    def messages(self) -> list[str]:
        """The messages that no worker has taken."""
        return cast("list[str]", self.raw.lrange(self.queue, 0, -1))

    def multiply_messages(self, times: int) -> None:
        """Each message is in the queue that many times."""
        for message in self.messages():
            self.raw.rpush(self.queue, *[message] * (times - 1))

    def garbage(self) -> list[str]:
        """Messages that are none of ours, from no JSON at all to nearly right."""
        headers = {"lang": "py", "task": "mcptasks.execute", "id": "garbage", "root_id": "garbage"}
        envelope: dict[str, Any] = {
            "body": base64.b64encode(b'[[], {"task_id": "x", "run": 1, "look": 0}, {}]').decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": {
                "body_encoding": "base64",
                "correlation_id": "garbage",
                "delivery_info": {"exchange": "", "routing_key": "mcptasks"},
                "delivery_mode": 2,
                "delivery_tag": "garbage",
                "priority": 0,
            },
        }
        return [
            "no JSON",
            "",
            "null",
            "[]",
            '{"some": "JSON"}',
            json.dumps(envelope),  # a task nobody knows
            json.dumps({**envelope, "body": base64.b64encode(b"[[], {}, {}]").decode()}),
            json.dumps({**envelope, "body": base64.b64encode(b'[["a", "b"], {"c": 1}, {}]').decode()}),
            json.dumps({**envelope, "body": base64.b64encode(b"no json").decode()}),
            json.dumps({**envelope, "body": "no base64"}),
            json.dumps({**envelope, "content-type": "application/x-python-serialize"}),
            json.dumps({**envelope, "headers": {**headers, "task": "somebody.elses"}}),
            json.dumps({**envelope, "headers": {}}),
            json.dumps({**envelope, "headers": None}),
            json.dumps({**envelope, "properties": {}}),
            json.dumps({**envelope, "body": 17}),
            json.dumps({**envelope, "body": base64.b64encode(b"17").decode()}),
            json.dumps({**envelope, "body": base64.b64encode(b"[1]").decode()}),
            json.dumps({**envelope, "headers": {**headers, "task": ["mcptasks.execute"]}}),
            json.dumps({**envelope, "headers": {**headers, "id": ["garbage"]}}),
            json.dumps({**envelope, "headers": {**headers, "id": None}}),
            json.dumps({**envelope, "headers": {"task": "mcptasks.execute"}}),
            json.dumps({**envelope, "headers": {**headers, "timelimit": "soon"}}),
            json.dumps({**envelope, "headers": {**headers, "timelimit": [1]}}),
            json.dumps({**envelope, "headers": {**headers, "eta": "soon"}}),
            json.dumps({**envelope, "headers": {**headers, "expires": [1]}}),
            json.dumps({**envelope, "headers": {**headers, "shadow": 17, "argsrepr": 17, "ignore_result": "x"}}),
        ]

    def drop_messages(self) -> None:
        """No message is left in the broker, wherever Celery keeps them."""
        for key in self.raw.scan_iter(f"{self.prefix}*"):
            if self._is_queue(str(key)) or "unacked" in str(key):
                self.raw.delete(key)

    def await_status(self, task: TaskHandle, status: str) -> Record:
        """The task once the store has it in that status."""

        def reached() -> Record | None:
            record = self.record(task)
            assert record.status == status or not record.status.terminal, f"it is {record.status}: {record.error}"
            return record if record.status == status else None

        return wait_until(reached, description=f"the task is {status}")


# ------------------------------------------------------------------------------------------------ the client's side


async def _by_hand(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
    """Tests answer through the handle; this only declares that the client can be asked."""
    return ErrorData(code=-1, message="this test answers by hand")


@asynccontextmanager
async def client(url: str, *, token: str | None = None, **headers: str) -> AsyncGenerator[Connection]:
    """A connected client that can be asked questions; it answers none by itself."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    async with connect(url, headers=sent, elicitation=_by_hand) as connection:
        yield connection


async def start(connection: Connection, tool: str, **arguments: Any) -> TaskHandle:
    """A task of that tool."""
    handle = await TasksClient.start(connection.client, tool, arguments)
    assert handle.task_id, f"{tool} was answered without a task"
    return handle


async def questions(handle: TaskHandle) -> dict[str, Any]:
    """The open questions by key, once the task asks."""
    task = await handle.wait(60, until=["input_required"])
    assert task.status == "input_required", f"it is {task.status}: {task.error}"
    return task.input_requests or {}


async def answer(handle: TaskHandle, value: str) -> list[str]:
    """Every open question has that answer; returns their keys."""
    keys = list(await questions(handle))
    await handle.update({key: accepted(value) for key in keys})
    return keys


def accepted(value: str) -> dict[str, Any]:
    """An answer on the wire."""
    return {"action": "accept", "content": {"value": value}}


async def outcome(handle: TaskHandle) -> str:
    """The text of the task's result."""
    return text(await handle.result(60))


def text(result: CallToolResult) -> str:
    """The text of a result."""
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


def free_port() -> int:
    """A loopback port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def new_key() -> str:
    """A ledger key nobody else uses."""
    return uuid.uuid4().hex[:12]
