"""artifact: a complete file is the task's artifact of a name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import SecretStr

from mcptasks.errors import Sealed
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.keys import SECRETS
from tests.support.peek import Peek
from tests.support.tasks import ANN, artifact, claimed, end, running

pytestmark = pytest.mark.anyio


@covers("W7", "P80")
async def test_a_recorded_artifact_is_its_callers_and_nobody_elses(store: TaskStore) -> None:
    """Who may read the task may read it; the operator sees every task."""
    claim = await running(store)
    one = artifact()
    assert await store.artifact(claim, one) == ("RECORDED", "")
    assert await store.artifacts(claim.task_id, ANN) == [one]
    assert await store.artifacts(claim.task_id, None) == [one]
    assert await store.artifacts(claim.task_id, "bob") is None
    assert await store.artifacts("u" * 32, ANN) is None


@covers("W7")
async def test_the_same_bytes_under_the_same_name_are_the_same_artifact(store: TaskStore, peek: Peek) -> None:
    """A tool that runs again from the top writes them again: the file of before stands."""
    claim = await running(store)
    first = artifact(file="first")
    await store.artifact(claim, first)
    await store.release(claim)
    again = await claimed(store, claim.task_id, run=2)
    assert await store.artifact(again, artifact(file="second")) == ("KNOWN", "first")
    assert await store.artifacts(claim.task_id, ANN) == [first]


@covers("W7")
async def test_other_bytes_under_the_same_name_replace_it(store: TaskStore) -> None:
    """And the file of before is nobody's any more."""
    claim = await running(store)
    await store.artifact(claim, artifact(data="old", file="first"))
    new = artifact(data="new", file="second")
    assert await store.artifact(claim, new) == ("RECORDED", "first")
    assert await store.artifacts(claim.task_id, ANN) == [new]


async def test_another_type_of_the_same_bytes_is_written_down(store: TaskStore) -> None:
    """With the file of before."""
    claim = await running(store)
    await store.artifact(claim, artifact(file="first"))
    changed = replace(artifact(file="second"), mime="text/plain; charset=utf-8")
    assert await store.artifact(claim, changed) == ("KNOWN", "first")
    assert await store.artifacts(claim.task_id, ANN) == [replace(changed, file="first")]


@covers("B09", "W7")
async def test_sealed_nothing_that_is_known_of_an_artifact_can_be_read_or_guessed(
    open_store: OpenStore, peek: Peek
) -> None:
    """Neither its name, nor its type, nor the digest of its bytes."""
    old, new, _ = SECRETS
    store = open_store(encryption_keys=(old,))
    claim = await running(store)
    one = replace(artifact(file="first"), sealed=True)
    await store.artifact(claim, one)
    stored = str(peek.raw.hgetall(peek.keys.artifacts_of(claim.task_id)))
    assert not any(said in stored for said in (one.name, one.mime, one.sha256))
    for keys in ((old,), (new, old)):
        assert await open_store(encryption_keys=keys).artifacts(claim.task_id, ANN) == [one]
    with pytest.raises(Sealed):
        await open_store(encryption_keys=(new,)).artifacts(claim.task_id, ANN)


@covers("B09")
@pytest.mark.parametrize("before", [(), SECRETS[:1]])
async def test_an_artifact_is_one_under_its_name_also_when_keys_change(
    open_store: OpenStore, before: tuple[SecretStr, ...]
) -> None:
    """What is written again is written anew, with the new key, and the file of before goes."""
    claim = await running(store := open_store(encryption_keys=before))
    await store.artifact(claim, artifact(file="first"))
    store = open_store(encryption_keys=SECRETS[1:2] + before)
    again = replace(artifact(file="second"), sealed=True)
    assert await store.artifact(claim, again) == ("RECORDED", "first")
    assert await store.artifact(claim, again) == ("KNOWN", "second")
    assert await store.artifacts(claim.task_id, ANN) == [again]


@covers("W7")
async def test_one_file_more_than_the_limit_is_refused_but_the_result(open_store: OpenStore) -> None:
    """A task that made its files must be able to end."""
    store = open_store(artifacts_max=2)
    claim = await running(store)
    for name in ("a", "b"):
        assert (await store.artifact(claim, artifact(name)))[0] == "RECORDED"
    assert await store.artifact(claim, artifact("c")) == ("TOO_MANY", "3")
    assert (await store.artifact(claim, artifact("b", "other")))[0] == "RECORDED"
    assert (await store.artifact(claim, artifact("")))[0] == "RECORDED"


@covers("W7")
async def test_more_bytes_than_the_limit_are_refused_and_what_is_replaced_does_not_count(
    open_store: OpenStore,
) -> None:
    """The limit is on what the task keeps."""
    store = open_store(artifacts_total_max=10)
    claim = await running(store)
    assert (await store.artifact(claim, artifact("a", "x" * 6)))[0] == "RECORDED"
    assert await store.artifact(claim, artifact("b", "y" * 5)) == ("TOO_LARGE", "11")
    assert (await store.artifact(claim, artifact("a", "z" * 10)))[0] == "RECORDED"
    assert (await store.artifact(claim, artifact("", "r" * 20)))[0] == "RECORDED"


@covers("F11")
async def test_an_artifact_may_have_any_name(store: TaskStore) -> None:
    """Names are what people see; they are never part of a path or a key."""
    claim = await running(store)
    names = ["../../etc/passwd", "a b", "naïve.csv", "n:x", "\ud83d", "CON", "*"]
    for name in names:
        assert (await store.artifact(claim, artifact(name)))[0] == "RECORDED"
    assert {one.name for one in await store.artifacts(claim.task_id, ANN) or []} == set(names)


async def test_what_is_known_of_artifacts_ends_with_the_task(store: TaskStore, peek: Peek) -> None:
    """Its keys live and die as one unit."""
    claim = await running(store)
    await store.reserve(claim)
    await store.artifact(claim, artifact())
    keys = peek.keys.task(claim.task_id), peek.keys.artifacts_of(claim.task_id)
    assert len({peek.raw.pexpiretime(key) for key in keys}) == 1
    await end(store, claim)
    assert len({peek.raw.pexpiretime(key) for key in keys}) == 1


@covers("P35")
async def test_an_artifact_is_invisible_to_the_client_until_the_end(store: TaskStore, peek: Peek) -> None:
    """lastUpdatedAt stays."""
    claim = await running(store)
    peek.age(claim.task_id)
    await store.artifact(claim, artifact())
    assert not peek.updated(claim.task_id)
