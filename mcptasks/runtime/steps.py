"""Durable steps: a piece of a tool that runs once per task, however often the tool is run from the top."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, overload

from mcptasks.errors import MCPTasksError
from mcptasks.runtime.current import current_run
from mcptasks.runtime.patience import patiently
from mcptasks.wire import dumps

P = ParamSpec("P")
T = TypeVar("T")


class ClaimLost(MCPTasksError):
    """The run lost its claim while it worked; whatever it does now does not count."""


@overload
async def step(key: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
@overload
async def step(key: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
async def step(key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The function's result is recorded under the key, and every later pass of the tool gets the record back.

    The result must be JSON (dict, list, str, int, float, bool, None) and is returned as JSON gives it back, in the
    first pass too. The same key may be used again in one pass: the second use is a second step. At least once: a worker
    killed inside `fn`, or between its end and the record, runs it again; make it idempotent there. An exception is not
    recorded. A sync `fn` runs on the event loop; give long ones to `anyio.to_thread`. Outside a task `fn` simply runs.

    Raises:
        BadPayload: the result is not JSON; the work was done, but cannot be recorded.
        ClaimLost: this run may not record anything any more.
    """
    run = current_run.get()
    if run is None:
        return await _call(fn, *args, **kwargs)
    name = run.replay.step_name(key)
    if name in run.replay.journal.steps:
        return run.replay.journal.steps[name]
    value = dumps(await _call(fn, *args, **kwargs), f"The result of step {key!r}")
    word, stands = await patiently(lambda: run.store.step(run.claim, name, value), f"Step {key!r}")
    if word not in ("RECORDED", "KNOWN"):
        raise ClaimLost(f"Step {key!r} is not recorded: this run lost its task ({word})")
    return json.loads(stands)


async def _call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = fn(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result
