"""One pass over one due task: its cancel and its answers are delivered, its server is asked, and all that is recorded.

No phase stops a later one, and no task another: whatever goes wrong is an error of this poll, which backs off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from mcptasks.errors import ConfigurationError, StoreUnavailable
from mcptasks.model import label
from mcptasks.observe.logs import about
from mcptasks.tracker.intervals import after_error, pace
from mcptasks.tracker.limits import broken, cut, judged, lost
from mcptasks.tracker.model import Claimed, Observation, TrackStatus
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.remote import Driver, ProtocolBroken, RemoteGone, RemoteRefused, RemoteUnavailable, Snapshot
from mcptasks.tracker.stopping import told_to_stop
from mcptasks.tracker.store.polls import Polled
from mcptasks.tracker.store.store import TrackStore
from mcptasks.tracker.submitting import DriverSource, Submitter

log: Final = logging.getLogger("mcptasks.tracker")

T = TypeVar("T")

#: A task of a server that is not configured here waits for a tracker that knows it.
_UNKNOWN_SERVER_MS: Final = 30_000
#: While the store is away a poll's outcome waits: these are far below the claim's lease.
_RECORD_AGAIN_S: Final = (0.2, 1, 3, 5, 5)
#: A claim that is given back at a stop is worth that long.
_GIVE_BACK_S: Final = 2.0
#: Servers and tasks whose junk hints were warned of.
_WARNED_MAX: Final = 10_000


class Failure(Exception):
    """A call told nothing about the task."""

    def __init__(self, text: str, retry_after_ms: int | None = None) -> None:
        super().__init__(text)
        self.retry_after_ms = retry_after_ms


@dataclass
class _Pass:
    """What has become of this poll so far."""

    claim: Claimed
    failures: list[Failure] = field(default_factory=list[Failure])
    cancel: Literal["", "sent", "refused"] = ""
    answered: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    seen: Observation | None = None

    def delivered(self) -> Polled:
        """As it is recorded where it was stopped before its end: due again at once."""
        return Polled(seen=None, next_ms=0, cancel=self.cancel, answered=self.answered, refused=self.refused)

    def polled(self) -> Polled:
        """As it is recorded: the next poll follows from what the server said, or sooner from what failed."""
        seen = self.seen
        if not self.failures:
            assert seen is not None
            return Polled(
                seen=seen, next_ms=seen.next_ms, cancel=self.cancel, answered=self.answered, refused=self.refused
            )
        retry_after_ms = max((failure.retry_after_ms or 0 for failure in self.failures), default=0)
        next_ms = after_error(
            self.claim.task.failures + 1,
            # Only a status that is not known keeps to the server's pace; what is to be delivered does not wait for it.
            pace_ms=self.claim.pace_ms if seen is None else 0,
            retry_after_ms=retry_after_ms,
        )
        return Polled(
            seen=seen,
            error_text=cut(str(self.failures[0])),
            next_ms=next_ms if seen is None else min(next_ms, seen.next_ms),
            cancel=self.cancel,
            answered=self.answered,
            refused=self.refused,
        )


class Poller:
    """Polls for one event loop."""

    def __init__(self, store: TrackStore, servers: DriverSource, options: TrackOptions, submitter: Submitter) -> None:
        self._store, self._servers, self._options, self._submitter = store, servers, options, submitter
        self._warned: set[str] = set()

    async def poll(self, claim: Claimed) -> bool:
        """The task was polled and that is recorded, or its claim is given back. True: that was its end.

        Raises nothing but a cancel.
        """
        with about(claim.task.task_id, claim.task.tool):
            return await self._recorded(claim)

    async def _recorded(self, claim: Claimed) -> bool:
        task_id, so_far = claim.task.task_id, _Pass(claim)
        try:
            return await self._poll(claim, so_far)
        except asyncio.CancelledError:
            await asyncio.shield(self._give_back(so_far))
            raise
        except ConfigurationError as exc:
            self._warn(f"server {claim.task.server}", f"Its tasks wait for a tracker that knows it: {exc}")
            await self._leave(claim, self._store.release(task_id, claim.token, _UNKNOWN_SERVER_MS))
        except StoreUnavailable as exc:
            log.warning("Task %s: its poll is not recorded, and comes again: %s", label(task_id), exc)
        except Exception as exc:  # a bug of ours, or a driver's: this task's, and nobody else's
            log.exception("Task %s: its poll failed", label(task_id))
            so_far.failures.append(Failure(f"the poll failed ({type(exc).__name__})"))
            so_far.seen = None
            await self._leave(claim, self._store.observe(task_id, claim.token, so_far.polled()))
        return False

    async def _poll(self, claim: Claimed, so_far: _Pass) -> bool:
        if claim.task.status is TrackStatus.INTENDED:
            await self._submitter.recover(claim)
            return False
        handle = claim.task.handle
        if handle is None:
            log.error("Task %s has no handle and is not polled", label(claim.task.task_id))
            return False
        driver = self._servers.driver(claim.task.server)
        await self._cancel(driver, handle, so_far)
        await self._answer(driver, handle, so_far)
        await self._look(driver, handle, so_far)
        return await self._record(claim, so_far.polled())

    async def _cancel(self, driver: Driver, handle: str, so_far: _Pass) -> None:
        if not so_far.claim.to_cancel:
            return
        try:
            await self._tell(driver.cancel(handle))
            so_far.cancel = "sent"
        except RemoteGone:
            so_far.cancel = "sent"  # the look says what has become of it
        except RemoteRefused as exc:
            so_far.cancel = "refused"
            log.warning("Task %s: its server refuses to cancel (%s)", label(so_far.claim.task.task_id), exc.code)
        except Failure as exc:
            so_far.failures.append(exc)

    async def _answer(self, driver: Driver, handle: str, so_far: _Pass) -> None:
        answers, loop = so_far.claim.answers, asyncio.get_running_loop()
        if not answers:
            return
        until = loop.time() + self._options.call_ms / 1000
        if not await self._answered(driver, handle, answers, so_far) or len(answers) == 1:
            return
        # One of them is refused, and perhaps the others with it: each for itself, in the time that is left.
        so_far.refused.clear()
        try:
            async with asyncio.timeout_at(until):
                for key, answer in answers.items():
                    await self._answered(driver, handle, {key: answer}, so_far)
        except TimeoutError:
            so_far.failures.append(Failure("there was no time for all answers"))

    async def _answered(self, driver: Driver, handle: str, answers: Mapping[str, Any], so_far: _Pass) -> bool:
        """What became of these answers, delivered together. True: the server refused them."""
        try:
            await self._tell(driver.answer(handle, answers))
            so_far.answered += answers
        except RemoteGone:
            pass
        except RemoteRefused as exc:
            so_far.refused += answers
            log.warning("Task %s: its server refuses an answer (%s)", label(so_far.claim.task.task_id), exc.code)
            return True
        except Failure as exc:
            so_far.failures.append(exc)
        return False

    async def _look(self, driver: Driver, handle: str, so_far: _Pass) -> None:
        try:
            snapshot = await self._call(driver.look(handle))
        except RemoteGone:
            so_far.seen = lost(cancelled=so_far.claim.task.cancel_requested)
        except RemoteRefused as exc:
            so_far.failures.append(Failure(f"the server refused to say ({exc.code}): {exc}"))
        except ProtocolBroken as exc:
            so_far.seen = broken(str(exc))
        except Failure as exc:
            so_far.failures.append(exc)
        else:
            so_far.seen = self._judged(snapshot, so_far)

    def _judged(self, snapshot: Snapshot, so_far: _Pass) -> Observation:
        if pace(snapshot.hint).junk:
            server = so_far.claim.task.server
            self._warn(f"hint {server}", f"Server {server} says no number for its poll interval; it is taken for 5 s")
        # Keys that were answered may be shown for a while: a task that shows only these waits for nobody.
        done = so_far.claim.handled | frozenset(so_far.answered)
        return judged(snapshot, result_max=self._options.result_max, answered=done - frozenset(so_far.refused))

    async def _tell(self, call: Awaitable[None]) -> None:
        """As `_call`, of what asks for no more than a receipt: a garbled one tells nothing about the task."""
        try:
            await self._call(call)
        except ProtocolBroken as exc:
            raise Failure(str(exc)) from exc

    async def _call(self, call: Awaitable[T]) -> T:
        """The call's result.

        Raises:
            RemoteGone, RemoteRefused, ProtocolBroken: what the server said about the task.
            Failure: it told nothing about it.
        """
        try:
            async with asyncio.timeout(self._options.call_ms / 1000):
                return await call
        except (RemoteGone, RemoteRefused, ProtocolBroken):
            raise
        except RemoteUnavailable as exc:
            raise Failure(str(exc), exc.retry_after_ms) from exc
        except TimeoutError as exc:
            raise Failure(f"the server did not answer within {self._options.call_ms / 1000:g} s") from exc
        except asyncio.CancelledError as exc:
            if told_to_stop():
                raise
            raise Failure("the connection was closed meanwhile") from exc
        except Exception as exc:
            log.exception("A driver failed")
            raise Failure(f"the driver failed ({type(exc).__name__})") from exc

    async def _record(self, claim: Claimed, polled: Polled) -> bool:
        task_id = claim.task.task_id
        for wait_s in _RECORD_AGAIN_S:
            try:
                return self._said(task_id, await self._store.observe(task_id, claim.token, polled))
            except StoreUnavailable:
                await asyncio.sleep(wait_s)
        return self._said(task_id, await self._store.observe(task_id, claim.token, polled))

    def _said(self, task_id: str, word: str) -> bool:
        if word != "OBSERVED":
            log.info("Task %s: observe: %s", label(task_id), word)
        return word == "ENDED"

    async def _leave(self, claim: Claimed, work: Awaitable[object]) -> None:
        try:
            await work
        except StoreUnavailable as exc:
            log.warning("Task %s: its claim runs out by itself: %s", label(claim.task.task_id), exc)

    async def _give_back(self, so_far: _Pass) -> None:
        claim, task_id = so_far.claim, so_far.claim.task.task_id
        try:
            async with asyncio.timeout(_GIVE_BACK_S):
                if so_far.cancel or so_far.answered or so_far.refused:
                    # What was delivered is not delivered again by the next tracker.
                    await self._store.observe(task_id, claim.token, so_far.delivered())
                else:
                    await self._store.release(task_id, claim.token, 0)
        except (StoreUnavailable, TimeoutError):
            log.warning("Task %s: its claim runs out by itself", label(claim.task.task_id))

    def _warn(self, once: str, text: str) -> None:
        if once not in self._warned and len(self._warned) < _WARNED_MAX:
            self._warned.add(once)
            log.warning("%s", text)
