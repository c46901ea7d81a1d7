"""active: every admitted task that has not ended, and no other; the lists of callers and tools are kept alike."""

from __future__ import annotations

from typing import Final

import pytest

from mcptasks.model import Status
from mcptasks.policy import Policy
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.life import OWNER
from tests.support.moves import QUEUE, TOOL, Ask, Cancel, Finish, Move, Park, Reap, Release, TryLater
from tests.support.peek import Peek
from tests.support.scenes import SCENES
from tests.support.tasks import queued

pytestmark = pytest.mark.anyio

POLICY: Final = Policy(retry_ms=(3_600_000,), time_limit_ms=3_600_000, queue=QUEUE)
UNFINISHED: Final = sorted(SCENES.keys() - {"completed", "completed, with files", "cancelled", "failed"})

#: Every way in which a task can end: where it stands, what happens, what the store answers.
ENDS: Final[list[tuple[str, Move, str]]] = [
    ("running", Finish(1, Status.COMPLETED), "FINISHED"),
    ("running", Finish(1, Status.FAILED), "FINISHED"),
    ("running", Finish(1, Status.CANCELLED), "FINISHED"),
    ("held", Finish(1), "FINISHED"),
    ("queued", Cancel(), "CANCELLED"),
    ("queued", Cancel(None), "CANCELLED"),
    ("parked", Cancel(), "CANCELLED"),
    ("answered", Cancel(), "CANCELLED"),
    ("released", Cancel(), "CANCELLED"),
    ("between retries", Cancel(), "CANCELLED"),
    ("running a retry", TryLater(2), "EXHAUSTED"),
    ("running, cancel asked", Ask(1, ("a",)), "CANCELLED"),
    ("running, cancel asked", TryLater(1), "CANCELLED"),
    ("running, cancel asked", Release(1), "CANCELLED"),
    ("held, cancel asked", Park(1), "CANCELLED"),
    ("running, cancel asked and its worker lost", Reap(), "CANCELLED"),
    ("running, expired", Reap(), "FAILED"),
    ("parked, expired", Reap(), "FAILED"),
    ("running, over its limit", Reap(), "FAILED"),
]


async def at(store: TaskStore, scene: str, policy: Policy = POLICY) -> str:
    """A task that stands so."""
    task_id = await queued(store, owner=OWNER, policy=policy)
    for move in SCENES[scene]:
        await move.do(store, task_id)
    return task_id


def shares(peek: Peek) -> list[list[str]]:
    """The unfinished tasks in the caller's and the tool's list."""
    lists = peek.keys.tasks_of_owner(OWNER), peek.keys.tasks_of_tool(TOOL)
    return [peek.raw.zrange(f"{name}active", 0, -1) for name in lists]


@covers("T2", "T4")
@pytest.mark.parametrize("scene", UNFINISHED)
async def test_an_unfinished_task_is_active_wherever_it_stands(store: TaskStore, peek: Peek, scene: str) -> None:
    """T2: admitted and not yet started, between two runs, waiting for a person: there is no gap to fall into."""
    task_id = await at(store, scene)
    assert await store.active() == [task_id]
    assert shares(peek) == [[task_id], [task_id]]


@covers("T2", "T4", "T5")
@pytest.mark.parametrize(("scene", "move", "word"), ENDS, ids=str)
async def test_with_its_end_it_leaves_every_list(
    store: TaskStore, peek: Peek, scene: str, move: Move, word: str
) -> None:
    """T5: whatever ends it, in the very transition that does."""
    task_id = await at(store, scene)
    assert (await move.do(store, task_id))[0] == word
    assert await store.active() == []
    assert shares(peek) == [[], []]


@covers("T2", "T5")
async def test_the_last_lost_worker_ends_it_too(store: TaskStore, peek: Peek) -> None:
    """Within its attempts a lost task is active, and after them it is not."""
    policy = Policy(max_attempts=1, retry_ms=(3_600_000,), queue=QUEUE)
    task_id = await at(store, "running, its worker lost", policy)
    assert await Reap().do(store, task_id) == ("FAILED", "worker_lost")
    assert (await store.active(), shares(peek)) == ([], [[], []])


@covers("T2")
async def test_the_list_is_in_lexical_order_whatever_came_first(store: TaskStore) -> None:
    """T2: stable logs. The store has them by the time at which their keys are gone."""
    ttls_ms = (50_000, 10_000, 40_000, 20_000, 30_000)
    tasks = [await queued(store, policy=Policy(ttl_ms=ttl_ms)) for ttl_ms in ttls_ms]
    assert await store.active() == sorted(tasks)


@covers("T2", "T5")
async def test_a_task_whose_keys_are_gone_is_counted_nowhere(store: TaskStore, peek: Peek) -> None:
    """Nobody would ever settle it: a drain must not wait for it, and a limit must not be used up by it."""
    task_id, living = await queued(store, owner=OWNER), await queued(store, owner=OWNER)
    peek.drop(task_id)
    assert await store.active() == [living]
    assert shares(peek) == [[living], [living]]
