"""Waiting for a task: the store tells of a change, a look now and then finds what it did not tell."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import anyio
import pytest
from mcp.shared.exceptions import MCPError

from mcptasks.errors import StoreUnavailable
from mcptasks.model import Record, Status
from mcptasks.server import refusals, watch
from mcptasks.server.closing import Closing
from mcptasks.server.watch import Watch
from mcptasks.settings import Settings
from mcptasks.store.changes import Change, Hear

pytestmark = pytest.mark.anyio

#: Nobody looks by himself within the time of a test.
RECORD = Record(
    task_id="t",
    tool="tool",
    owner="",
    status=Status.QUEUED,
    created_ms=0,
    updated_ms=0,
    ttl_ms=None,
    poll_ms=3_600_000,
    revision=1,
    token=0,
    attempt=0,
)
NEXT = replace(RECORD, revision=2)


class FakeStore:
    """Answers each read with the next of these, the last one for ever; tells of changes when the test says."""

    def __init__(self, *answers: Record | Exception | None) -> None:
        self.settings = Settings(push_progress_ms=100)
        self.changes = self
        self.ears = list[Hear]()
        self.reads = 0
        self._answers = itertools.chain(answers, itertools.repeat(answers[-1]))

    async def read(self, task_id: str, owner: str) -> Record | None:
        self.reads += 1
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def follow(self, task_ids: Iterable[str], hear: Hear) -> None:
        self.ears.append(hear)

    def leave(self, task_ids: Iterable[str], hear: Hear) -> None:
        self.ears.remove(hear)

    def tell(self, revision: int | None, *, progress: bool = False) -> None:
        for hear in self.ears:
            hear(Change("t", revision, progress))


def watching(*answers: Record | Exception | None, record: Record = RECORD) -> tuple[FakeStore, Watch]:
    """A watch of a store that answers so."""
    store = FakeStore(*answers)
    return store, Watch(cast("Any", store), Closing(), record)


async def test_a_change_that_is_told_is_seen_at_once() -> None:
    """No poll stands between a task's end and its caller."""
    store, view = watching(NEXT)
    with view:
        waiting = asyncio.create_task(view.change())
        await asyncio.sleep(0)
        assert store.reads == 0
        store.tell(2)
        assert await waiting == NEXT
    assert store.ears == [], "who waits no more is told no more"


async def test_the_first_word_of_the_store_closes_the_gap_before_it() -> None:
    """It says that changes are told from now on; what came before is there to be read."""
    store, view = watching(RECORD, NEXT)
    with view:
        waiting = asyncio.create_task(view.change())
        await asyncio.sleep(0)
        store.tell(None)
        await asyncio.sleep(0.01)
        assert not waiting.done(), "the same revision is no news"
        store.tell(None)
        assert await waiting == NEXT


async def test_progress_is_read_no_more_often_than_a_listener_is_told() -> None:
    """A tool that reports every row must not have every row read by every call that waits for it."""
    news = [replace(RECORD, revision=revision) for revision in range(2, 50)]
    store, view = watching(*news)
    with view:
        store.tell(2, progress=True)
        assert await view.change() == news[0]
        for revision in range(3, 40):
            store.tell(revision, progress=True)
            with anyio.move_on_after(0.001):
                await view.change()
        assert store.reads <= 3


async def test_a_change_that_is_not_told_is_found_by_looking() -> None:
    """The store's connection may break without a word."""
    store, view = watching(RECORD, RECORD, NEXT, record=replace(RECORD, poll_ms=1))
    with view:
        assert await view.change() == NEXT
    assert store.reads == 3


async def test_the_deadline_comes_without_a_change() -> None:
    """The caller says how long; nothing is raised."""
    _, view = watching(RECORD)
    with view:
        assert await view.change(anyio.current_time() + 0.05) is None
        assert await view.change(anyio.current_time() - 1) is None


async def test_a_nudge_brings_what_there_is_at_once() -> None:
    """Also one that came before anybody waited."""
    store, view = watching(RECORD)
    with view:
        view.nudge()
        assert await view.change() == RECORD
    assert store.reads == 1


async def test_a_server_that_goes_down_ends_every_wait_and_those_to_come() -> None:
    """It would wait for them otherwise, and they for their tasks."""
    closing = Closing()
    view, late = [Watch(cast("Any", FakeStore(RECORD)), closing, RECORD) for _ in range(2)]
    with view:
        waiting = asyncio.create_task(view.change())
        await asyncio.sleep(0)
        assert not view.over
        closing.begin()
        assert await waiting == RECORD and view.over
    with late:
        assert await late.change() == RECORD and late.over


async def test_a_task_that_is_gone_is_an_error() -> None:
    """The text is that of every task that is not there."""
    store, view = watching(None)
    with view:
        store.tell(2)
        with pytest.raises(MCPError, match="Task not found"):
            await view.change()


async def test_a_store_that_comes_back_was_never_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call must not fail for a restart of the store; the task does not."""
    monkeypatch.setattr(refusals, "_AWAY_S", 0.01)
    store, view = watching(StoreUnavailable("away"), StoreUnavailable("away"), NEXT)
    with view:
        store.tell(2)
        assert await view.change() == NEXT


async def test_a_store_that_stays_away_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """-32603, in the words of every other request."""
    monkeypatch.setattr(refusals, "_AWAY_S", 0.01)
    monkeypatch.setattr(watch, "PATIENCE_S", 0.05)
    store, view = watching(StoreUnavailable("away"))
    with view:
        store.tell(2)
        with pytest.raises(MCPError, match="The task store is not available") as away:
            await view.change()
    assert away.value.error.code == -32603
