"""What a tool can be made of, and what can go on in it."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
from mcp.server.mcpserver import Context

from mcptasks import step
from tests.support.kinds.shelf import Shelf

SHELF: Final = Shelf("Functions")
P = ParamSpec("P")
R = TypeVar("R")


@SHELF.tool("a sync function", {"a": 1})
def sync_add(a: int, b: int = 1) -> dict[str, int]:
    return {"sum": a + b}


@SHELF.tool("a sync function runs beside the event loop")
def beside_the_loop() -> bool:
    return threading.current_thread() is threading.main_thread()


def shouting(fn: Callable[P, R]) -> Callable[P, str]:
    """A decorator as everybody writes them."""

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> str:
        return str(fn(*args, **kwargs)).upper()

    return wrapper


@SHELF.tool("a decorated function", {"name": "ada"})
@shouting
def shouted(name: str) -> str:
    return f"hello {name}"


class Greeter:
    """A tool as an object."""

    def __init__(self, word: str) -> None:
        self._word = word

    def method(self, name: str) -> str:
        """A tool as a method."""
        return f"{self._word} dear {name}"

    @staticmethod
    def fixed(name: str) -> str:
        """A tool as a static method."""
        return f"well, {name}"


SHELF.tool("a method, made durable in its class", {"name": "Ada"})(Greeter("Hello").method)
SHELF.tool("a static method", {"name": "Ada"})(Greeter.fixed)
SHELF.tool("a lambda", {"name": "Ada"}, name="in_a_lambda")(lambda name: f"hi {name}")


@SHELF.tool("branches in asyncio.gather")
async def in_gather() -> list[int]:
    async def branch(number: int) -> int:
        await asyncio.sleep(0)
        return number

    return list(await asyncio.gather(*(branch(n) for n in range(5))))


@SHELF.tool("an anyio task group")
async def in_task_group() -> int:
    done: list[int] = []

    async def branch(number: int) -> None:
        await anyio.lowlevel.checkpoint()
        done.append(number)

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(branch, number)
    return sum(done)


@SHELF.tool("threads of its own")
async def in_threads() -> list[int]:
    first = await asyncio.to_thread(pow, 2, 10)
    second = await anyio.to_thread.run_sync(pow, 3, 3)
    with ThreadPoolExecutor(1) as pool:
        third = await asyncio.get_running_loop().run_in_executor(pool, pow, 5, 2)
    return [first, second, third]


@SHELF.tool("back to the loop from a thread")
def from_thread() -> str:
    async def on_the_loop() -> str:
        await anyio.lowlevel.checkpoint()
        return "from the loop"

    return anyio.from_thread.run(on_the_loop)


@SHELF.tool("a loop of its own in a sync tool")
def own_loop() -> str:
    async def inner() -> str:
        await asyncio.sleep(0)
        return "own loop"

    return asyncio.run(inner())


@SHELF.tool("time-outs and scopes that end in time")
async def in_time() -> str:
    with anyio.move_on_after(30) as scope:
        async with asyncio.timeout(30):
            await anyio.lowlevel.checkpoint()
    return "late" if scope.cancelled_caught else "in time"


@SHELF.tool("a scope that moves on")
async def moves_on() -> str:
    with anyio.move_on_after(0.01) as scope:
        await anyio.sleep_forever()
    return "moved on" if scope.cancelled_caught else "never"


@SHELF.tool("work that goes on after the answer")
async def left_running() -> str:
    async def later() -> None:
        await asyncio.sleep(0)

    _keep.add(task := asyncio.get_running_loop().create_task(later()))
    task.add_done_callback(_keep.discard)
    return "answered"


_keep: Final = set[asyncio.Task[None]]()


@SHELF.tool("state in the module")
async def module_state() -> bool:
    _seen.append("call")
    return bool(_seen)


_seen: Final[list[str]] = []


@SHELF.tool("steps", {"items": [1, 2, 3]})
async def in_steps(items: list[int]) -> int:
    return sum([await step("double", lambda n=n: n * 2) for n in items])


@SHELF.tool("a tool that asks what it need not", {"sure": True})
async def asks_if_unsure(sure: bool, ctx: Context[Any]) -> str:
    return "sure" if sure else str(await ctx.elicit_url("Sure?", "https://example.com", "e"))
