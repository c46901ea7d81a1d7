"""Scope: what two callers and an operator see of each other's tasks, by lists, numbers and beginnings of ids."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import pytest

from mcptasks.errors import AmbiguousTask, UnknownTask
from mcptasks.model import Status, new_task_id
from mcptasks.operations import Operations
from mcptasks.scope import Scope
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN, TERMINAL, claimed, create, end, parked, queued, submission

pytestmark = pytest.mark.anyio

CALLS: Final = 200
TOOLS: Final = ("report", "other")


@dataclass
class Known:
    """A task as the model has it."""

    task_id: str
    owner: str
    tool: str
    status: Status = Status.QUEUED
    gone: bool = False


@dataclass
class World:
    """All tasks, in plain Python, and three who look at them and change them."""

    store: TaskStore
    peek: Peek
    chance: random.Random
    tasks: list[Known] = field(default_factory=list[Known])

    def seen_by(self, owner: str | None) -> list[Known]:
        """Newest first; no one who has no name sees anything by lists."""
        seen = [task for task in self.tasks if not task.gone and owner in (None, task.owner) and owner != ""]
        order = {task.task_id: int(self.peek.field(task.task_id, "created") or 0) for task in seen}
        return sorted(seen, key=lambda task: (order[task.task_id], task.task_id), reverse=True)

    async def create(self, owner: str | None) -> None:
        # Few beginnings, so that many are shared, also between callers.
        task_id = self.chance.choice(["aaaa", "aaab", "bbbb"]) + self.chance.choice("xy") + new_task_id()[5:]
        task = Known(task_id, owner or self.chance.choice([ANN, "bob", ""]), self.chance.choice(TOOLS))
        await create(self.store, task_id, submission(task.tool), owner=task.owner)
        self.tasks.append(task)

    async def move(self, owner: str | None) -> None:
        """A worker does something to any task, whoever looks at it."""
        if not (waiting := [task for task in self.tasks if task.status is Status.QUEUED and not task.gone]):
            return
        task = self.chance.choice(waiting)
        claim = await claimed(self.store, task.task_id)
        task.status = Status.RUNNING
        if self.chance.random() < 0.8:
            task.status = self.chance.choice(TERMINAL)
            await end(self.store, claim, task.status)

    async def vanish(self, owner: str | None) -> None:
        if left := [task for task in self.tasks if not task.gone]:
            task = self.chance.choice(left)
            task.gone = True
            self.peek.drop(task.task_id)

    async def cancel(self, owner: str | None) -> None:
        if not self.tasks:
            return
        task = self.chance.choice(self.tasks)
        word = await self.store.cancel(task.task_id, owner, "No more")
        if task.gone or owner not in (None, task.owner):
            assert word == "GONE"
        elif task.status is Status.QUEUED:
            assert word == "CANCELLED"
            task.status = Status.CANCELLED
        else:
            assert word == ("REQUESTED" if task.status is Status.RUNNING else "FINISHED")

    async def page(self, owner: str | None) -> None:
        """All pages, while others create tasks between two of them."""
        statuses = self.chance.sample(list(Status), self.chance.randint(1, len(Status)))
        tool = self.chance.choice([None, *TOOLS])
        wanted = [t.task_id for t in self.seen_by(owner) if t.status in statuses and tool in (None, t.tool)]
        found: list[str] = []
        cursor, limit = None, self.chance.randint(1, 7)
        while True:
            page = await Scope(self.store, owner).page(statuses=statuses, tool=tool, limit=limit, cursor=cursor)
            found += [task.task_id for task in page.tasks]
            if (cursor := page.cursor) is None:
                break
            if self.chance.random() < 0.2:
                self.peek.tick()
                await self.create(None)
        # What was created after the first page is newer than all of it.
        assert found == wanted

    async def count(self, owner: str | None) -> None:
        tool = self.chance.choice([None, *TOOLS])
        counts = await Scope(self.store, owner).count(tool)
        wanted = Counter(task.status for task in self.seen_by(owner) if tool in (None, task.tool))
        assert {status: number for status, number in counts.by_status.items() if number} == dict(wanted)

    async def find(self, owner: str | None) -> None:
        if not self.tasks:
            return
        start = self.chance.choice(self.tasks).task_id[: self.chance.choice([4, 5, 6, 7, 32])]
        matching = [task.task_id for task in self.seen_by(owner) if task.task_id.startswith(start)]
        try:
            assert [await Scope(self.store, owner).find(start)] == matching
        except UnknownTask:
            assert matching == []
        except AmbiguousTask:
            assert len(matching) > 1

    async def read(self, owner: str | None) -> None:
        if not self.tasks:
            return
        task = self.chance.choice(self.tasks)
        try:
            record = await Scope(self.store, owner).read(task.task_id)
            assert (record.owner, record.status) == (task.owner, task.status)
            assert owner in (None, task.owner)
        except UnknownTask:
            assert task.gone or owner not in (None, task.owner)


@covers("W8", "P80", "F11")
@pytest.mark.parametrize("seed", range(3))
async def test_nothing_foreign_is_ever_visible_ambiguous_or_changed(store: TaskStore, peek: Peek, seed: int) -> None:
    """Issue 5: two owners, an operator and one without a name, 200 random calls each, against a model."""
    world = World(store, peek, random.Random(seed))
    peek.raw.config_resetstat()
    actors = [actor for actor in (ANN, "bob", "", None) for _ in range(CALLS)]
    world.chance.shuffle(actors)
    moves = [world.create, world.create, world.move, world.cancel, world.vanish]
    moves += [world.page, world.count, world.find, world.find, world.read]
    for actor in actors:
        await world.chance.choice(moves)(actor)
    assert not {"cmdstat_scan", "cmdstat_keys"} & set(peek.raw.info("commandstats"))


@covers("W8")
async def test_the_operators_handle_has_lists_numbers_and_beginnings(
    settings: Settings, store: TaskStore, peek: Peek
) -> None:
    """Of everybody's tasks."""
    mine, yours = await queued(store), await queued(store, owner="bob")
    async with Operations(settings) as fleet:
        assert {task.task_id for task in (await fleet.page()).tasks} == {mine, yours}
        assert (await fleet.count()).by_status[Status.QUEUED] == (await fleet.count("report")).unfinished == 2
        assert (await fleet.read(yours[:12])).owner == "bob"
        until_ms = await fleet.extend(mine[:12], "30d")
        assert until_ms is not None
        assert until_ms - peek.now_ms() == pytest.approx(30 * 86_400_000, abs=60_000)
        for odd in ("abc", "*", "x" * 40, ""):
            with pytest.raises(UnknownTask):
                await fleet.read(odd)
        assert [task.task_id for task in (await fleet.page(owner="bob")).tasks] == [yours]
        assert (await fleet.count(owner="bob")).unfinished == (await fleet.count("report", owner="bob")).unfinished == 1


@covers("W8", "W5")
async def test_an_operator_names_a_task_by_the_beginning_of_its_id(settings: Settings, store: TaskStore) -> None:
    """W8: to answer, extend and cancel; W5: the cancel says what it did. One of two is never guessed."""
    twins = [f"aaaa{n}{new_task_id()[5:]}" for n in range(2)]
    for task_id in twins:
        await create(store, task_id)
    asking_one = await parked(store, "q")
    calls: list[Callable[[Operations, str], Awaitable[object]]] = [
        lambda fleet, task: fleet.cancel(task, "Moving house"),
        lambda fleet, task: fleet.extend(task, "30d"),
        lambda fleet, task: fleet.answer(task, {"q": {"action": "decline"}}),
    ]
    async with Operations(settings) as fleet:
        for call in calls:
            with pytest.raises(AmbiguousTask, match="More than one task's id begins with 'aaaa'"):
                await call(fleet, "aaaa")
            for nobody in ("zzzz", new_task_id(), "*"):
                with pytest.raises(UnknownTask):
                    await call(fleet, nobody)
        assert await fleet.answer(asking_one.task_id[:8], {"q": {"action": "decline"}})
        run = await claimed(store, asking_one.task_id, run=2)
        assert await fleet.cancel(run.task_id[:8]) == "REQUESTED"
        assert await fleet.cancel(twins[0][:5], "Moving house") == "CANCELLED"
        assert await fleet.cancel(twins[0]) == "FINISHED"
        assert [(await fleet.read(task)).status_message for task in twins] == ["Moving house", None]


@pytest.mark.parametrize("limit", [0, 501])
async def test_a_page_has_a_size_that_can_be_answered(store: TaskStore, limit: int) -> None:
    """One script holds the store's only thread."""
    with pytest.raises(ValueError, match="1 to 500"):
        await Scope(store, ANN).page(limit=limit)
