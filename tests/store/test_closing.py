"""A store's client is closed while it is used: nothing of it is left open, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.errors import StoreUnavailable
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


async def called(store: TaskStore) -> str:
    """What came of one call."""
    try:
        return "ended" if await store.read("x" * 32, ANN) is None else "odd"
    except StoreUnavailable as exc:
        return str(exc)


@covers("R9")
async def test_calls_that_are_under_way_when_their_client_is_closed_open_no_connection(
    settings: Settings, peek: Peek
) -> None:
    """At whatever moment, also those that wait for their turn: redis-py would try each once more, on a new one."""
    before, outcomes = len(peek.raw.client_list()), set[str]()
    for ticks in range(1, 41):
        store = TaskStore(settings)
        calls = [asyncio.ensure_future(called(store)) for _ in range(40)]
        for _ in range(ticks):
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await store.aclose()
            outcomes.update(await asyncio.gather(*calls))

        async def closed() -> bool:
            return len(peek.raw.client_list()) == before

        await eventually(closed, description=f"all is closed at tick {ticks}")
    [told] = outcomes - {"ended"}
    assert told.endswith("was closed meanwhile.")


async def test_a_call_that_is_still_connecting_when_its_client_is_closed_leaves_no_connection(
    settings: Settings, peek: Peek, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is there yet that could be closed; so closing waits for it."""
    before, connect = len(peek.raw.client_list()), asyncio.open_connection
    connecting, gate = asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **how: Any) -> Any:
        connecting.set()
        await gate.wait()
        return await connect(*args, **how)

    monkeypatch.setattr(asyncio, "open_connection", slow)
    store = TaskStore(settings)
    call = asyncio.ensure_future(called(store))
    await connecting.wait()
    closing = asyncio.ensure_future(store.aclose())
    for _ in range(100):
        await asyncio.sleep(0)
    gate.set()
    async with asyncio.timeout(20):
        await asyncio.gather(closing, call)

    async def closed() -> bool:
        return len(peek.raw.client_list()) == before

    await eventually(closed, description="what was just connecting is closed")


async def test_a_store_that_hangs_holds_up_no_closing(tmp_path: Path) -> None:
    """The call hears of it at once, not when its time is over."""
    with EmbeddedValkey(tmp_path) as valkey:
        store = TaskStore(Settings(redis_url=valkey.url, store_timeout_ms=60_000))
        assert await called(store) == "ended"
        os.kill(valkey.pid, signal.SIGSTOP)
        try:
            call = asyncio.ensure_future(called(store))
            await asyncio.sleep(0)  # it sets out
            async with asyncio.timeout(20):
                await store.aclose()
                assert (await call).endswith("was closed meanwhile.")
        finally:
            os.kill(valkey.pid, signal.SIGCONT)
