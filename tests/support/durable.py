"""What the tests of durable code share: a server of one tool, effects that are counted, a client that says yes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, cast

import redis
from mcp.server.mcpserver import MCPServer

from mcptasks import Tasks
from mcptasks.settings import Settings
from mcptasks.store.keys import Keys
from tests.support.house import House
from tests.support.raw_client import RawClient

ACCEPT: Final = {"action": "accept", "content": {"word": "yes"}}


class Till:
    """Where effects are counted."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.threads: list[threading.Thread] = []

    async def charge(self, what: str = "charge") -> str:
        self.done.append(what)
        self.threads.append(threading.current_thread())
        return what

    def charge_sync(self, what: str = "charge") -> str:
        self.done.append(what)
        self.threads.append(threading.current_thread())
        return what


def one(tool: Callable[..., Any], **options: Any) -> Callable[[MCPServer, Tasks], None]:
    """A server with this one tool, named `tool`."""

    def tools(mcp: MCPServer, tasks: Tasks) -> None:
        mcp.tool(name="tool", structured_output=False)(tasks.durable(**options)(tool))

    return tools


async def answer_all(client: RawClient, task_id: str) -> None:
    """Every open question has its answer."""
    asked = (await client.state(task_id))["inputRequests"]
    await client.update(task_id, dict.fromkeys(asked, ACCEPT))


async def through(home: House, client: RawClient, task_id: str) -> dict[str, Any]:
    """How the task ended, every question answered on the way."""
    while True:
        await home.fleet.settle()
        state = await client.state(task_id)
        if state["status"] != "input_required":
            return state
        await answer_all(client, task_id)


def text(state: dict[str, Any]) -> str:
    """What the tool returned."""
    return str(state["result"]["content"][0]["text"])


def let_time_pass(raw: redis.Redis, settings: Settings, task_id: str, *, only: str = "") -> None:
    """The timers that the task waits for (whose names begin so) are due; the sweeper will find it."""
    keys, client = Keys(settings.prefix), cast("Any", raw)
    journal: dict[str, str] = client.hgetall(keys.journal(task_id))
    timers = {name: text.split()[1] for name, text in journal.items() if name.startswith(f"t:{only}")}
    assert timers, "it waits for no timer"
    client.hset(keys.journal(task_id), mapping={name: f"1 {place}" for name, place in timers.items()})
    client.hset(keys.task(task_id), "wake", 1)
    client.zadd(keys.unsent, {task_id: 1}, xx=True)


async def woken(home: House, raw: redis.Redis, task_id: str) -> str:
    """The task's timers are due and its message is delivered; the word of the run."""
    let_time_pass(raw, home.settings, task_id)
    await home.fleet.sweep()
    return await home.fleet.deliver()
