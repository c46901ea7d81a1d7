"""find: the one task whose id begins so, within what is visible."""

from __future__ import annotations

import pytest

from mcptasks.model import new_task_id
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN, claimed, create, end, queued

pytestmark = pytest.mark.anyio


async def alike(store: TaskStore, start: str, **how: str) -> str:
    """A task whose id begins so."""
    return (await create(store, start + new_task_id()[len(start) :], **how)).task_id  # pyright: ignore[reportArgumentType]


@covers("W8")
async def test_a_task_is_found_by_the_beginning_of_its_id_until_it_is_gone(store: TaskStore, peek: Peek) -> None:
    """W8: unfinished and ended; the whole id too."""
    task_id = await alike(store, "abcd")
    await alike(store, "abc_")
    for start in ("abcd", task_id[:10], task_id):
        assert await store.find(start, ANN) == await store.find(start, None) == task_id
    args = {"start": "abcd", "owner_digest": None, "operator": "1", "looks": 9}
    assert await store.run_script("find", store.fleet("ids"), args) == ["FOUND", task_id]
    await end(store, await claimed(store, task_id))
    assert await store.find("abcd", ANN) == task_id
    peek.raw.delete(peek.keys.task(task_id))
    assert await store.find("abcd", ANN) == "NONE"
    assert not peek.holds(peek.keys.drops, task_id), "and its entries are cleared away"


@covers("W8")
async def test_a_foreign_task_neither_resolves_nor_makes_a_beginning_ambiguous(store: TaskStore) -> None:
    """W8: as if it were not there. The operator sees both."""
    mine, yours = await alike(store, "abcd"), await alike(store, "abcd", owner="bob")
    assert (await store.find("abcd", ANN), await store.find("abcd", "bob")) == (mine, yours)
    assert await store.find("abcd", "carol") == "NONE"
    assert await store.find("abcd", None) == "SEVERAL"
    assert await store.find(yours, ANN) == "NONE"
    await alike(store, "abcd")
    assert await store.find("abcd", ANN) == "SEVERAL"


@covers("W8", "P81")
async def test_a_task_without_an_owner_is_found_by_operators_alone(store: TaskStore) -> None:
    """P81: its whole id is the secret; a part of it, which logs may show, opens nothing."""
    task_id = await queued(store, owner="")
    assert await store.find(task_id[:10], "") == "NONE"
    assert await store.find(task_id[:10], None) == task_id


@covers("F11")
@pytest.mark.parametrize(
    "start", ["", "abc", "*", "????", "[abc", "(abcd", "+", "-", "abcd e", "x" * 33, "\ud83d" * 4, "é" * 4]
)
async def test_an_odd_beginning_finds_nothing(store: TaskStore, peek: Peek, start: str) -> None:
    """F11: no patterns, no scan."""
    await alike(store, "abcd")
    peek.raw.config_resetstat()
    assert await store.find(start, None) == "NONE"
    assert not {"cmdstat_scan", "cmdstat_keys"} & set(peek.raw.info("commandstats"))


async def test_a_beginning_of_dashes_is_one_like_any_other(store: TaskStore) -> None:
    """The ids' alphabet has them."""
    task_id = await alike(store, "-_-_")
    assert await store.find("-_-_", ANN) == task_id
