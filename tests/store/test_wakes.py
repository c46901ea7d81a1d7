"""wakes: what the scripts publish reaches whoever listens; a connection that is gone says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

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


async def test_nobody_to_listen_to_is_told(tmp_path: Path, anyio_backend: str) -> None:
    """The caller listens again later."""
    with EmbeddedValkey(tmp_path) as valkey:
        settings = Settings(redis_url=valkey.url)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await anext(aiter(wakes(settings)))
