"""Durable steps: a piece of a tool that runs once per task, however often the tool is run from the top."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ParamSpec, TypeVar, overload

import anyio
import anyio.to_thread

from mcptasks.errors import BadPayload, ClaimLost, MCPTasksError, ReplayMismatch, TooLarge
from mcptasks.runtime.current import CurrentRun, current_run
from mcptasks.runtime.lanes import current_lane, lane
from mcptasks.runtime.patience import patiently
from mcptasks.runtime.replay import Call
from mcptasks.runtime.result_types import ResultType
from mcptasks.runtime.retry import Retry
from mcptasks.strict_json import clean, dumps

P = ParamSpec("P")
T = TypeVar("T")
Errors = type[Exception] | tuple[type[Exception], ...]


class StepFailed(MCPTasksError):
    """A step ended with an error that `record_errors` names: it is recorded, and raised so in every run.

    The first time `__cause__` is the error itself.
    """

    def __init__(self, step: str, error: str, message: str) -> None:
        super().__init__(f"Step {step!r} failed: {message}")
        #: The step's key.
        self.step = step
        #: The error's class, as "module:qualname".
        self.error = error
        #: The error's text.
        self.message = message


@overload
async def step(key: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
@overload
async def step(key: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
@overload
async def step(
    key: str,
    fn: Callable[..., Any],
    /,
    *args: Any,
    result_type: type[T],
    record_errors: Errors = (),
    **kwargs: Any,
) -> T: ...
@overload
async def step(key: str, fn: Callable[..., Awaitable[T]], /, *args: Any, record_errors: Errors, **kwargs: Any) -> T: ...
@overload
async def step(key: str, fn: Callable[..., T], /, *args: Any, record_errors: Errors, **kwargs: Any) -> T: ...
async def step(
    key: str,
    fn: Callable[..., Any],
    /,
    *args: Any,
    result_type: Any = None,
    record_errors: Errors = (),
    **kwargs: Any,
) -> Any:
    """The function's result is recorded under the key, and every later run of the tool gets the record back.

    The same key may be used again: the second use is a second step, so that a loop may use one key. An async `fn` runs
    on the event loop, a sync one in a thread. The result is JSON (dict, list, str, int, float, bool, None), or of the
    type that `result_type` or the return annotation of `fn` names: anything that pydantic can write and read. It comes
    back from its record, in the first run too. At least once: a worker killed, or a run stopped, inside `fn` or between
    its end and the record, runs it again; `idempotency_key(key)` is the same then. Outside a task `fn` simply runs.

    Args:
        key: the step's name, unique among the tool's different steps.
        fn: the function, called with `args` and `kwargs`.
        result_type: the result's type, where the function's annotation does not say it.
        record_errors: errors that are an outcome, too: recorded, and raised as `StepFailed` in this run and every later
            one. Any other error is not recorded: the next run does the step again. A `Retry` never is.

    Raises:
        StepFailed: an error that `record_errors` names.
        BadPayload: the result is neither JSON nor of its type; the work was done, but cannot be recorded.
        TooLarge: the result is over `settings.result_max`; likewise.
        ClaimLost: this run may not record anything any more.
        ConfigurationError: pydantic cannot restore `result_type`.
    """
    work = functools.partial(fn, *args, **kwargs)
    kind = ResultType.of(fn, result_type)
    if (run := current_run.get()) is None:
        try:
            return await _call(work)
        except record_errors as exc:
            raise _failure(key, exc) from exc
    try:
        call = run.replay.step(current_lane(), key)
        if (recorded := run.replay.journal.steps.get(call.name)) is not None:
            return _outcome(key, kind, recorded)
    except (ReplayMismatch, BadPayload) as exc:
        await run.channel.give_up(str(exc))
    with run.channel.working():
        return await _Step(run, call, key, kind, record_errors).take(work)


class _Step:
    """One step that has no record yet."""

    def __init__(self, run: CurrentRun, call: Call, key: str, kind: ResultType, errors: Errors) -> None:
        self._run, self._call, self._key, self._kind, self._errors = run, call, key, kind, errors
        #: The run is to stop, and this step, which cannot be stopped just now, is still to be recorded.
        self._stop: asyncio.CancelledError | None = None

    async def take(self, work: Callable[[], Any]) -> Any:
        """The step is done and recorded; its outcome."""
        try:
            outcome = await self._do(work)
        except Exception as exc:
            if self._stop is None:
                raise
            raise self._stop from exc
        if self._stop is not None:
            raise self._stop
        return outcome

    async def _do(self, work: Callable[[], Any]) -> Any:
        what = f"The result of step {self._key!r}"
        try:
            with lane(current_lane().inside(self._call.name)):
                value = await (work() if _is_async(work) else self._in_a_thread(work))
        except self._errors as exc:
            if isinstance(exc, Retry):
                raise
            failure = _failure(self._key, exc)
            await self._record("error", dumps({"type": failure.error, "message": clean(failure.message)}, what))
            raise failure from exc
        text = self._kind.write(value, what)
        limit = self._run.store.settings.result_max
        if len(text) > limit:
            raise TooLarge(what, len(text), limit, "MCPTASKS_RESULT_MAX")
        return _outcome(self._key, self._kind, await self._record("result", text))

    async def _in_a_thread(self, work: Callable[[], Any]) -> Any:
        value = await self._unbroken(anyio.to_thread.run_sync(work))
        if not inspect.isawaitable(value):
            return value
        if self._stop is not None:
            raise self._stop
        return await value

    async def _record(self, word: str, text: str) -> dict[str, Any]:
        """What stands in the record now."""
        run, call = self._run, self._call
        value = f'{{"at":"{call.place}","{word}":{text}}}'
        answer = patiently(lambda: run.store.step(run.claim, call.name, value), f"Step {self._key!r}")
        word, stands = await self._unbroken(answer)
        if word not in ("RECORDED", "KNOWN"):
            raise ClaimLost(f"Step {self._key!r} is not recorded: this run lost its task ({word})")
        run.channel.step_done()
        return json.loads(stands)

    async def _unbroken(self, work: Awaitable[T]) -> T:
        """The result of what cannot be stopped half-way: a thread, a write. A stop that comes meanwhile waits."""
        task = asyncio.ensure_future(work)
        while not task.done():
            try:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait({task})
            except asyncio.CancelledError as stop:
                self._stop = stop
        return task.result()


def _outcome(key: str, kind: ResultType, record: Mapping[str, Any]) -> Any:
    if (error := record.get("error")) is not None:
        raise StepFailed(key, error["type"], error["message"])
    return kind.read(json.dumps(record["result"]), f"The record of step {key!r}")


def _failure(key: str, exc: Exception) -> StepFailed:
    return StepFailed(key, f"{type(exc).__module__}:{type(exc).__qualname__}", str(exc))


def _is_async(work: Any) -> bool:
    while isinstance(work, functools.partial):
        work = work.func
    return inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(type(work).__call__)


async def _call(work: Callable[[], Any]) -> Any:
    value = await (work() if _is_async(work) else anyio.to_thread.run_sync(work))
    return await value if inspect.isawaitable(value) else value
