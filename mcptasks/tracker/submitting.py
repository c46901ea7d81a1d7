"""Submits a task to its server: the intent first, then the call, then the handle, before `submit` returns.

There is no `tasks/list`: a handle that is lost can never be found again. So whatever fails in between ends in a task
that is tracked, in a remote task that is cancelled, or in an intent that the fleet resolves.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Literal, Protocol

import anyio

from mcptasks.errors import MCPTasksError, StoreUnavailable, UnknownTask
from mcptasks.model import label
from mcptasks.tracker.errors import AlreadyTracked, KeyConflict, SubmitUncertain
from mcptasks.tracker.intervals import after_error
from mcptasks.tracker.limits import broken, cut, judged
from mcptasks.tracker.model import Claimed, End, Intent, Observation, Tracked, TrackStatus
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.remote import (
    HANDLE_MAX,
    Accepted,
    Driver,
    ProtocolBroken,
    RemoteGone,
    RemoteRefused,
    RemoteUnavailable,
)
from mcptasks.tracker.store.polls import Polled
from mcptasks.tracker.store.store import TrackStore
from mcptasks.tracker.store.submits import TrackAnswer

log: Final = logging.getLogger("mcptasks.tracker")

#: Between attempts of a compensation, which goes on until it is done or these are used up: a quarter of an hour.
_AGAIN_S: Final = (0.2, 1, 3, 10, 30, 60, 120, 240, 480)
_ABANDONED: Final = "Its submitter went away before its handle was stored; its remote task was cancelled"


class DriverSource(Protocol):
    """The servers that are configured, one driver each; of one event loop."""

    def driver(self, name: str) -> Driver:
        """The server's driver.

        Raises:
            ConfigurationError: there is no such server.
        """
        ...


class Submitter:
    """Submits for one event loop; what it has to make good goes on in the background (`aclose` waits for it)."""

    def __init__(self, store: TrackStore, servers: DriverSource, options: TrackOptions) -> None:
        self._store, self._servers, self._options = store, servers, options
        self._background: set[asyncio.Task[None]] = set()

    async def submit(self, intent: Intent) -> Tracked:
        """The task is tracked, or has ended because its server answered at once; or the intent's id is known already.

        Raises:
            ConfigurationError: there is no such server.
            KeyConflict: the id belongs to another call.
            RemoteRefused, ProtocolBroken: as the server said; the task has failed, and nothing runs.
            RemoteUnavailable: the server was not reached; the task has failed, and nothing runs.
            SubmitUncertain: the call was sent, and no answer came.
            AlreadyTracked: the server's handle is that of another tracked task.
            StoreUnavailable: nothing was sent; or the handle could not be stored, and the remote task is cancelled.
        """
        driver = self._servers.driver(intent.server)
        match await self._intend(intent):
            case "EXISTS":
                return await self._read(intent.task_id)
            case "CONFLICT":
                raise KeyConflict(f"Task {label(intent.task_id)}: its key was used before for another call.")
            case "INTENDED":
                pass
        accepted: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        sending = self._spawn_sending(driver, intent, accepted)
        try:
            # Never cancelled: what it brings must be known, to be stored or cancelled.
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            await self._see_to(self._withdraw(driver, intent.task_id, sending, accepted))
            raise
        except StoreUnavailable:
            if accepted.done() and not accepted.cancelled() and accepted.exception() is None:
                handle = accepted.result().handle
                await self._see_to(self._compensate(driver, intent.task_id, handle, TrackStatus.FAILED))
            raise

    async def _intend(self, intent: Intent) -> Literal["INTENDED", "EXISTS", "CONFLICT"]:
        try:
            return await self._store.intend(intent, secrets.token_hex(8))
        except StoreUnavailable:
            # It may be stored all the same, and the fleet would send what its caller was told has failed. With a key of
            # his own he comes again, and finds it.
            if not intent.repeatable:
                self._in_background(self._forget(intent.task_id))
            raise

    async def _forget(self, task_id: str) -> None:
        why = "The store did not confirm its intent; it was not sent"
        await _until_done(
            lambda: self._store.abandon(task_id, TrackStatus.FAILED, End.ABANDONED, why), "abandon", task_id
        )

    def _spawn_sending(
        self, driver: Driver, intent: Intent, accepted: asyncio.Future[Accepted]
    ) -> asyncio.Task[Tracked]:
        async def send() -> Tracked:
            said = await self._call(driver, intent.task_id, intent.tool, dict(intent.arguments), intent.key)
            accepted.set_result(said)
            await self._keep(driver, intent.task_id, intent.server, said)
            return await self._read(intent.task_id)

        return asyncio.get_running_loop().create_task(send())

    async def recover(self, claim: Claimed) -> None:
        """The intent whose submitter was lost is resolved: sent again with its key, or left to a person."""
        task = claim.task
        driver = self._servers.driver(task.server)
        if not driver.honours_key:
            await self._store.doubt(task.task_id, _doubt(task.server))
            return
        try:
            said = await self._call(driver, task.task_id, task.tool, dict(claim.arguments), claim.key, again=True)
            await self._keep(driver, task.task_id, task.server, said)
        except (SubmitUncertain, RemoteUnavailable) as exc:
            retry_after_ms = exc.retry_after_ms if isinstance(exc, RemoteUnavailable) else None
            next_ms = after_error(task.failures + 1, pace_ms=0, retry_after_ms=retry_after_ms)
            lost = Polled(seen=None, error_text=cut(str(exc)), next_ms=next_ms)
            await self._store.observe(task.task_id, claim.token, lost)
        except (RemoteRefused, ProtocolBroken, AlreadyTracked) as exc:
            log.info("Task %s: recovered, and has failed (%s)", label(task.task_id), type(exc).__name__)

    async def _call(
        self, driver: Driver, task_id: str, tool: str, arguments: dict[str, Any], key: str, *, again: bool = False
    ) -> Accepted:
        """The server's answer. What it refused, or surely has not got, has ended as failed."""
        try:
            async with asyncio.timeout(self._options.call_ms / 1000):
                accepted = await driver.submit(tool, arguments, key=key)
        except RemoteRefused as exc:
            await self._store.abandon(task_id, TrackStatus.FAILED, End.REFUSED, cut(str(exc)))
            raise
        except ProtocolBroken as exc:
            await self._broken(driver, task_id, exc)
            raise
        except RemoteUnavailable as exc:
            if again:
                raise
            if not exc.sent:
                await self._store.abandon(task_id, TrackStatus.FAILED, End.REFUSED, cut(str(exc)))
                raise
            raise await self._uncertain(driver, task_id) from exc
        except TimeoutError as exc:
            raise await self._uncertain(driver, task_id) from exc
        if accepted.handle is not None and not 0 < len(accepted.handle) <= HANDLE_MAX:
            exc = ProtocolBroken(
                f"the server's task id has {len(accepted.handle):,} characters; the limit is {HANDLE_MAX:,}",
                handle=accepted.handle or None,
            )
            await self._broken(driver, task_id, exc)
            raise exc
        return accepted

    async def _broken(self, driver: Driver, task_id: str, exc: ProtocolBroken) -> None:
        seen = broken(str(exc))
        if exc.handle is not None:
            await self._see_to(self._cancel_remote(driver, task_id, exc.handle))
        await self._store.abandon(task_id, TrackStatus.FAILED, End.PROTOCOL, seen.message)

    async def _uncertain(self, driver: Driver, task_id: str) -> SubmitUncertain:
        if driver.honours_key:
            # The submitter's claim of its intent is over: the fleet goes on at once.
            await self._store.release(task_id, 0, 0)
            then = "The fleet sends it again with the same key"
        else:
            await self._store.doubt(task_id, _doubt("the server"))
            then = "It must not be sent again: look at the server, then cancel the task here"
        return SubmitUncertain(f"Task {label(task_id)} was sent, and its server did not answer. {then}.", task_id)

    async def _keep(self, driver: Driver, task_id: str, server: str, said: Accepted) -> None:
        """The handle is stored; one that cannot be this task's is cancelled."""
        answer = await self._store.track(task_id, server, said.handle, self.judge(said))
        if answer.stored:
            log.info("Task %s: track", label(task_id))
            return
        await self._not_kept(driver, task_id, said.handle, answer)

    async def _not_kept(self, driver: Driver, task_id: str, handle: str | None, answer: TrackAnswer) -> None:
        if answer.outcome == "TAKEN":
            raise AlreadyTracked(
                f"Task {label(task_id)}: the server answered with the handle of task {label(answer.other)}, which is "
                "tracked already and was left as it is. Nothing was cancelled.",
                answer.other,
            )
        log.warning("Task %s: its handle came too late (%s); it is cancelled", label(task_id), answer.outcome)
        if handle is not None:
            await self._see_to(self._cancel_remote(driver, task_id, handle))

    def judge(self, said: Accepted) -> Observation:
        """What is to be stored of the first word about a task."""
        return judged(said.snapshot, result_max=self._options.result_max)

    async def _read(self, task_id: str) -> Tracked:
        task = await self._store.read(task_id)
        if task is None:
            raise UnknownTask(f"Task {label(task_id)} is gone: its time was up.")
        return task

    # -------------------------------------------------------------------------------------------- making good

    async def _withdraw(
        self, driver: Driver, task_id: str, sending: asyncio.Task[Tracked], accepted: asyncio.Future[Accepted]
    ) -> None:
        """The caller has gone: what its call started is cancelled, and followed to its end."""
        # First of all, so that whoever resolves the intent after a crash cancels too.
        await _until_done(lambda: self._store.cancel(task_id, _ABANDONED), "cancel", task_id, attempts=1)
        await asyncio.wait([sending])
        failure = sending.exception()
        if isinstance(failure, StoreUnavailable) and accepted.done():
            await self._compensate(driver, task_id, accepted.result().handle, TrackStatus.CANCELLED)
        elif failure is None and not (task := sending.result()).status.terminal and task.handle is not None:
            await self._cancel_remote(driver, task_id, task.handle)
            await _until_done(lambda: self._store.cancel(task_id, _ABANDONED), "cancel", task_id)

    async def _compensate(self, driver: Driver, task_id: str, handle: str | None, status: TrackStatus) -> None:
        """The remote task is cancelled, and the intent, which never got its handle, has ended so."""
        if handle is not None and not await self._cancel_remote(driver, task_id, handle):
            return  # the intent stands, for the fleet to resolve
        await _until_done(lambda: self._store.abandon(task_id, status, End.ABANDONED, _ABANDONED), "abandon", task_id)

    async def _cancel_remote(self, driver: Driver, task_id: str, handle: str) -> bool:
        async def cancel() -> None:
            try:
                async with asyncio.timeout(self._options.call_ms / 1000):
                    await driver.cancel(handle)
            except RemoteGone:
                pass

        return await _until_done(cancel, "cancel on its server", task_id)

    async def _see_to(self, work: Coroutine[Any, Any, Any]) -> None:
        """The work is done, or goes on in the background after a bounded time. No cancel interrupts it."""
        task = self._in_background(work)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.compensation_ms / 1000
        with anyio.CancelScope(shield=True):
            while not task.done() and (left := deadline - loop.time()) > 0:
                try:
                    await asyncio.wait([task], timeout=left)
                except asyncio.CancelledError:  # a second one: the first is on its way out already
                    continue

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._seen_to)
        return task

    def _seen_to(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.error("What a failed submit had started could not be cancelled: %s", type(exc).__name__)

    async def aclose(self) -> None:
        """What goes on in the background is done, or is left to the fleet after a bounded time."""
        if self._background:
            _, left = await asyncio.wait(self._background, timeout=self._options.compensation_ms / 1000)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)


def _doubt(server: str) -> str:
    return (
        f"Whether {server} took the call is not known, and it does not say that it keeps to idempotency keys: "
        "look there, and cancel the task here when it is not running"
    )


async def _until_done(
    work: Callable[[], Awaitable[object]], what: str, task_id: str, *, attempts: int = len(_AGAIN_S)
) -> bool:
    """The work has succeeded; False: it was refused, or the attempts are used up."""
    for wait_s in _AGAIN_S[:attempts]:
        try:
            await work()
        except RemoteRefused as exc:
            log.warning("Task %s: %s was refused (%s)", label(task_id), what, type(exc).__name__)
            return False
        except (MCPTasksError, TimeoutError) as exc:
            log.warning("Task %s: %s failed (%s), and is tried again", label(task_id), what, type(exc).__name__)
            await asyncio.sleep(wait_s)
        else:
            return True
    return False
