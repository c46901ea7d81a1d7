"""discard: the folders of tasks that are gone are handed out to be removed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mcptasks.errors import ArtifactsUnavailable
from mcptasks.fleet.sweeper import discard
from mcptasks.model import Claim
from mcptasks.store.artifacts import DISCARD_BATCH
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import running

pytestmark = pytest.mark.anyio


async def reserved(store: TaskStore) -> Claim:
    """A running task that has a folder."""
    claim = await running(store)
    assert await store.reserve(claim) == "RESERVED"
    return claim


def gone(peek: Peek, claim: Claim) -> None:
    """Redis has dropped the task."""
    for key in (peek.keys.task, peek.keys.call, peek.keys.journal, peek.keys.artifacts_of):
        peek.raw.delete(key(claim.task_id))
    peek.make_due("artifacts", claim.task_id)


@covers("W7")
async def test_a_folder_is_handed_out_once_its_task_is_gone_and_not_twice(store: TaskStore, peek: Peek) -> None:
    """As long as nobody says that it is removed it stays in the index."""
    kept, dropped = await reserved(store), await reserved(store)
    gone(peek, dropped)
    assert await store.discard() == [dropped.task_id]
    assert await store.discard() == []
    peek.make_due("artifacts", dropped.task_id)
    assert await store.discard() == [dropped.task_id]
    assert await store.discard([dropped.task_id]) == []
    assert peek.score("artifacts", dropped.task_id) is None
    assert peek.score("artifacts", kept.task_id) is not None


@covers("W7")
async def test_a_task_that_lives_keeps_its_files_whatever_the_index_says(store: TaskStore, peek: Peek) -> None:
    """Its end may have been moved by a version that knew no files."""
    claim = await reserved(store)
    peek.make_due("artifacts", claim.task_id)
    assert await store.discard() == []
    assert peek.score("artifacts", claim.task_id) == float(peek.field(claim.task_id, "gone") or 0)


async def test_the_script_answers_one_word(store: TaskStore) -> None:
    """And the ids."""
    keys, args = store.fleet("artifacts"), {"task_prefix": "x", "again_ms": 1, "batch": 1, "done": []}
    assert await store.run_script("discard", keys, args) == ["DISCARD"]


@covers("W7")
async def test_all_files_of_tasks_that_are_gone_are_removed(open_store: OpenStore, peek: Peek, tmp_path: Path) -> None:
    """In batches; those of a task that lives are not."""
    store = open_store(artifacts_url=str(tmp_path))
    claims = [await reserved(store) for _ in range(DISCARD_BATCH + 3)]
    for claim in claims:
        await store.files.write(claim.task_id, _bytes(), 100, "It")
    for claim in claims[1:]:
        gone(peek, claim)
    await discard(store)
    assert len(os.listdir(tmp_path)) == 1
    assert peek.raw.zcard(peek.keys.artifacts) == 1


@covers("W7", "W10")
async def test_files_that_cannot_be_removed_are_tried_again(open_store: OpenStore, peek: Peek, tmp_path: Path) -> None:
    """They stay in the index, and the others of the batch are done with."""
    store = open_store(artifacts_url=str(tmp_path))
    first, second = await reserved(store), await reserved(store)
    for claim in (first, second):
        await store.files.write(claim.task_id, _bytes(), 100, "It")
        gone(peek, claim)
    peek.raw.zadd(peek.keys.artifacts, {second.task_id: 2})
    remove_all = store.files.remove_all

    async def broken(task_id: str) -> None:
        if task_id == second.task_id:
            raise ArtifactsUnavailable("away")
        await remove_all(task_id)

    store.files.remove_all = broken
    with pytest.raises(ArtifactsUnavailable):
        await discard(store)
    assert peek.score("artifacts", first.task_id) is None
    assert (peek.score("artifacts", second.task_id) or 0) > peek.now_ms()
    store.files.remove_all = remove_all
    peek.make_due("artifacts", second.task_id)
    await discard(store)
    assert os.listdir(tmp_path) == []


async def _bytes() -> AsyncIterator[bytes]:
    yield b"bytes"
