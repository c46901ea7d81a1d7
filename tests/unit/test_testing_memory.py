"""The store in memory: what `mcptasks.testing.memory` relies on in fakeredis, and that its clock is ours alone.

When one of these breaks after an upgrade of fakeredis: read `_connections_of` in that file and look at what moved.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import cast

import pytest
from fakeredis import FakeAsyncRedis
from redis.asyncio import Redis

from mcptasks.settings import Settings
from mcptasks.store.connection import Connection, in_memory
from mcptasks.testing.clock import MovableClock
from mcptasks.testing.memory import store_in_memory

pytestmark = pytest.mark.anyio

DAY_MS = 86_400_000


@pytest.fixture
def clock() -> MovableClock:
    """A clock that was moved already."""
    clock = MovableClock()
    clock.move_to(clock.now_ms + DAY_MS + 7)
    return clock


@pytest.fixture
async def client(clock: MovableClock, anyio_backend: str) -> AsyncGenerator[Redis]:
    """A client of a store on that clock, connected as the library connects."""
    with store_in_memory(clock) as url:
        connection = Connection(Settings(redis_url=url))
        yield connection.client
        await connection.aclose()


async def test_time_is_the_clocks_in_commands_and_in_scripts(client: Redis, clock: MovableClock) -> None:
    """To the millisecond, or times would not add up."""
    expected = [clock.now_ms // 1000, clock.now_ms % 1000 * 1000]
    assert list(await client.time()) == expected
    told = cast("list[str]", await client.eval("return redis.call('TIME')", 0))
    assert [int(part) for part in told] == expected


@pytest.mark.parametrize("how", ["PEXPIRE", "PEXPIREAT", "PX"])
async def test_keys_expire_by_the_clock_and_by_nothing_else(client: Redis, clock: MovableClock, how: str) -> None:
    """However the expiry was set; and as long as the clock stands nothing does."""
    match how:
        case "PEXPIRE":
            await client.set("key", "1")
            await client.pexpire("key", 50)
        case "PEXPIREAT":
            await client.set("key", "1")
            await client.pexpireat("key", clock.now_ms + 50)
        case _:
            await client.set("key", "1", px=50)
    await asyncio.sleep(0.06)
    assert await client.pttl("key") == 50
    clock.move_to(clock.now_ms + 51)
    assert await client.get("key") is None


async def test_another_fakeredis_of_the_same_process_has_its_own_time(client: Redis) -> None:
    """A user's own fakes must not be moved along."""
    async with FakeAsyncRedis() as other:
        assert abs((await other.time())[0] - time.time()) < 60
    assert (await client.time())[0] - time.time() > 3600


async def test_a_published_word_reaches_a_subscriber_of_the_same_store_only(client: Redis) -> None:
    """Wakes and changes go this way."""
    with store_in_memory(MovableClock()) as elsewhere:
        stranger = Connection(Settings(redis_url=elsewhere))
        async with client.pubsub() as hearer:
            await hearer.subscribe("wakes")
            assert await stranger.client.publish("wakes", "theirs") == 0
            assert await client.publish("wakes", "ours") == 1
            heard = [await hearer.get_message(timeout=5) for _ in range(2)]
        await stranger.aclose()
    assert [None if one is None else one["data"] for one in heard] == [1, "ours"]


def test_a_store_is_gone_with_its_block() -> None:
    """Nothing of a test stays in the process."""
    with store_in_memory(MovableClock()) as url:
        assert url in in_memory
    assert url not in in_memory


def test_alarms_ring_in_order_once_and_not_after_they_were_cancelled() -> None:
    """Also one that is cancelled by the one before it."""
    clock, rung = MovableClock(), list[str]()
    begun = clock.now_ms
    clock.call_later(2, lambda: rung.append("second"))
    doomed = clock.call_later(3, lambda: rung.append("never"))
    clock.call_later(1, lambda: (rung.append("first"), doomed.cancel()))
    assert clock.next_ms() == begun + 1_000
    clock.move_to(begun + 999)
    assert rung == []
    clock.move_to(begun + 5_000)
    clock.move_to(begun + 1_000)
    assert (rung, clock.next_ms(), clock.time()) == (["first", "second"], None, (begun + 5_000) / 1000)
