"""The inside of a worker process on the running event loop: real claims, runs and leases, without Celery.

Each message is worked on as if in a process of its own, so that a test can kill one and leave the others alone.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar

from mcptasks import seams
from mcptasks.dispatch import Dispatcher
from mcptasks.fleet.execute import perform
from mcptasks.fleet.keeper import Keeper
from mcptasks.fleet.portal import Portal
from mcptasks.fleet.shutdown import Shutdown
from mcptasks.fleet.sweeper import sweep
from mcptasks.model import Claim, Hint
from mcptasks.runtime.clock import Clock
from mcptasks.runtime.runner import Run
from mcptasks.runtime.watchdog import Stop
from mcptasks.settings import Settings
from mcptasks.store.connection import Connection
from mcptasks.store.store import TaskStore

T = TypeVar("T")

#: By what the store knows the worker, and the sweeper.
_NAME: Final = "in-process"
#: What tools that do not stop may take at the end.
_CLOSE_S: Final = 5.0


@dataclass(eq=False)
class Work:
    """One message that is being worked on."""

    hint: Hint
    portal: Portal
    #: Its process was killed: it does not count any more.
    killed: bool = False
    task: asyncio.Task[str] = field(init=False)

    @property
    def run(self) -> Run | None:
        """The run that it came to, once it is claimed."""
        return self.portal.keeper.find(self.hint.task_id, self.hint.run)

    def kill(self) -> None:
        """Nothing that it does from now on is stored, and nobody renews its lease. Any thread may call this."""
        self.killed = True
        self.portal.store.connection = _Cut(self.portal.settings)
        if (run := self.run) is not None:
            self.portal.keeper.remove(run)
            run.interrupt.request(Stop.LOST)


class Worker:
    """Works on messages as a worker process does; its lease keeper and its sweeper are the real ones.

    It is a `Dispatcher`, too, and begins what is sent as soon as its countdown is over; `dispatcher`: sends instead.
    """

    def __init__(
        self, settings: Settings, mcp: Any, *, dispatcher: Dispatcher | None = None, clock: Clock | None = None
    ) -> None:
        self.settings = settings
        self._mcp, self._dispatcher, self._clock = mcp, dispatcher or self, clock
        self._shutdown = Shutdown()
        self.keeper = Keeper(settings, self._shutdown)
        self._store = TaskStore(settings)
        self._lifespan: Any = None
        self._context = contextvars.copy_context()
        self._works = set[Work]()
        self._ending = False
        #: Asked about every step that is about to be recorded: its work, its name, and whether the record is written.
        self.on_step: Callable[[Work, str, bool], None] = lambda work, name, recorded: None

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[None]:
        """Inside the block messages can be worked on, with the server's lifespan entered. At the end all runs end."""
        async with in_a_task_of_its_own(seams.lifespan(self._mcp)) as self._lifespan:
            upkeep = [asyncio.ensure_future(job()) for job in self.keeper.jobs]
            try:
                yield
            finally:
                self._ending = True
                works = {work.task for work in self._works}
                for task in (*works, *upkeep):
                    task.cancel()
                await asyncio.wait({*works, *upkeep}, timeout=_CLOSE_S)
                await self._store.aclose()

    @property
    def works(self) -> Iterator[Work]:
        """The messages that are being worked on; a killed one is until its tool has unwound."""
        return iter(tuple(self._works))

    def send(self, hint: Hint) -> None:
        """The message is on its way; at the end, where runs give back their claims, nobody is there to receive it."""
        if self._ending:
            return
        if hint.countdown_ms:
            clock = self._clock or asyncio.get_running_loop()
            clock.call_later(hint.countdown_ms / 1000, lambda: self.begin(hint))
        else:
            self.begin(hint)

    def envelope(self, hint: Hint) -> None:
        """No message goes along with a transition: there is no broker in the store."""

    def begin(self, hint: Hint) -> asyncio.Task[str]:
        """The message is worked on in the background; the task's result is the word that monitors would see."""
        portal = Portal(self.settings, self._mcp, self._dispatcher)
        portal.keeper, portal.shutdown = self.keeper, self._shutdown
        portal.lifespan, portal.clock = self._lifespan, self._clock
        work = Work(hint, portal)
        portal.store = _Store(self.settings, lambda name, recorded: self.on_step(work, name, recorded))
        # Not the context of whoever sends: that may be a tool that runs, or a request.
        work.task = asyncio.get_running_loop().create_task(_perform(work), context=self._context.copy())
        self._works.add(work)
        work.task.add_done_callback(lambda _: self._works.discard(work))
        return work.task

    async def sweep(self) -> None:
        """The sweeper has made one round."""
        await sweep(self._store, _NAME, self._dispatcher)


async def _perform(work: Work) -> str:
    store = work.portal.store
    try:
        return await perform(work.portal, work.hint, _NAME)
    except asyncio.CancelledError:
        if work.killed:
            return "killed"
        raise
    finally:
        await store.aclose()


class _Store(TaskStore):
    """The store as one run sees it: a test may kill the run at a step."""

    def __init__(self, settings: Settings, on_step: Callable[[str, bool], None]) -> None:
        super().__init__(settings)
        self._on_step = on_step
        self._opened = self.connection

    async def step(self, claim: Claim, name: str, value: str) -> tuple[str, str]:
        """As ever."""
        self._on_step(name, False)
        answer = await super().step(claim, name, value)
        self._on_step(name, True)
        return answer

    async def aclose(self) -> None:
        """Whether it was cut or not."""
        await super().aclose()
        await self._opened.aclose()


class _Cut(Connection):
    """The connection of a process that is dead: whoever wants something of it is not heard of again."""

    def turn(self) -> NoReturn:
        """Never gets one."""
        raise asyncio.CancelledError


@asynccontextmanager
async def in_a_task_of_its_own(context: AbstractAsyncContextManager[T]) -> AsyncGenerator[T]:
    """The context, entered and left in one task, wherever the block begins and ends.

    Fixtures of pytest-asyncio are set up in one task and torn down in another, which anyio's task groups refuse; and
    what the block raises is not wrapped into their exception groups.
    """
    loop = asyncio.get_running_loop()
    entered: asyncio.Future[T] = loop.create_future()
    leave = asyncio.Event()

    async def hold() -> None:
        async with context as value:
            entered.set_result(value)
            await leave.wait()

    holder = loop.create_task(hold())
    try:
        await asyncio.wait({holder, entered}, return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            await holder
        yield entered.result()
    finally:
        leave.set()
        if not entered.done():
            holder.cancel()
        await asyncio.wait({holder})
    holder.result()
