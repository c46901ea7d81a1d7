"""A call that is sent again is the same call: idempotency keys (ours, where SEP-2663 leaves retries to the server)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest
import redis
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError

from mcptasks import Tasks
from mcptasks.settings import Settings
from tests.requirements import covers
from tests.support.house import house
from tests.support.raw_client import RawClient, Reply
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

#: Where a client may put its key, as the arguments of `RawClient.call`.
PLACES: Final[dict[str, Any]] = {
    "params": lambda key: {"idempotencyKey": key},
    "_meta": lambda key: {"meta": {"mcptasks/idempotencyKey": key}},
    "header": lambda key: {"headers": {"Idempotency-Key": key}},
}


class Ledger:
    """Tools that write down each of their runs."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, mcp: MCPServer, tasks: Tasks) -> None:
        @mcp.tool()
        @tasks.durable()
        async def book(line: str, more: dict[str, Any] | None = None) -> str:
            self.lines.append(line)
            return f"booked {line}"

        @mcp.tool()
        @tasks.durable()
        async def book_elsewhere(line: str) -> str:
            self.lines.append(line)
            return f"booked {line} elsewhere"

        @mcp.tool()
        @tasks.durable()
        async def breaks(line: str) -> str:
            self.lines.append(line)
            raise MCPError(-32050, "broken")

        @mcp.tool()
        @tasks.durable(ttl="200ms")
        async def short_lived(line: str) -> str:
            return line


def records(raw: redis.Redis, settings: Settings) -> int:
    """How many tasks are stored."""
    return len(list(raw.scan_iter(f"{settings.prefix}task:*}}")))


@covers("P23", "N2", "W2", "C12")
@pytest.mark.parametrize("place", PLACES)
async def test_the_same_call_with_the_same_key_is_the_same_task_for_its_whole_life(
    settings: Settings, raw: redis.Redis, place: str
) -> None:
    """Ours: queued, running or ended, the retried call gets the task that it made before, and starts nothing."""
    ledger = Ledger()
    async with house(settings, ledger) as (home, client):
        key = PLACES[place]("order-1")
        task_id = await client.start("book", {"line": "a", "more": {"x": 1, "y": 2}}, **key)
        assert task_id == await client.start("book", {"more": {"y": 2, "x": 1}, "line": "a"}, **key)

        await home.fleet.settle()
        before = await client.get(task_id)
        again = (await client.call("book", {"line": "a", "more": {"x": 1, "y": 2}}, **key)).result
        assert (again["resultType"], again["taskId"], again["status"]) == ("task", task_id, "completed")
        assert "result" not in again
        assert before == await client.get(task_id)

        assert home.fleet.messages == []
        assert ledger.lines == ["a"] and records(raw, settings) == 1


@covers("P23", "W2")
async def test_a_retried_call_finds_its_failed_or_cancelled_task(settings: Settings) -> None:
    """Ours: the key names one order, not one success; whoever wants another attempt takes another key."""
    ledger = Ledger()
    async with house(settings, ledger) as (home, client):
        failed = await client.start("breaks", {"line": "a"}, idempotencyKey="k1")
        await home.fleet.settle()
        cancelled = await client.start("book", {"line": "b"}, idempotencyKey="k2")
        await client.cancel(cancelled)

        again = (await client.call("breaks", {"line": "a"}, idempotencyKey="k1")).result
        assert (again["taskId"], again["status"]) == (failed, "failed")
        again = (await client.call("book", {"line": "b"}, idempotencyKey="k2")).result
        assert (again["taskId"], again["status"]) == (cancelled, "cancelled")
        await home.fleet.settle()
        assert ledger.lines == ["a"]


@covers("P23", "W2", "C12")
async def test_a_used_key_with_other_arguments_is_refused_and_the_task_stays_as_it_is(
    settings: Settings, raw: redis.Redis
) -> None:
    """Ours: -32602 that says so. To run the old call or the new one would both be guesses."""
    ledger = Ledger()
    async with house(settings, ledger) as (home, client):
        task_id = await client.start("book", {"line": "a"}, idempotencyKey="order-1")
        before = await client.get(task_id)
        reply = await client.call("book", {"line": "b"}, idempotencyKey="order-1")

        assert (reply.status, reply.error["code"]) == (400, -32602)
        assert "idempotency key" in reply.error["message"] and "other arguments" in reply.error["message"]
        assert before == await client.get(task_id) and records(raw, settings) == 1
        await home.fleet.settle()
        assert ledger.lines == ["a"]


@covers("P23", "C12")
async def test_a_key_belongs_to_its_caller_and_tool(settings: Settings) -> None:
    """Ours: another caller's, or another tool's, equal key is another key; nobody learns that it is taken."""
    ledger = Ledger()
    async with house(settings, ledger, auth=True, token="alice") as (_, alice):
        bob = alice.with_(token="bob")
        ids = [
            await alice.start("book", {"line": "a"}, idempotencyKey="k"),
            await bob.start("book", {"line": "b"}, idempotencyKey="k"),
            await alice.start("book_elsewhere", {"line": "c"}, idempotencyKey="k"),
        ]
        assert len(set(ids)) == 3
        assert ids[1] == await bob.start("book", {"line": "b"}, idempotencyKey="k")


@covers("P23", "C12")
async def test_without_a_key_every_call_is_a_new_task(settings: Settings) -> None:
    """Ours: two equal calls may be two orders; only the client can say that they are one."""
    async with house(settings, Ledger()) as (_, client):
        assert await client.start("book", {"line": "a"}) != await client.start("book", {"line": "a"})


@covers("P23")
async def test_the_key_in_params_comes_before_meta_and_meta_before_the_header(settings: Settings) -> None:
    """Ours: a proxy that adds its own header to every request must not merge what the client keeps apart."""
    async with house(settings, Ledger()) as (_, client):
        by_name = {place: await client.start("book", {"line": "a"}, **PLACES[place](place)) for place in PLACES}
        assert len(set(by_name.values())) == 3

        every = {**PLACES["params"]("params"), **PLACES["_meta"]("_meta"), **PLACES["header"]("header")}
        assert by_name["params"] == await client.start("book", {"line": "a"}, **every)
        del every["idempotencyKey"]
        assert by_name["_meta"] == await client.start("book", {"line": "a"}, **every)


@covers("P23")
@pytest.mark.parametrize("key", ["", "a" * 256, "two words", "ümlaut", "\x00", "\ud800", 7, True, [], {}], ids=repr)
async def test_a_key_that_is_none_is_refused(settings: Settings, raw: redis.Redis, key: Any) -> None:
    """Ours: 1 to 255 visible ASCII characters. A silently ignored key would run the order twice."""
    async with house(settings, Ledger()) as (_, client):
        for place in ("params", "_meta"):
            reply = await client.call("book", {"line": "a"}, **PLACES[place](key))
            assert (reply.status, reply.error["code"]) == (400, -32602)
            assert "1 to 255 visible" in reply.error["message"]
        assert records(raw, settings) == 0
        assert (await client.call("book", {"line": "a"}, idempotencyKey="!" + "~" * 254)).result["taskId"]


@covers("P23", "W2", "C12")
async def test_a_key_lives_exactly_as_long_as_its_task(settings: Settings, raw: redis.Redis) -> None:
    """Ours: a key that outlived its task would name nothing; one that died before it would let the order run again."""
    async with house(settings, Ledger()) as (home, client):
        task_id = await client.start("short_lived", {"line": "a"}, idempotencyKey="k")
        [key] = raw.scan_iter(f"{settings.prefix}idem:*")
        record = f"{settings.prefix}task:{{{task_id}}}"
        assert raw.pexpiretime(key) == raw.pexpiretime(record)
        await home.fleet.settle()
        assert raw.pexpiretime(key) == raw.pexpiretime(record)

        async def another() -> str | None:
            # At the very moment of expiry the answer is an error that says "call again"; so it is done here.
            body = (await client.call("short_lived", {"line": "a"}, idempotencyKey="k")).body
            found = body.get("result", {}).get("taskId", task_id)
            return found if found != task_id else None

        assert await eventually(another, description="the key is free again")


@covers("P23", "P20", "W2", "N5", "C12")
async def test_a_hundred_concurrent_calls_through_two_servers_make_one_task_and_one_run(
    settings: Settings, raw: redis.Redis
) -> None:
    """Ours: the decision is one script in the store, so it does not matter who asks first or where."""
    ledger = Ledger()
    # A hundred new connections at once take a busy machine longer than a caller should wait for a store.
    patient = settings.model_copy(update={"store_timeout_ms": 30_000})
    async with house(patient, ledger) as (home, first):
        second = await home.open()

        async def call(client: RawClient) -> Reply:
            return await client.call("book", {"line": "a"}, idempotencyKey="order-1")

        replies = await asyncio.gather(*(call(client) for _ in range(50) for client in (first, second)))

        ids = {reply.result["taskId"] for reply in replies}
        assert len(ids) == 1 and records(raw, settings) == 1
        assert len(home.fleet.messages) == 1
        await home.fleet.settle()
        assert ledger.lines == ["a"]
        assert (await second.state(ids.pop()))["status"] == "completed"
