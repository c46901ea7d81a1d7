"""What a listener is told next: the newest of each task, the oldest news first, and chatter not too often."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import pytest

from mcptasks.model import Record, Status
from mcptasks.server.news import News
from mcptasks.store.changes import Change

pytestmark = pytest.mark.anyio

HOUR_S: Final = 3600.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def record(task_id: str, revision: int, status: Status = Status.RUNNING) -> Record:
    """The task at that revision."""
    return Record(
        task_id=task_id,
        tool="t",
        owner="",
        status=status,
        created_ms=0,
        updated_ms=0,
        ttl_ms=None,
        poll_ms=1,
        revision=revision,
        token=1,
        attempt=1,
    )


async def due(news: News) -> list[str]:
    """All that is due now, in order."""
    found: list[str] = []
    marker = "marker"
    while True:
        # Due for as long as everything else, and asked for last.
        news.again(marker, 0)
        async with asyncio.timeout(30):
            task_id = await news.next()
        if task_id == marker:
            return found
        found.append(task_id)


async def test_many_changes_of_a_task_are_one_piece_of_news_and_the_oldest_comes_first() -> None:
    """The listener reads the record when its turn comes, so it needs no more than the id."""
    news = News(["a", "b"], HOUR_S)
    for change in (Change("b", 2), Change("a", 2), Change("b", 3), Change("b", 4)):
        news.hear(change)
    assert await due(news) == ["b", "a"]


async def test_what_the_listener_knows_is_no_news() -> None:
    """A change that the record already showed when it was read for an earlier one."""
    news = News(["a"], HOUR_S)
    news.told(record("a", 5))
    news.hear(Change("a", 5))
    assert await due(news) == []
    news.hear(Change("a", 6))
    assert await due(news) == ["a"]
    assert not news.fresh(record("a", 5))
    assert news.fresh(record("a", 6))


async def test_a_look_at_whatever_there_is_is_always_due() -> None:
    """After a break nobody knows what was missed."""
    news = News(["a"], HOUR_S)
    news.told(record("a", 5))
    news.hear(Change("a"))
    assert await due(news) == ["a"]


async def test_a_status_message_waits_its_time_and_what_matters_does_not_wait_with_it() -> None:
    """The wait counts from what the listener was told last, so the first message comes at once."""
    news = News(["a", "b"], HOUR_S)
    news.hear(Change("a", 2, progress=True))
    assert await due(news) == ["a"]
    news.told(record("a", 2))
    news.hear(Change("a", 3, progress=True))
    news.hear(Change("b", 2, progress=True))
    assert await due(news) == ["b"]
    news.hear(Change("a", 4))
    assert await due(news) == ["a"]


async def test_a_message_that_waited_is_told_when_its_time_has_come() -> None:
    """The last one of a burst is not lost."""
    news = News(["a"], 0.01)
    news.told(record("a", 2))
    news.hear(Change("a", 3, progress=True))
    async with asyncio.timeout(30):
        assert await news.next() == "a"


async def test_who_waits_is_woken() -> None:
    """Also where something else is due much later."""
    news = News(["a"], HOUR_S)
    news.again("a", HOUR_S)
    waiting = asyncio.ensure_future(news.next())
    await asyncio.sleep(0)
    news.hear(Change("a", 2))
    async with asyncio.timeout(30):
        assert await waiting == "a"


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
async def test_nothing_comes_after_the_end(status: Status) -> None:
    """Invariant 4 for listeners: no late change is told of a task whose end they know."""
    news = News(["a"], HOUR_S)
    news.hear(Change("a", 2))
    news.told(record("a", 7, status))
    news.hear(Change("a", 8))
    news.hear(Change("a"))
    assert await due(news) == []
    assert not news.fresh(replace(record("a", 9), status=Status.RUNNING))


async def test_other_peoples_tasks_are_no_news() -> None:
    """Only what was acknowledged."""
    news = News(["a"], HOUR_S)
    news.drop("a")
    news.hear(Change("a", 2))
    news.hear(Change("b", 2))
    assert await due(news) == []
