"""Branches of a tool that go on side by side and still do the same in every run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any, TypeVar, overload

import anyio

from mcptasks.runtime.current import current_run
from mcptasks.runtime.lanes import current_lane, lane

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
T = TypeVar("T")


@overload
async def gather(a: Awaitable[A], b: Awaitable[B], /) -> tuple[A, B]: ...
@overload
async def gather(a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /) -> tuple[A, B, C]: ...
@overload
async def gather(a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], d: Awaitable[D], /) -> tuple[A, B, C, D]: ...
@overload
async def gather(*branches: Awaitable[T]) -> tuple[T, ...]: ...
async def gather(*branches: Awaitable[Any]) -> tuple[Any, ...]:
    """Every branch has come to its end; their results in the order of the arguments.

    In a task each branch numbers its steps, sleeps and questions by itself, by its place among the arguments: two
    branches may use one key, and it does not matter which is faster this time. Questions of several branches are open
    together. Outside a task it is `asyncio.gather` but for the errors.

    Raises:
        BaseException: the error of the first branch (by the order of the arguments) that had one. All the others have
            ended by then: a step is not cut off in the middle because its sibling failed, and which error it is does
            not depend on who was faster.
    """
    group = None if current_run.get() is None else current_lane().gather()
    tasks = [
        asyncio.ensure_future(_branch(branch, None if group is None else f"{group}.{n}"))
        for n, branch in enumerate(branches)
    ]
    try:
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        await _stopped(tasks)
        raise
    finally:
        for branch in branches:
            # One that was cancelled before it began is nobody's any more.
            if inspect.iscoroutine(branch):
                branch.close()
    for task in tasks:
        if (error := task.result()[1]) is not None:
            raise error
    return tuple(task.result()[0] for task in tasks)


async def _branch(branch: Awaitable[T], path: str | None) -> tuple[T, None] | tuple[None, BaseException]:
    try:
        if path is None:
            return await branch, None
        with lane(path):
            return await branch, None
    except asyncio.CancelledError:
        raise
    except BaseException as exc:  # an exit must end the tool, not the event loop that it shares
        return None, exc


async def _stopped(tasks: list[asyncio.Task[Any]]) -> None:
    """All of them have ended, however often the caller is cancelled meanwhile."""
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        try:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(running)
        except asyncio.CancelledError:
            continue
