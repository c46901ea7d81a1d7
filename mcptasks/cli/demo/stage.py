"""What every scene needs: a client, the fleet, an operator's view of the store, and a way to say what must hold."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
from anyio import to_thread

from mcptasks.cli.demo.screen import Screen, progress
from mcptasks.cli.fleet_processes import DevFleet
from mcptasks.client import Connection, TaskHandle, TasksClient, connect
from mcptasks.errors import MCPTasksError
from mcptasks.model import Record, label
from mcptasks.store.store import TaskStore

T = TypeVar("T")

#: How long anything may take on a machine that has better things to do.
WITHIN_S: Final = 60.0
_LOOK_S: Final = 0.05

#: Enough passes to tell how fast this machine is, few enough to be over in a second.
_TRIAL_PASSES: Final = 20
#: What a long job takes: long enough to watch, to cancel and to kill, short enough for a tour.
_LONG_S: Final = 6.5
#: Whatever the trial says: it is short, and the load of a machine changes.
_FEWEST_PASSES: Final = 30
_MOST_PASSES: Final = 5_000


class SceneFailed(MCPTasksError):
    """A scene did not come out; the message says what did not hold."""


def check(holds: bool, claim: str) -> None:
    """The claim holds.

    Raises:
        SceneFailed: it does not.
    """
    if not holds:
        raise SceneFailed(f"it is not true that {claim}")


def sources() -> Path:
    """A folder of real files that is on every machine this runs on and that nobody changes meanwhile: Celery's code."""
    spec = find_spec("celery")
    assert spec is not None and spec.origin is not None, "a dependency"
    return Path(spec.origin).parent


async def _unexpected(context: Any, params: Any) -> Any:
    """The tour answers through the handle; having this says that its client can be asked at all."""
    raise SceneFailed("a tool asked a question that the tour did not expect")


def client(url: str) -> AbstractAsyncContextManager[Connection]:
    """A client, as an application would connect it."""
    return connect(url, elicitation=_unexpected)


@dataclass
class Stage:
    """The running fleet and a client of it."""

    url: str
    connection: Connection
    store: TaskStore
    fleet: DevFleet
    screen: Screen
    #: Where the sample tools leave what they write.
    folder: Path
    #: How often the long job reads every file, so that it takes some seconds here.
    passes: int = _TRIAL_PASSES
    #: What the long job found when nothing went wrong.
    digest: str = ""

    async def measure(self) -> None:
        """`passes` fits this machine."""
        task = await TasksClient.start(self.connection.client, "index_files", self.long_job())
        # Between two reports, not from the call on: the first job of a worker also waits for it to warm up.
        reports = [(time.monotonic(), told.percent) async for state in task.changes() if (told := progress(state))]
        check(len(reports) > 1, "the first job reported its progress")
        (first_at, first), (last_at, last) = reports[0], reports[-1]
        a_second = _TRIAL_PASSES * (last - first) / 100 / (last_at - first_at)
        self.passes = min(_MOST_PASSES, max(_FEWEST_PASSES, round(_LONG_S * a_second)))

    def long_job(self, *, times: int = 1) -> dict[str, Any]:
        """Arguments of `index_files` for a job that takes `times` as long as the usual one."""
        return {"folder": str(sources()), "pattern": "*.py", "passes": self.passes * times}

    async def start(
        self, tool: str, arguments: dict[str, Any], *, key: str | None = None, connection: Connection | None = None
    ) -> TaskHandle:
        """The tool was called before everybody's eyes and answered with a task."""
        said = ", ".join(f"{name}={_shown(value)}" for name, value in arguments.items())
        self.screen.line("client", f"{tool}({said})" + (f"  idempotency key {key}" if key else ""))
        began = time.monotonic()
        task = await TasksClient.start((connection or self.connection).client, tool, arguments, idempotency_key=key)
        taken_ms = (time.monotonic() - began) * 1000
        check(bool(task.task_id), f"{tool} was answered with a task")
        self.screen.line("server", f"task {label(task.task_id)}... after {taken_ms:.0f} ms")
        return task

    async def question(self, task: TaskHandle) -> tuple[str, str]:
        """The one thing that the task asks: its key and its text."""
        state = await task.wait(WITHIN_S, until={"input_required"})
        check(state.status == "input_required", "the task asks something")
        [(key, request)] = (state.input_requests or {}).items()
        return key, str(request["params"]["message"])

    async def result(self, task: TaskHandle) -> dict[str, Any]:
        """What the tool returned, as data."""
        result = await task.result(WITHIN_S)
        check(not result.is_error and result.structured_content is not None, "the tool succeeded")
        return result.structured_content or {}

    async def record(self, task: TaskHandle) -> Record:
        """The task as the operator sees it in the store."""
        record = await self.store.read(task.task_id, None)
        assert record is not None, "it was made a moment ago and lives for a day"
        return record

    async def until(self, look: Callable[[], Awaitable[T | None]], claim: str) -> T:
        """What `look` sees, once it sees something.

        Raises:
            SceneFailed: it saw nothing for a minute.
        """
        deadline = time.monotonic() + WITHIN_S
        while (found := await look()) is None:
            check(time.monotonic() < deadline, claim)
            await anyio.sleep(_LOOK_S)
        return found

    async def idle(self) -> None:
        """No worker runs anything."""

        async def look() -> bool | None:
            return True if await to_thread.run_sync(self.fleet.busy) == 0 else None

        await self.until(look, "the workers run nothing any more")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text.replace(str(sources().parent), "...")
