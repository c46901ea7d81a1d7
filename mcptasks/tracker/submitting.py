"""Submits a task to its server: the intent first, then the call, then the handle, before `submit` returns.

There is no `tasks/list`: a handle that is lost can never be found again. So whatever fails in between ends in a task
that is tracked, in a remote task that is cancelled, or in an intent that the fleet resolves.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Final, Literal, Protocol

from mcptasks.errors import StoreUnavailable, UnknownTask
from mcptasks.model import label
from mcptasks.observe.logs import about
from mcptasks.tracker.compensation import Compensation
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
    RemoteRefused,
    RemoteUnavailable,
)
from mcptasks.tracker.store.polls import Polled
from mcptasks.tracker.store.store import TrackStore
from mcptasks.tracker.store.submits import TrackAnswer

log: Final = logging.getLogger("mcptasks.tracker")


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
        self._amends = Compensation(store, options)

    async def submit(self, intent: Intent) -> Tracked:
        """The task is tracked, or has ended because its server answered at once; or the intent's id is known already.

        Raises:
            ConfigurationError: there is no such server.
            KeyConflict: the id belongs to another call.
            RemoteRefused, ProtocolBroken: as the server said; the task has failed, and nothing runs.
            RemoteUnavailable: the server was not reached, and nothing runs; the task has failed, or, where the caller
                can come again, there is none.
            SubmitUncertain: the call was sent, and no answer came.
            AlreadyTracked: the server's handle is that of another tracked task.
            StoreUnavailable: nothing was sent; or the handle could not be stored, and the remote task is cancelled.
        """
        with about(intent.task_id, intent.tool):
            return await self._submitted(intent)

    async def _submitted(self, intent: Intent) -> Tracked:
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
            await self._amends.see_to(self._amends.withdraw(driver, intent.task_id, sending, accepted))
            raise
        except StoreUnavailable:
            if accepted.done() and not accepted.cancelled() and accepted.exception() is None:
                handle = accepted.result().handle
                await self._amends.see_to(self._amends.compensate(driver, intent.task_id, handle, TrackStatus.FAILED))
            raise

    async def _intend(self, intent: Intent) -> Literal["INTENDED", "EXISTS", "CONFLICT"]:
        storing = asyncio.get_running_loop().create_task(self._store.intend(intent, secrets.token_hex(8)))
        try:
            # Never cancelled either: whether there is an intent, which the fleet would send one day, must be known.
            return await asyncio.shield(storing)
        except asyncio.CancelledError:
            await self._amends.see_to(self._amends.take_back(intent, storing))
            raise
        except StoreUnavailable:
            # It may be stored all the same, and the fleet would send what its caller was told has failed. With a key of
            # his own he comes again, and finds it.
            if not intent.repeatable:
                self._amends.in_background(self._amends.forget(intent.task_id))
            raise

    def _spawn_sending(
        self, driver: Driver, intent: Intent, accepted: asyncio.Future[Accepted]
    ) -> asyncio.Task[Tracked]:
        async def send() -> Tracked:
            said = await self._call(driver, intent)
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
            intent = Intent(
                task_id=task.task_id, server=task.server, tool=task.tool, arguments=claim.arguments, key=claim.key
            )
            said = await self._call(driver, intent, again=True)
            await self._keep(driver, task.task_id, task.server, said)
        except (SubmitUncertain, RemoteUnavailable) as exc:
            retry_after_ms = exc.retry_after_ms if isinstance(exc, RemoteUnavailable) else None
            next_ms = after_error(task.failures + 1, pace_ms=0, retry_after_ms=retry_after_ms)
            lost = Polled(seen=None, error_text=cut(str(exc)), next_ms=next_ms)
            await self._store.observe(task.task_id, claim.token, lost)
        except (RemoteRefused, ProtocolBroken, AlreadyTracked) as exc:
            log.info("Task %s: recovered, and has failed (%s)", label(task.task_id), type(exc).__name__)

    async def _call(self, driver: Driver, intent: Intent, *, again: bool = False) -> Accepted:
        """The server's answer. What it refused has ended as failed; what it surely has not got too, or is gone.

        The time limit holds twice: for getting to the server (its greeting, a turn), and for the call. So whatever runs
        out of time in a queue of this process was not sent, and whatever was sent has had its whole time.
        """
        task_id, loop, limit_s = intent.task_id, asyncio.get_running_loop(), self._options.call_ms / 1000
        sent = False
        try:
            async with asyncio.timeout(limit_s) as limit:

                def on_send() -> None:
                    nonlocal sent
                    sent = True
                    limit.reschedule(loop.time() + limit_s)

                accepted = await driver.submit(intent.tool, intent.arguments, key=intent.key, on_send=on_send)
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
                await self._unsent(intent, exc)
                raise
            raise await self._uncertain(driver, task_id) from exc
        except TimeoutError as exc:
            if not sent:
                late = RemoteUnavailable(
                    f"Task {label(task_id)} was not sent: its turn at server {intent.server!r} did not come within "
                    f"{limit_s:g} s",
                    sent=False,
                )
                if not again:
                    await self._unsent(intent, late)
                raise late from exc
            raise await self._uncertain(driver, task_id) from exc
        if accepted.handle is not None and not 0 < len(accepted.handle) <= HANDLE_MAX:
            exc = ProtocolBroken(
                f"the server's task id has {len(accepted.handle):,} characters; the limit is {HANDLE_MAX:,}",
                handle=accepted.handle or None,
            )
            await self._broken(driver, task_id, exc)
            raise exc
        return accepted

    async def _unsent(self, intent: Intent, why: RemoteUnavailable) -> None:
        if intent.repeatable:
            await self._store.retract(intent.task_id)
        else:
            await self._store.abandon(intent.task_id, TrackStatus.FAILED, End.REFUSED, cut(str(why)))

    async def _broken(self, driver: Driver, task_id: str, exc: ProtocolBroken) -> None:
        seen = broken(str(exc))
        if exc.handle is not None:
            await self._amends.see_to(self._amends.cancel_remote(driver, task_id, exc.handle))
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
            await self._amends.see_to(self._amends.cancel_remote(driver, task_id, handle))

    def judge(self, said: Accepted) -> Observation:
        """What is to be stored of the first word about a task."""
        return judged(said.snapshot, result_max=self._options.result_max)

    async def _read(self, task_id: str) -> Tracked:
        task = await self._store.read(task_id)
        if task is None:
            raise UnknownTask(f"Task {label(task_id)} is gone: its time was up.")
        return task

    async def aclose(self) -> None:
        """What goes on in the background is done, or is left to the fleet after a bounded time."""
        await self._amends.aclose()


def _doubt(server: str) -> str:
    return (
        f"Whether {server} took the call is not known, and it does not say that it keeps to idempotency keys: "
        "look there, and cancel the task here when it is not running"
    )
