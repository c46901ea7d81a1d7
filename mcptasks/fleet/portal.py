"""One event loop per worker process, with the MCP server's lifespan entered once, and the runs that live on it.

Async tools keep module-level clients; those belong to one loop for the life of the process. So every run of a process
shares this one, whichever pool thread or prefork child waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final, ParamSpec, TypeVar

import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from mcptasks import seams
from mcptasks.dispatch import Dispatcher
from mcptasks.fleet.keeper import Keeper
from mcptasks.fleet.shutdown import Shutdown
from mcptasks.runtime.clock import Clock
from mcptasks.runtime.runner import Run
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore

log: Final = logging.getLogger("mcptasks.fleet")

P = ParamSpec("P")
T = TypeVar("T")

#: Sync tools run in threads of the loop. How many run at once is the pool's business, not anyio's default of 40.
_THREADS: Final = 10_000

#: What the user's lifespan may take to leave, when a tool that ignored its stop does not hold the loop.
_CLOSE_S: Final = 5.0


class Portal:
    """The running half of a worker process. Made before a fork, started after it, on the first use in each process."""

    def __init__(self, settings: Settings, mcp: Any, dispatcher: Dispatcher) -> None:
        self.settings = settings
        self.mcp = mcp
        self.dispatcher = dispatcher
        self._lock = threading.Lock()
        self._pid = 0
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self.lifespan: Any = None
        self.shutdown = Shutdown()
        #: What `celery -A` was given, where runs share this process; then a last attempt gets a process of its own.
        self.lone_app: str | None = None
        #: By what runs measure their time; None: their loop.
        self.clock: Clock | None = None
        #: Ends the task of a run whose tool holds this process's loop.
        self.leave: Callable[[Run], Awaitable[None]] | None = None
        #: This process was made for one run.
        self.alone = False
        self._made_in = os.getpid()
        self._leftovers: dict[asyncio.Task[Any], str] = {}
        self.store = TaskStore(settings)
        self.keeper = Keeper(settings, self.shutdown)

    def start(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The coroutine runs on the process's loop; the future is its end. Starts loop and lifespan on first use."""
        portal = self._started()

        async def task() -> T:
            return await work(*args, **kwargs)

        return portal.start_task_soon(task)

    @property
    def expendable(self) -> bool:
        """This process has one run at a time, and is replaced when it ends: a prefork child, or a lone process."""
        return self.alone or os.getpid() != self._made_in

    def leave_behind(self, run: Run) -> None:
        """What still runs of the run is counted until it ends."""
        if (task := run.leftover) is not None:
            self._leftovers[task] = run.claim.record.tool
            task.add_done_callback(lambda done: self._leftovers.pop(done, None))

    @property
    def leftovers(self) -> dict[str, int]:
        """Tool -> how many of its runs go on here although their tasks have ended. Any thread may ask."""
        return dict(Counter(list(self._leftovers.values())))

    def warm(self) -> None:
        """The process is ready for its first run: loop, lifespan and lease keeper are up."""
        self._started()

    def close(self) -> bool:
        """The lifespan is left, the loop and the keeper are stopped, in the process that started them.

        False: a tool that does not stop holds them. Its task was settled without it; end the process the hard way.
        """
        with self._lock:
            if self._portal is None or self._pid != os.getpid():
                return True
            self._portal = None
            closing = threading.Thread(target=self._stack.close, name="mcptasks-closing", daemon=True)
            closing.start()
            closing.join(_CLOSE_S)
            return not closing.is_alive()

    @contextmanager
    def holding(self, run: Run) -> Generator[None]:
        """Inside the block the run's lease is renewed, and wakes and cancels reach it."""
        self.keeper.add(run)
        try:
            yield
        finally:
            self.keeper.remove(run)

    def _started(self) -> BlockingPortal:
        if self._portal is not None and self._pid == os.getpid():
            return self._portal
        with self._lock:
            if self._portal is None or self._pid != os.getpid():
                # What the parent of a fork had started does not live here; forget it without stopping it.
                self._stack, self._portal = ExitStack(), None
                self.store, self.keeper = TaskStore(self.settings), Keeper(self.settings, self.shutdown, self.leave)
                with ExitStack() as stack:
                    portal = stack.enter_context(start_blocking_portal("asyncio"))
                    stack.callback(lambda: portal.call(self.store.aclose))
                    portal.call(_unlimit_threads)
                    self.lifespan = stack.enter_context(self._entered(portal))
                    self.keeper.start()
                    stack.callback(self.keeper.close)
                    self._stack = stack.pop_all()
                self._portal, self._pid = portal, os.getpid()
            return self._portal

    def _entered(self, portal: BlockingPortal) -> AbstractContextManager[Any]:
        return portal.wrap_async_context_manager(seams.lifespan(self.mcp))


def _unlimit_threads() -> None:
    anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
