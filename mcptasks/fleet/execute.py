"""One Celery message: claim the task, run it, store how it ended."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final

from mcptasks.errors import StoreUnavailable
from mcptasks.fleet.isolation import LoneProcess, wants_isolation
from mcptasks.fleet.portal import Portal
from mcptasks.model import Claim, Hint, Reason, Status, label
from mcptasks.observe import tracing
from mcptasks.observe.logs import about
from mcptasks.runtime.interrupt import Interrupt
from mcptasks.runtime.outcome import (
    Cancelled,
    Completed,
    Deferred,
    Failed,
    Interrupted,
    Outcome,
    Parked,
    Retrying,
    Sleeping,
    Superseded,
    error,
    worker_lost,
)
from mcptasks.runtime.patience import patiently
from mcptasks.runtime.runner import Run
from mcptasks.runtime.watchdog import Stop
from mcptasks.store.base import Next
from mcptasks.store.runs import new_nonce
from mcptasks.strict_json import dumps

log: Final = logging.getLogger("mcptasks.fleet")

#: What a message came to when it was not a run that ended.
STUCK: Final = "stuck"

#: The words of runs that a trace shows as errors.
_ERRORS: Final = frozenset({"failed", "lost", "stale", "unreleased"})


async def perform(portal: Portal, hint: Hint, worker: str) -> str:
    """The message is done: the task was run as far as it goes, or need not be. Returns the word that Flower shows.

    Raises:
        StoreUnavailable: the store does not answer and there is no time to wait for it; the task stays queued, or its
            lease runs out, and the sweeper sends its message again.
    """
    with about(hint.task_id, hint.tool):
        return await _perform(portal, hint, worker)


async def _perform(portal: Portal, hint: Hint, worker: str) -> str:
    if portal.shutdown.draining:
        # Received just before the worker was told to stop; whoever consumes now gets it.
        portal.dispatcher.send(hint)
        return "draining"
    # The store may have answered into a connection that was gone: it knows the wish again by its nonce. Who goes down
    # does not wait, since the sweeper sends the message again.
    nonce, start_ns = new_nonce(), tracing.began_ns()
    claim = await patiently(
        lambda: portal.store.claim(hint, worker, nonce),
        f"Task {label(hint.task_id)}",
        unless=lambda: portal.shutdown.draining,
    )
    if isinstance(claim, Next):
        return _dropped(portal, hint, claim)
    with tracing.processing(hint, claim, start_ns) as span:
        if portal.lone_app is not None and wants_isolation(claim):
            word = await _perform_alone(portal, claim, portal.lone_app)
        else:
            word = await perform_claimed(portal, claim)
        tracing.ended(span, word, word if word in _ERRORS else None)
    return word


async def perform_claimed(portal: Portal, claim: Claim) -> str:
    """The claimed run has come to an end, which is stored."""
    run = Run(portal.mcp, portal.lifespan, portal.store, claim, portal.clock)
    with portal.holding(run):
        try:
            outcome = await _outcome(run)
            word = await _store(portal, claim, outcome)
        except asyncio.CancelledError:
            # The worker is going down in the middle of the run: another one continues.
            await _give_back(portal, claim)
            raise
    log.info("Task %s: %s: %s (run %d, attempt %d)", *_who(claim), word, claim.token, claim.record.attempt)
    portal.leave_behind(run)
    return f"{STUCK}: {word}" if run.leftover is not None else word


async def leave(portal: Portal, run: Run) -> None:
    """The task has ended without its tool, which holds this process's loop; a process that can be replaced is."""
    word = await _store(portal, run.claim, run.left())
    log.warning("Task %s: %s: %s; its tool goes on", *_who(run.claim), word)
    if portal.expendable:
        logging.shutdown()
        os._exit(1)


async def _outcome(run: Run) -> Outcome:
    """The run's outcome; an error that nobody foresaw is one too, because a task must end whatever we did wrong."""
    try:
        with tracing.executing(run.claim.record.tool):
            return await run.execute()
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("Task %s: an error of mcptasks itself ended the run", label(run.claim.task_id))
        return Failed(error(-32603, "The task failed for a reason of the server's own; its log says more"))


async def _perform_alone(portal: Portal, claim: Claim, app: str) -> str:
    """The run has come to an end in a process of its own; this one keeps the claim for it."""
    # Never executed here: it is what the keeper renews, and tells of a shutdown or a lost claim.
    run = Run(portal.mcp, portal.lifespan, portal.store, claim)
    loop = asyncio.get_running_loop()
    with portal.holding(run):
        lone = await LoneProcess.start(app, claim)
        ended, stopped = loop.create_task(lone.word()), loop.create_task(_must_end(run.interrupt))
        try:
            await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                word = ended.result() or await _store(portal, claim, worker_lost(claim.record.attempt))
            elif stopped.result() is Stop.LOST:
                if (word := await lone.last_word()) is None:
                    return "lost"
            else:
                lone.let_go()
                word = await ended or await _give_back(portal, claim)
        except asyncio.CancelledError:
            # First it ends, then another one may begin.
            await lone.kill()
            await _give_back(portal, claim)
            raise
        finally:
            stopped.cancel()
            ended.cancel()
            await lone.kill()
    log.info("Task %s: %s: %s (run %d, attempt %d)", *_who(claim), word, claim.token, claim.record.attempt)
    return word


async def _must_end(interrupt: Interrupt) -> Stop:
    """Cancels reach the lone process by themselves; a shutdown or a lost claim is this process's to carry out."""
    while not (kinds := {Stop.SHUTDOWN, Stop.LOST}.intersection(interrupt.kinds)):
        await interrupt.wait(len(interrupt.kinds))
    return Stop.LOST if Stop.LOST in kinds else Stop.SHUTDOWN


def _who(claim: Claim) -> tuple[str, str]:
    return label(claim.task_id), claim.record.tool


def _dropped(portal: Portal, hint: Hint, answer: Next) -> str:
    """A message that found nothing to run: a duplicate, a late one, or the re-check of a task that still waits."""
    if answer.outcome in ("PARKED", "EARLY"):
        if answer.hint is not None:
            portal.dispatcher.send(answer.hint)
        return "parked" if answer.outcome == "PARKED" else answer.detail
    level = logging.ERROR if answer.outcome == "NEWER" else logging.INFO
    log.log(level, "Task %s: message for run %d dropped: %s", label(hint.task_id), hint.run, _why(answer))
    return answer.outcome.lower()


def _why(answer: Next) -> str:
    text = {
        "HELD": "its owner is",
        "STALE": "the latest run is",
        "TERMINAL": "it has ended as",
        "NEWER": "upgrade this worker; the record has schema",
    }
    return f"{answer.outcome} ({text[answer.outcome]} {answer.detail})" if answer.outcome in text else answer.outcome


async def _store(portal: Portal, claim: Claim, outcome: Outcome) -> str:
    match outcome:
        case Parked(hint):
            if hint is not None:
                portal.dispatcher.send(hint)
            return "parked"
        case Sleeping(hint):
            if hint is not None:
                portal.dispatcher.send(hint)
            return "sleeping"
        case Superseded(word):
            return word.lower()
        case Interrupted():
            return await _give_back(portal, claim)
        case Retrying(message, failure):
            return await _retry(portal, claim, message, dumps(failure, "The error"))
        case Deferred():
            return await _defer(portal, claim, outcome)
        case Completed(payload):
            end, reason, message = Status.COMPLETED, Reason.COMPLETED, ""
        case Failed(failure, reason):
            end, message = Status.FAILED, str(failure["message"])
            payload = dumps(failure, "The error")
        case Cancelled(reason):
            end, payload = Status.CANCELLED, ""
            message = "Cancelled" if reason is Reason.CANCELLED else "Cancelled; the tool did not stop in time"
    with tracing.transition("finish"):
        refusal = await patiently(
            lambda: portal.store.finish(claim, end, reason, message=message, payload=payload),
            f"Task {label(claim.task_id)}",
        )
    if refusal != "FINISHED":
        log.warning("Task %s: %s: its end is not stored: %s", *_who(claim), refusal)
        return refusal.lower()
    return end.value


async def _retry(portal: Portal, claim: Claim, message: str, error: str) -> str:
    with tracing.transition("retry"):
        answer = await patiently(lambda: portal.store.retry(claim, message, error), f"Task {label(claim.task_id)}")
    if answer.hint is not None:
        portal.dispatcher.send(answer.hint)
    return {"EXHAUSTED": "failed"}.get(answer.outcome, answer.outcome.lower())


async def _defer(portal: Portal, claim: Claim, put_off: Deferred) -> str:
    with tracing.transition("defer"):
        answer = await patiently(
            lambda: portal.store.defer(claim, put_off.waiting, put_off.error), f"Task {label(claim.task_id)}"
        )
    log.warning("Task %s: %s: %s: %s", *_who(claim), answer.outcome, put_off.why)
    return {"EXHAUSTED": "failed"}.get(answer.outcome, answer.outcome.lower())


async def _give_back(portal: Portal, claim: Claim) -> str:
    try:
        with tracing.transition("release"):
            answer = await portal.store.release(claim)
    except StoreUnavailable as exc:
        log.warning("Task %s: its claim is not given back, the lease will tell: %s", label(claim.task_id), exc)
        return "unreleased"
    if answer.hint is not None:
        portal.dispatcher.send(answer.hint)
    return answer.outcome.lower()
