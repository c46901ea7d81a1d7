"""Tasks as a version of mcptasks wrote them, kept as files: one in every state, by tools that say what they did.

`python -m tests.support.recorded` writes the files of this version. Do that once for every `SCHEMA_VERSION`, with the
last code that has it, and never change the file of a version that was released: it stands for what lies in people's
stores.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final, cast

import redis
from mcp.server.mcpserver import Context, MCPServer, Resolve
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, InputRequiredResult
from pydantic import SecretStr

import mcptasks
from mcptasks import Tasks
from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.model import SCHEMA_VERSION, Claim, Hint
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.support.durable import ACCEPT, answer_all
from tests.support.house import House, house
from tests.support.keys import SECRETS
from tests.support.peek import Peek
from tests.support.raw_client import RawClient
from tests.support.tools import Word, ask_both, ask_by_returning, which_word

FOLDER: Final = Path(__file__).parent / "records"
#: The records name other keys, so they belong below the prefix that they were written below.
PREFIX: Final = "recorded:"
#: Nobody will read the files when this is over.
_AGES: Final = "18250d"
#: How what people and tools said was written.
KINDS: Final[Mapping[str, tuple[SecretStr, ...]]] = {"plain": (), "sealed": SECRETS[:1]}


def settings_of(url: str, kind: str) -> Settings:
    """The settings under which the tasks of that file were written, and with which they can be read."""
    times: dict[str, Any] = {"lease_ms": 1_000, "renew_ms": 200, "deferrals_ms": (1_000, 1_000)}
    return Settings(redis_url=url, prefix=PREFIX, encryption_keys=KINDS[kind], **times)


def file_of(kind: str, schema: int = SCHEMA_VERSION) -> Path:
    """Where the tasks of that version are."""
    return FOLDER / f"v{schema}-{kind}.json"


class Tools:
    """The tools of the recorded tasks. `era` tells who did a step: the code that wrote the records, or this one."""

    def __init__(self, era: str) -> None:
        self.era = era

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        async def receipt() -> str:
            return f"receipt of {self.era}"

        def ordering() -> Any:
            async def order(item: str, ctx: Context) -> str:
                await ctx.report_progress(1, 2, f"charging for {item}")
                paid = await mcptasks.step("charge", receipt)
                answer = await ctx.elicit(f"Send {item}?", Word)
                assert answer.action == "accept"
                return f"{item}, {answer.data.word}, {paid}"

            return order  # another function each time, because a policy belongs to its function

        async def patient(ctx: Context) -> str:
            answer = await ctx.elicit("By next year?", Word)
            return answer.action

        async def by_resolver(word: Annotated[Word, Resolve(which_word)]) -> str:
            return word.word

        async def by_returning(ctx: Context) -> CallToolResult | InputRequiredResult:
            return await ask_by_returning("!", ctx)

        async def nap() -> str:
            await mcptasks.sleep("2s")
            return "rested"

        async def flaky() -> str:
            if self.era == "then":
                raise mcptasks.Retry("The partner does not answer")
            return "answered"

        async def fails() -> str:
            raise MCPError(-32050, "No stock", {"item": "tea"})

        async def errs() -> str:
            raise ValueError("No tea")

        ages: Any = {"ttl": _AGES}
        for tool in (ordering(), nap, fails, errs, by_returning, ask_both):
            mcp.tool()(tasks.durable(**ages)(tool))
        mcp.tool(name="lost")(tasks.durable(**ages)(ordering()))
        mcp.tool(name="held")(tasks.durable(**ages, hold="60s")(ordering()))
        mcp.tool()(tasks.durable(**ages, retry=[1, 1])(flaky))
        mcp.tool()(tasks.durable(**ages, prelude=True)(by_resolver))
        mcp.tool()(tasks.durable(**ages, input_timeout="9000d", on_input_timeout="cancel")(patient))


ITEM: Final = {"item": "tea"}

#: What each recorded task comes to in the hands of a person who accepts everything: its text, or its status.
ENDS: Final = {
    "queued": "tea, yes, receipt of now",
    "queued with a key": "tea, yes, receipt of now",
    "settled before": "yes",
    "running": "tea, yes, receipt of now",
    "running again": "tea, yes, receipt of then",
    "to be cancelled": "cancelled",
    "held": "tea, yes, receipt of then",
    "parked": "tea, yes, receipt of then",
    "parked by returning": "yes! after round-1",
    "parked on one of two": "yes yes",
    "parked with a limit": "accept",
    "answered": "tea, yes, receipt of then",
    "sleeping": "rested",
    "retrying": "answered",
    "deferred": "tea, yes, receipt of now",
    "completed": "tea, yes, receipt of then",
    "completed with an error": "Error executing tool errs",
    "failed": "failed",
    "cancelled": "cancelled",
    "expired": "failed",
}


class _Writer:
    """Brings a task into each of the states."""

    def __init__(self, home: House, client: RawClient, peek: Peek, store: TaskStore) -> None:
        self._home, self._client, self._peek, self._store = home, client, peek, store

    async def write(self) -> dict[str, str]:
        """Label -> task id."""
        tasks: dict[str, str] = {}
        for label in ENDS:
            tasks[label] = await self._one(label)
            self._home.fleet.messages.clear()
            self._home.fleet.rechecks.clear()
        return tasks

    async def _one(self, label: str) -> str:
        client, fleet = self._client, self._home.fleet
        match label:
            case "queued with a key":
                return await client.start("order", ITEM, idempotencyKey="key-1")
            case "settled before":
                asked = (await client.call("by_resolver")).result
                given = {"inputResponses": dict.fromkeys(asked["inputRequests"], ACCEPT)}
                return await client.start("by_resolver", requestState=asked["requestState"], **given)
            case "running":
                return await self._claimed(await client.start("order", ITEM))
            case "running again":
                return await self._claimed(await self._answered(await self._delivered("order", ITEM)))
            case "to be cancelled":
                task_id = await self._claimed(await client.start("order", ITEM))
                await client.cancel(task_id)
                return task_id
            case "held":
                task_id = await client.start("held", ITEM)
                fleet.begin()
                await client.until(task_id, lambda state: state["status"] == "input_required")
                return task_id
            case "parked":
                return await self._delivered("order", ITEM)
            case "parked by returning":
                return await self._delivered("by_returning")
            case "parked on one of two":
                task_id = await self._delivered("ask_both")
                first, _ = (await client.state(task_id))["inputRequests"]
                await client.update(task_id, {first: ACCEPT})
                return task_id
            case "parked with a limit":
                return await self._delivered("patient")
            case "answered":
                return await self._answered(await self._delivered("order", ITEM))
            case "sleeping":
                return await self._delivered("nap")
            case "retrying":
                return await self._delivered("flaky")
            case "deferred":
                task_id = await client.start("lost", ITEM)
                self._home.mcp.remove_tool("lost")
                await fleet.deliver()
                return task_id
            case "completed":
                task_id = await self._answered(await self._delivered("order", ITEM))
                await fleet.deliver()
                return task_id
            case "completed with an error":
                return await self._delivered("errs")
            case "failed":
                return await self._delivered("fails")
            case "cancelled":
                task_id = await client.start("order", ITEM)
                await client.cancel(task_id)
                return task_id
            case "expired":
                task_id = await client.start("order", ITEM)
                self._peek.expire(task_id)
                await self._store.reap(task_id)
                return task_id
            case _:
                return await client.start("order", ITEM)

    async def _delivered(self, tool: str, arguments: Any = None) -> str:
        task_id = await self._client.start(tool, arguments)
        await self._home.fleet.deliver()
        return task_id

    async def _answered(self, task_id: str) -> str:
        await answer_all(self._client, task_id)
        return task_id

    async def _claimed(self, task_id: str) -> str:
        message: Hint = self._home.fleet.messages.pop()
        assert isinstance(await self._store.claim(message, "w@gone:1"), Claim)
        return task_id


async def write(url: str, kind: str) -> dict[str, Any]:
    """One task in each state was written; all that the store has then, and what their client saw."""
    settings = settings_of(url, kind)
    async with house(settings, Tools("then")) as (home, client), _store(settings) as store:
        with redis.Redis.from_url(url, decode_responses=True) as raw:
            peek = Peek(raw, PREFIX)
            tasks = await _Writer(home, client, peek, store).write()
            seen = {label: await client.state(task_id) for label, task_id in tasks.items()}
            # The sweep's lease is a process's, and nothing of a task's.
            names = sorted(peek.all_keys() - {peek.keys.sweeper})
            keys = {key: [peek.value(key), int(peek.raw.pexpiretime(key))] for key in names}
    return {"schema": SCHEMA_VERSION, "tasks": tasks, "seen": seen, "keys": keys}


@asynccontextmanager
async def _store(settings: Settings) -> AsyncGenerator[TaskStore]:
    store = TaskStore(settings)
    try:
        yield store
    finally:
        await store.aclose()


def restore(raw: redis.Redis, file: Path) -> dict[str, Any]:
    """The store has what the file has, which is returned."""
    recorded: dict[str, Any] = json.loads(file.read_text())
    client = cast("Any", raw)
    for key, (value, expires) in recorded["keys"].items():
        match value:
            case str():
                client.set(key, value)
            case dict():
                client.hset(key, mapping=value)
            case [str(), *_]:
                client.rpush(key, *value)
            case _:
                client.zadd(key, dict(cast("Sequence[tuple[str, float]]", value)))
        if expires != -1:
            client.pexpireat(key, expires)
    return recorded


def main() -> None:
    """The files of this version are there."""
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder, EmbeddedValkey(Path(folder)) as server:
            recorded = asyncio.run(write(server.url, kind))
        file_of(kind).write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
