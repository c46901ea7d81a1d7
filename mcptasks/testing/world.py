"""One world: a server whose tasks are in memory, a worker for them, and a clock that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from tempfile import TemporaryDirectory
from typing import Any, Final

from mcp.client import Client, ClientRequestContext
from mcp.client.session import ElicitationFnT, ListRootsFnT, SamplingFnT
from mcp.server.mcpserver import MCPServer
from mcp_types import ElicitRequestParams, ElicitResult

from mcptasks.client import TaskHandle, TasksClient
from mcptasks.errors import BadAnswer, ConfigurationError
from mcptasks.model import Record, Status, label
from mcptasks.operations import Operations
from mcptasks.store.store import TaskStore
from mcptasks.tasks import Tasks
from mcptasks.testing.clock import MovableClock
from mcptasks.testing.memory import store_in_memory
from mcptasks.testing.quiet import Quiet
from mcptasks.testing.worker import Work, Worker, in_a_task_of_its_own
from mcptasks.times import Duration, duration_ms

#: Between two looks at a task.
_LOOK_S: Final = 0.01


class World:
    """What `run` yields. Tasks are named by their handle or their id; other processes' tasks there are none.

    Whatever waits here does so for `patience_s` real seconds at most, and then raises `TimeoutError` and says for what.
    """

    def __init__(self, mcp: MCPServer[Any], worker: Worker, clock: MovableClock, patience_s: float) -> None:
        self.mcp = mcp
        #: The server's settings, with the store in memory: for `Operations(world.settings)` and the like.
        self.settings = worker.settings
        #: The fleet in an operator's hand.
        self.operations = Operations(self.settings)
        self._store = TaskStore(self.settings)
        self._worker, self._clock, self._patience_s = worker, clock, patience_s
        self._quiet = Quiet(worker, self._store, clock, patience_s)
        worker.on_step = self._at_step
        #: Steps at which a worker is to die: key, and whether its record is written by then.
        self._doomed = set[tuple[str, bool]]()

    # -------------------------------------------------------------------------------------------- clients

    @asynccontextmanager
    async def client(
        self,
        *,
        elicitation: ElicitationFnT | None = None,
        sampling: SamplingFnT | None = None,
        roots: ListRootsFnT | None = None,
        tasks: TasksClient | None = None,
    ) -> AsyncGenerator[Client]:
        """Yields the SDK's client, connected in memory, which knows tasks: `TasksClient.start(client, ...)`.

        A client that knows none is the SDK's own `Client(mcp)`.

        Args:
            elicitation: answers the questions of tools where somebody waits for a result; so do `sampling` and `roots`,
                each in the SDK's own signature.
            tasks: the extension to use, where its defaults do not fit.
        """
        client = Client(
            self.mcp,
            elicitation_callback=elicitation or _nobody,
            sampling_callback=sampling,
            list_roots_callback=roots,
            extensions=[tasks or TasksClient()],
        )
        async with in_a_task_of_its_own(client) as connected:
            yield connected

    # -------------------------------------------------------------------------------------------- time

    @property
    def now(self) -> datetime:
        """The world's time, in UTC; it stands still but for `advance`.

        It is the time of the store and of the library, no other: `datetime.now()` in a tool is this machine's.
        """
        return datetime.fromtimestamp(self._clock.time(), tz=UTC)

    async def idle(self) -> None:
        """Nothing moves: every task has ended, or waits for a person, for its time, or for a lease to run out.

        Raises:
            TimeoutError: a tool still runs; the message names it.
        """
        await self._quiet.settle()

    async def advance(self, duration: Duration, *, leave_running: bool = False) -> None:
        """So much time has passed, and everything that came due meanwhile has happened, each at its own moment.

        Sleeps, retries, time limits of questions and of runs, leases of killed workers, times to live: first what can
        happen now, then what is due next, and so on. Runs that go on do not lose their lease.

        Args:
            duration: seconds, a `timedelta`, or text such as "2d".
            leave_running: tools that run now are not waited for; for those that wait for the test.

        Raises:
            TimeoutError: as of `idle`.
            ConfigurationError: it is no duration.
        """
        left = set(self._worker.works) if leave_running else set[Work]()
        await self._quiet.settle(left)
        end_ms = self._clock.now_ms + duration_ms(duration)
        while (due_ms := await self._quiet.next_ms()) is not None and due_ms < end_ms:
            await self._quiet.go_to(due_ms, left)
        await self._quiet.go_to(end_ms, left)

    async def until(self, task: TaskHandle | str, *statuses: str) -> Record:
        """The task has one of these statuses, or has ended; time stands still. Returns its record.

        For tests in which something else moves the task on, such as a client that waits in the background.

        Args:
            statuses: of `Record.status`: queued, running, parked (for a person), sleeping, retrying, and the ends
                completed, failed, cancelled.

        Raises:
            TimeoutError: it has none of them; the message says which it has.
            UnknownTask: there is no such task.
        """
        clock = asyncio.get_running_loop().time
        wanted, deadline = {Status(status) for status in statuses}, clock() + self._patience_s
        while not ((record := await self.read(task)).status in wanted or record.status.terminal):
            if clock() > deadline:
                raise TimeoutError(f"Task {label(record.task_id)} ({record.tool}) is still {record.status}")
            await asyncio.sleep(_LOOK_S)
        return record

    # -------------------------------------------------------------------------------------------- tasks

    async def read(self, task: TaskHandle | str) -> Record:
        """The task as it is now: status, reason, open questions, attempt, result.

        Raises:
            UnknownTask: there is none, or its time is over.
        """
        return await self.operations.read(_id(task))

    async def steps(self, task: TaskHandle | str) -> dict[str, Any]:
        """The results of the task's steps so far, as JSON, by `key#n`: `charge#1` is the first step "charge".

        A recorded error is a mapping of `type` and `message`.
        """
        journal = await self._store.journal(_id(task))
        return {name: record.get("result", record.get("error")) for name, record in journal.steps.items()}

    async def answer(self, task: TaskHandle | str, answer: Mapping[str, Any], *, key: str | None = None) -> None:
        """The task's open question has this answer, and what follows from it has happened, as far as it goes.

        Args:
            answer: what a client sends; `{"action": "accept", "content": {...}}`, `{"action": "decline"}`.
            key: which question, where several are open; `read(task).questions` has them.

        Raises:
            BadAnswer: it does not satisfy the question, or there is none, or several and no key.
            UnknownTask: there is no such task.
            TimeoutError: as of `idle`.
        """
        await self.idle()
        if key is None:
            questions = (await self.read(task)).questions
            if len(questions) != 1:
                raise BadAnswer(f"Task {label(_id(task))} has {len(questions)} open questions; say which: key=...")
            key = next(iter(questions))
        await self.operations.answer(_id(task), {key: answer})
        await self.idle()

    async def cancel(self, task: TaskHandle | str) -> None:
        """The wish to cancel is stored. A task that waits has ended by then; a tool that runs hears of it at once.

        As `TaskHandle.cancel`, without a client.
        """
        await self._store.cancel(_id(task), None, "Cancelled by the test")

    # -------------------------------------------------------------------------------------------- faults

    def crash(self, task: TaskHandle | str | None = None) -> None:
        """The worker that runs the task is dead, as of `kill -9`; without a task, every worker is.

        Nothing that the run does from now on is stored. Its task is run again once the lease is over:
        `await world.advance(world.settings.lease_ms / 1000)`. May be called from within a tool, in any thread.

        One difference to a real kill: an async tool is cancelled, so that its `finally` blocks run, and a sync one goes
        on to its end.
        """
        for work in self._worker.works:
            if task is None or work.hint.task_id == _id(task):
                work.kill()

    def crash_at_step(self, key: str, *, recorded: bool = False) -> None:
        """The next worker that has done a step with this key dies before its result is recorded.

        Args:
            recorded: it dies right after that instead.
        """
        self._doomed.add((key, recorded))

    def _at_step(self, work: Work, name: str, recorded: bool) -> None:
        key = name.rpartition("#")[0]
        key = key[key.index("@", 1) + 1 :] if key.startswith("@") else key
        if (key, recorded) in self._doomed:
            self._doomed.discard((key, recorded))
            work.kill()

    async def aclose(self) -> None:
        """The running loop's connections are closed."""
        await self._store.aclose()
        await self.operations.__aexit__(None, None, None)


def _id(task: TaskHandle | str) -> str:
    return task if isinstance(task, str) else task.task_id


async def _nobody(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """The client can be asked, and the answer comes from elsewhere."""
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def run(mcp: MCPServer[Any], tasks: Tasks, *, patience_s: float = 10.0) -> AsyncGenerator[World]:
    """Inside the block the server's durable tools run in memory, in a store that is empty at first.

    Whether `tasks.bind(mcp)` was called or not, and whatever the settings name as store: afterwards all is as it was.

    Args:
        mcp: the server, with its tools.
        tasks: the object in its `extensions`.
        patience_s: how long, in real seconds, tools may take until it is an error.

    Raises:
        ConfigurationError: the server was made without `tasks`, or is in such a block already.
    """
    if not tasks.installed:
        raise ConfigurationError("the server does not have this object: MCPServer(..., extensions=[tasks])")
    clock = MovableClock()
    async with AsyncExitStack() as stack:
        url = stack.enter_context(store_in_memory(clock))
        files = stack.enter_context(TemporaryDirectory(prefix="mcptasks-"))
        settings = tasks.config.model_copy(update={"redis_url": url, "broker_url": "", "artifacts_url": files})
        worker = Worker(settings, mcp, clock=clock)
        world, store = World(mcp, worker, clock, patience_s), TaskStore(settings)
        for closing in (world.aclose, store.aclose):
            stack.push_async_callback(closing)
        await stack.enter_async_context(worker.working())
        stack.enter_context(tasks.moved(mcp, store, worker))
        yield world
