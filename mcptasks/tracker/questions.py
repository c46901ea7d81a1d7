"""Puts the questions of tracked tasks to a registered handler, each once, and sends its answers.

It is a consumer like any other, but for its time: a delivery lasts until no question of its task is open, however long
a person takes, and holds its lease meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mcptasks.answers import checked
from mcptasks.errors import BadAnswer, StoreUnavailable
from mcptasks.model import label
from mcptasks.store.changes import Change
from mcptasks.tracker.errors import Unhandled
from mcptasks.tracker.intervals import after_refusal
from mcptasks.tracker.model import Delivery, EventKind, Tracked, checkable
from mcptasks.tracker.stopping import told_to_stop
from mcptasks.tracker.store.store import TrackStore

log: Final = logging.getLogger("mcptasks.tracker")

#: The name of this consumer.
QUESTIONS: Final = "questions"
#: The lease of a delivery, and how often it is held.
LEASE_MS: Final = 30_000
_HOLD_S: Final = 10.0
_STORE_AWAY_S: Final = 1.0

Handler = Callable[[Tracked, str, dict[str, Any]], Awaitable[Any]]
"""Called with the task, the question's key and the question ({"method", "params"}). Returns its answer in the wire
form, or None to leave it to others."""


class Questions:
    """Delivers `input_required` events of one event loop to the handler."""

    def __init__(self, handler: Handler, store: TrackStore) -> None:
        self._handler, self._store = handler, store

    async def serve(self, delivery: Delivery) -> int | None:
        """No question of the task is open that the handler has not been asked. Returns the revision up to which; None:
        another process has the delivery.

        A question that closes meanwhile (answered elsewhere, or its task has ended) takes its handler along: that is
        cancelled, and its late answer is not sent.

        Raises:
            Unhandled: the handler failed; its question is put to it again, the others are answered.
        """
        if delivery.event.kind is not EventKind.INPUT_REQUIRED:
            return delivery.revision
        task_id = delivery.task.task_id
        asked: dict[str, asyncio.Task[None]] = {}
        changed = asyncio.Event()

        def hear(_: Change) -> None:
            changed.set()

        self._store.changes.follow([task_id], hear)
        try:
            while True:
                changed.clear()
                try:
                    task = await self._store.read(task_id)
                    held = await self._store.hold(delivery, LEASE_MS)
                except StoreUnavailable:
                    # A person who is being asked does not notice; a lease that has run out is seen afterwards.
                    await asyncio.sleep(_STORE_AWAY_S)
                    continue
                if task is None:
                    return delivery.revision
                if held == "STALE":
                    return None
                await self._withdraw(asked, task)
                for key, question in task.questions.items():
                    if key not in asked:
                        asked[key] = asyncio.ensure_future(self._ask(task, key, question, asked))
                        asked[key].add_done_callback(lambda _: changed.set())
                if all(one.done() for one in asked.values()):
                    self._check(asked)
                    return task.revision
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_HOLD_S):
                        await changed.wait()
        finally:
            self._store.changes.leave([task_id], hear)
            await _stop(asked)

    async def _ask(
        self, task: Tracked, key: str, question: dict[str, Any], asked: Mapping[str, asyncio.Task[None]]
    ) -> None:
        """The handler's answer is stored. One that fails is asked again here while others are being asked."""
        for failed in itertools.count(1):
            try:
                await self._answered(task, key, question)
            except Exception as exc:
                if all(one.done() for other, one in asked.items() if other != key):
                    raise
                # Its delivery lasts as long as theirs, which may be hours.
                log.warning(
                    "Task %s: the handler failed (%s), and is asked again", label(task.task_id), type(exc).__name__
                )
                await asyncio.sleep(after_refusal(failed) / 1000)
            else:
                return

    async def _answered(self, task: Tracked, key: str, question: dict[str, Any]) -> None:
        try:
            answer = await self._handler(task, key, question)
        except asyncio.CancelledError:
            if told_to_stop():
                raise
            raise Unhandled("the handler failed (CancelledError)") from None
        if answer is None:
            return
        with_it = checked({key: answer}, {key: question}) if checkable(question) else {key: answer}
        word = await self._store.answer(task.task_id, with_it)
        log.info("Task %s: the handler's answer: %s", label(task.task_id), word)

    async def _withdraw(self, asked: dict[str, asyncio.Task[None]], task: Tracked) -> None:
        """Handlers of questions that are not open any more have been told to stop."""
        over = {key: one for key, one in asked.items() if key not in task.questions and not one.done()}
        await _stop(over)

    def _check(self, asked: dict[str, asyncio.Task[None]]) -> None:
        for one in asked.values():
            if one.cancelled() or (exc := one.exception()) is None:
                continue
            if isinstance(exc, StoreUnavailable | Unhandled):
                raise exc
            if isinstance(exc, BadAnswer):
                raise Unhandled(str(exc)) from exc
            raise Unhandled(f"the handler failed ({type(exc).__name__})") from exc


async def _stop(asked: dict[str, asyncio.Task[None]]) -> None:
    running = [one for one in asked.values() if not one.done()]
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)
