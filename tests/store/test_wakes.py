"""wakes: what the scripts publish reaches whoever listens; a connection that is gone says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import redis

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.errors import StoreUnavailable
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from mcptasks.store.wakes import Wake, wakes
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN, parked, running
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def listening(settings: Settings, peek: Peek) -> AsyncGenerator[asyncio.Queue[Wake | Exception]]:
    """Everything that is heard inside the block, in order; the error that ended it, too."""
    heard: asyncio.Queue[Wake | Exception] = asyncio.Queue()

    async def listen() -> None:
        try:
            async for wake in wakes(settings):
                heard.put_nowait(wake)
        except StoreUnavailable as exc:
            heard.put_nowait(exc)

    async def subscribed() -> bool:
        return peek.raw.pubsub_numsub(peek.keys.wakes)[0][1] == 1

    task = asyncio.create_task(listen())
    await eventually(subscribed, description="somebody listens")
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.wait([task])


async def next_of(heard: asyncio.Queue[Wake | Exception]) -> Wake | Exception:
    """What is heard next."""
    async with asyncio.timeout(30):
        return await heard.get()


@covers("A08", "R6")
async def test_cancels_answers_and_losses_are_heard_at_once(settings: Settings, store: TaskStore, peek: Peek) -> None:
    """Invariant 6: by the channel at once; the renewal of the lease repairs what got lost."""
    async with listening(settings, peek) as heard:
        claim = await running(store)
        await store.cancel(claim.task_id, ANN, "No more")
        assert await next_of(heard) == Wake("cancel", claim.task_id)
        held = await parked(store, "q", hold=True)
        await store.answer(held.task_id, ANN, {"q": 1})
        assert await next_of(heard) == Wake("answer", held.task_id)
        peek.make_due("leases", held.task_id)
        await store.reap(held.task_id)
        assert await next_of(heard) == Wake("lost", held.task_id, held.token)


def test_a_loss_concerns_the_lost_run_and_other_news_every_run_of_the_task() -> None:
    """The next run may be claimed before the loss of the first is heard."""
    assert Wake("lost", "t", 1).concerns("t", 1)
    assert not Wake("lost", "t", 1).concerns("t", 2)
    assert Wake("cancel", "t").concerns("t", 2)
    assert not Wake("cancel", "t").concerns("u", 2)


async def test_another_prefix_is_another_fleet(settings: Settings, store: TaskStore, peek: Peek) -> None:
    """Two fleets on one server do not hear each other."""
    async with listening(settings, peek) as heard:
        other = TaskStore(settings.model_copy(update={"prefix": f"{settings.prefix}other:"}))
        claim = await running(other)
        await other.cancel(claim.task_id, ANN, "No more")
        await other.aclose()
        mine = await running(store)
        await store.cancel(mine.task_id, ANN, "No more")
        assert await next_of(heard) == Wake("cancel", mine.task_id)


@covers("A08")
async def test_a_listener_whose_connection_was_killed_listens_again_or_is_told(
    settings: Settings, store: TaskStore, peek: Peek
) -> None:
    """A08 (c): CLIENT KILL TYPE pubsub. Silence must never look like no news."""

    async def listens_again() -> bool:
        return peek.raw.pubsub_numsub(peek.keys.wakes)[0][1] == 1 or not heard.empty()

    async with listening(settings, peek) as heard:
        claim = await running(store)
        assert peek.raw.client_kill_filter(_type="pubsub") == 1
        await eventually(listens_again, description="the listener is back, or has been told")
        await store.cancel(claim.task_id, ANN, "No more")
        news = await next_of(heard)
        assert news == Wake("cancel", claim.task_id) or isinstance(news, StoreUnavailable)


async def test_an_idle_listener_asks_for_no_more_than_one_pong_a_period(
    settings: Settings, peek: Peek, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pong once looked like silence and was answered with the next ping: an idle worker used a fifth of a core.

    What the store counts is compared with the time by the store's clock, so that a slow machine changes nothing.
    """
    period_s = 0.1
    monkeypatch.setattr("mcptasks.store.wakes._PROBE_S", period_s)

    async def pinged_five_times() -> bool:
        return commands_of(peek.raw).get("ping", 0) >= 5

    async with listening(settings, peek) as heard:
        began = seconds(peek.raw)
        peek.raw.config_resetstat()
        await eventually(pinged_five_times, description="five periods went by")
        counted = commands_of(peek.raw)
        elapsed = seconds(peek.raw) - began
        assert heard.empty()
    assert counted.keys() == {"ping"}, "it does nothing but probe"
    # One more for the period that had begun before, and one for two clocks that do not agree to the millisecond.
    assert counted["ping"] <= elapsed / period_s + 2


def seconds(raw: redis.Redis) -> float:
    """The store's clock."""
    whole, micros = raw.time()
    return whole + micros / 1_000_000


def commands_of(raw: redis.Redis) -> dict[str, int]:
    """How often each command was given since the count was reset, without those of the looking itself."""
    stats = cast("dict[str, dict[str, int]]", raw.info("commandstats"))
    calls = {name.removeprefix("cmdstat_"): int(stat["calls"]) for name, stat in stats.items()}
    return {name: count for name, count in calls.items() if name not in ("info", "time", "config|resetstat")}


async def test_nobody_to_listen_to_is_told(tmp_path: Path, anyio_backend: str) -> None:
    """The caller listens again later."""
    with EmbeddedValkey(tmp_path) as valkey:
        settings = Settings(redis_url=valkey.url)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await anext(aiter(wakes(settings)))
