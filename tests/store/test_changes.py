"""changes: who follows a task is told of each change that a client can see, over one connection, and misses none."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.model import Claim
from mcptasks.settings import Settings
from mcptasks.store import changes as module
from mcptasks.store.changes import Change
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN, WORKER_WRITES, asking, claimed, end, parked, question, queued, read, running
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


class Ear:
    """Follows tasks, and keeps what it is told."""

    def __init__(self, store: TaskStore) -> None:
        self.store = store
        self.heard: asyncio.Queue[Change] = asyncio.Queue()

    def hear(self, change: Change) -> None:
        """Told."""
        self.heard.put_nowait(change)

    async def next(self) -> Change:
        """What it is told next."""
        async with asyncio.timeout(30):
            return await self.heard.get()

    async def follow(self, *task_ids: str) -> None:
        """It follows the tasks, and was told that it hears of them from now on."""
        self.store.changes.follow(task_ids, self.hear)
        told = [await self.next() for _ in task_ids]
        assert {change.task_id for change in told} == set(task_ids)
        assert all(change.revision is None for change in told)

    async def only(self, claim: Claim) -> list[Change]:
        """What it was told, up to the end of the task, which is made to come now."""
        await end(self.store, claim)
        last = (await read(self.store, claim.task_id)).revision
        found: list[Change] = []
        while (change := await self.next()).revision != last:
            found.append(change)
        return found


@pytest.fixture
async def ear(store: TaskStore) -> Ear:
    """Of a process that follows what it is told to."""
    return Ear(store)


# ------------------------------------------------------------------------------------------------ what is told

Prepare = Callable[[TaskStore], Awaitable[Claim]]


async def _two_open(store: TaskStore) -> Claim:
    return await parked(store, "a", "b")


async def _held(store: TaskStore) -> Claim:
    return await parked(store, "a", hold=True)


async def _lost(store: TaskStore) -> Claim:
    claim = await running(store)
    await store.connection.client.zadd(store.keys.leases, {claim.task_id: 1})
    return claim


async def _overdue(store: TaskStore) -> Claim:
    claim = await running(store)
    await store.connection.client.hset(store.keys.task(claim.task_id), "expires", "1")
    return claim


#: A transition, on a task so prepared, and whether a client can see it.
SEEN: Final[dict[str, tuple[Prepare, Callable[[TaskStore, Claim], Awaitable[Any]], bool]]] = {
    "ask": (running, WORKER_WRITES["ask"], True),
    "ask and hold": (running, lambda s, c: s.ask(c, asking(question("q")), guard=None, hold=True), True),
    "part of the answers": (_two_open, lambda s, c: s.answer(c.task_id, ANN, {"a": 1}), True),
    "the last answer": (parked, lambda s, c: s.answer(c.task_id, ANN, {"sure": 1}), True),
    "the last answer of a held run": (_held, lambda s, c: s.answer(c.task_id, ANN, {"a": 1}), True),
    "a cancel of a parked task": (parked, lambda s, c: s.cancel(c.task_id, ANN, "No"), True),
    "a cancel of a running task": (running, lambda s, c: s.cancel(c.task_id, ANN, "No"), False),
    "progress": (running, WORKER_WRITES["progress"], True),
    "retry": (running, WORKER_WRITES["retry"], True),
    "finish": (running, WORKER_WRITES["finish"], True),
    "expiry": (_overdue, lambda s, c: s.reap(c.task_id), True),
    "a lost run": (_lost, lambda s, c: s.reap(c.task_id), False),
    "release": (running, WORKER_WRITES["release"], False),
    "renew": (running, WORKER_WRITES["renew"], False),
    "step": (running, WORKER_WRITES["step"], False),
    "park": (_held, WORKER_WRITES["park"], False),
}


@covers("P70")
@pytest.mark.parametrize("name", SEEN)
async def test_what_a_client_can_see_is_told_once_with_its_revision(
    store: TaskStore, peek: Peek, ear: Ear, name: str
) -> None:
    """One announcement per visible transition, none for the others: listeners cost the fleet one PUBLISH a change."""
    prepare, transition, visible = SEEN[name]
    claim = await prepare(store)
    await ear.follow(claim.task_id)
    await transition(store, claim)
    revision = int(peek.field(claim.task_id, "rev") or 0)
    # Whatever else was told comes before this.
    peek.raw.publish(store.keys.task(claim.task_id), "999")
    told: list[int | None] = []
    while (change := await ear.next()).revision != 999:
        told.append(change.revision)
    assert told == ([revision] if visible else [])


@covers("P35")
async def test_two_changes_in_one_millisecond_differ_in_last_updated_at(store: TaskStore, peek: Peek) -> None:
    """`lastUpdatedAt` orders what a client sees, so that a late push or poll is known to be late."""
    claim = await running(store)
    moments: list[int] = []
    for n in range(20):
        await store.progress(claim, f"{n}", n, 20)
        moments.append(int(peek.field(claim.task_id, "updated") or 0))
    await end(store, claim)
    moments.append(int(peek.field(claim.task_id, "updated") or 0))
    assert moments == sorted(set(moments))


async def test_a_status_message_is_told_as_what_can_wait(store: TaskStore, ear: Ear) -> None:
    """A tool that reports every row must not make its listeners busy."""
    claim = await running(store)
    await ear.follow(claim.task_id)
    await store.progress(claim, "Half", 1, 2)
    await store.progress(claim, "Half", 1, 2)  # a client sees no difference
    await end(store, claim)
    told = [await ear.next() for _ in range(2)]
    assert [change.progress for change in told] == [True, False]


async def test_another_prefix_is_another_fleet(settings: Settings, store: TaskStore, ear: Ear) -> None:
    """Two fleets on one server do not hear each other, whatever their tasks' ids."""
    other = TaskStore(settings.model_copy(update={"prefix": f"{settings.prefix}other:"}))
    mine = await running(store)
    await ear.follow(mine.task_id)
    theirs = await claimed(other, await queued(other))
    await other.connection.client.publish(other.keys.task(mine.task_id), "7")
    await end(other, theirs)
    await other.aclose()
    assert await ear.only(mine) == []


# ------------------------------------------------------------------------------------------------ who is told


async def test_each_follower_is_told_until_it_leaves(store: TaskStore, ear: Ear, peek: Peek) -> None:
    """One channel for all of them; the last one to leave gives it back."""
    second = Ear(store)
    one, two = await running(store), await running(store)
    await ear.follow(one.task_id, two.task_id)
    await second.follow(one.task_id)
    channel = store.keys.task(one.task_id)
    await store.progress(one, "Half", 1, 2)
    assert (await ear.next()).task_id == (await second.next()).task_id == one.task_id
    store.changes.leave([one.task_id], ear.hear)
    assert [change.revision for change in await second.only(one)] == []
    assert peek.raw.pubsub_numsub(channel) == [(channel, 1)]
    assert await ear.only(two) == [], "it was told of a task that it had left"

    async def given_back() -> bool:
        return peek.raw.pubsub_numsub(channel) == [(channel, 0)]

    store.changes.leave([one.task_id], second.hear)
    await eventually(given_back, description="nobody is subscribed to the channel")


async def test_who_comes_back_to_a_task_is_told_again(store: TaskStore, ear: Ear) -> None:
    """Left and followed again before the connection was told of either."""
    claim, other = await running(store), await running(store)
    await ear.follow(claim.task_id, other.task_id)
    store.changes.leave([claim.task_id], ear.hear)
    await ear.follow(claim.task_id)
    await store.progress(claim, "Half", 1, 2)
    assert (await ear.next()).revision == (await read(store, claim.task_id)).revision


async def test_following_costs_one_connection_and_nobody_costs_none(store: TaskStore, ear: Ear, peek: Peek) -> None:
    """Issue 4, part 6: one subscription per server process, however many listen."""
    claims = [await running(store) for _ in range(40)]
    ears = [Ear(store) for _ in range(20)]

    def connections() -> int:
        return len(peek.raw.client_list(_type="pubsub"))

    async def none() -> bool:
        return connections() == 0

    for number, one in enumerate(ears):
        await one.follow(*(claim.task_id for claim in claims[number : number + 20]))
        assert connections() == 1
    for one in ears:
        store.changes.leave([claim.task_id for claim in claims], one.hear)
    await eventually(none, description="the connection is closed")
    await ear.follow(claims[0].task_id)
    assert connections() == 1


# ------------------------------------------------------------------------------------------------ breaks


async def test_after_a_broken_connection_every_task_is_to_be_looked_at_again(
    store: TaskStore, peek: Peek, ear: Ear, caplog: pytest.LogCaptureFixture
) -> None:
    """What was published meanwhile is lost; that something may have been is not."""
    one, two = await running(store), await running(store)
    await ear.follow(one.task_id, two.task_id)
    assert peek.raw.client_kill_filter(_type="pubsub") == 1
    await store.progress(one, "Half", 1, 2)  # heard or not, depending on who is quicker
    wanted = {Change(one.task_id), Change(two.task_id)}
    while wanted:
        wanted.discard(await ear.next())
    assert "tells of no changes" in caplog.text
    assert [change.revision for change in await ear.only(two)] == []


async def test_a_store_that_was_away_is_heard_again(tmp_path: Path, anyio_backend: str) -> None:
    """However long it was: the tasks are followed again by themselves."""
    with EmbeddedValkey(tmp_path / "v") as valkey:
        port = valkey.port
        store = TaskStore(Settings(redis_url=valkey.url))
        ear = Ear(store)
        claim = await running(store)
        await ear.follow(claim.task_id)
    late = "x" * 32
    store.changes.follow([late], ear.hear)
    with EmbeddedValkey(tmp_path / "v", port):
        assert {(await ear.next()), (await ear.next())} == {Change(claim.task_id), Change(late)}
        await store.progress(claim, "Half", 1, 2)
        assert (await ear.next()).task_id == claim.task_id
        await store.aclose()


async def test_a_connection_that_died_without_a_word_is_given_up(
    tmp_path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A frozen store or a cut cable says nothing at all; silence must not pass for no news."""
    monkeypatch.setattr(module, "_PROBE_S", 0.05)
    with EmbeddedValkey(tmp_path) as valkey:
        store = TaskStore(Settings(redis_url=valkey.url))
        ear = Ear(store)
        claim = await running(store)
        await ear.follow(claim.task_id)
        os.kill(valkey.pid, signal.SIGSTOP)

        async def given_up() -> bool:
            return "does not answer" in caplog.text

        try:
            await eventually(given_up, description="the connection is given up")
        finally:
            os.kill(valkey.pid, signal.SIGCONT)
        assert await ear.next() == Change(claim.task_id)
        await store.aclose()


async def test_a_closed_store_leaves_no_connection(store: TaskStore, ear: Ear, peek: Peek) -> None:
    """Whoever still follows hears nothing more."""
    claim = await running(store)
    await ear.follow(claim.task_id)
    await store.aclose()
    assert peek.raw.client_list(_type="pubsub") == []


async def test_a_cancel_at_any_moment_of_closing_leaves_no_connection(settings: Settings, peek: Peek) -> None:
    """redis-py closes connections in tasks that a cancel may stop before they begin; CI met the sockets it left."""
    before = len(peek.raw.client_list())
    for ticks in range(1, 12):
        store = TaskStore(settings)
        ear = Ear(store)
        claim = await running(store)
        await ear.follow(claim.task_id)
        store.changes.leave([claim.task_id], ear.hear)
        closing = asyncio.get_running_loop().create_task(store.aclose())
        for _ in range(ticks):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})

        async def closed() -> bool:
            return len(peek.raw.client_list()) == before

        await eventually(closed, description=f"all is closed after a cancel at tick {ticks}")


# ------------------------------------------------------------------------------------------------ owned


@covers("P70", "P80")
async def test_of_many_ids_those_that_exist_and_are_the_callers_are_owned(store: TaskStore, peek: Peek) -> None:
    """The same equality as in `read`, for any number of tasks in one round trip."""
    mine, foreign = [await queued(store) for _ in range(3)], await queued(store, owner="bob")
    gone = await queued(store)
    peek.raw.delete(store.keys.task(gone))
    asked = [mine[2], foreign, "y" * 32, mine[0], gone, mine[1]]
    assert await store.owned(asked, ANN) == [mine[2], mine[0], mine[1]]
    assert await store.owned(asked, "") == []
    assert await store.owned([], ANN) == []
