"""A store that is away, frozen, full or read-only: an error within seconds that says where, and nothing half done."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import redis

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.errors import StoreUnavailable
from mcptasks.settings import Settings
from mcptasks.store.connection import address
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.support.peek import Peek
from tests.support.tasks import ANN, end, parked, queued, read, running

pytestmark = pytest.mark.anyio

#: What a caller may have to wait for the error.
PATIENCE_S: Final = 5.0
CROWD: Final = 300


@pytest.fixture
def fragile(tmp_path: Path) -> Generator[EmbeddedValkey]:
    """A Valkey of this test's own, to be broken."""
    with EmbeddedValkey(tmp_path) as valkey:
        yield valkey


@pytest.fixture
async def store(fragile: EmbeddedValkey, anyio_backend: str) -> AsyncGenerator[TaskStore]:
    """The store on it, already connected."""
    store = TaskStore(Settings(redis_url=fragile.url))
    await store.read("nobody", ANN)
    yield store
    await store.aclose()


@pytest.fixture
def peek(fragile: EmbeddedValkey) -> Generator[Peek]:
    """What it really holds."""
    with redis.Redis.from_url(fragile.url, decode_responses=True) as raw:
        yield Peek(raw, Settings().prefix)


@contextmanager
def configured(peek: Peek, name: str, value: str) -> Generator[None]:
    """The server has this configuration inside the block."""
    before = peek.raw.config_get(name)[name]
    peek.raw.config_set(name, value)
    yield
    peek.raw.config_set(name, before)


async def refused(transition: Awaitable[object]) -> str:
    """What the caller is told, in time."""
    started = time.monotonic()
    with pytest.raises(StoreUnavailable) as unavailable:
        await transition
    assert time.monotonic() - started < PATIENCE_S
    return str(unavailable.value)


# ------------------------------------------------------------------------------------------------ not there


@covers("P62", "A10")
async def test_nobody_at_the_address_is_said_with_the_address_and_what_to_do(anyio_backend: str) -> None:
    """P62: within seconds, a plain message."""
    store = TaskStore(Settings(redis_url="redis://127.0.0.1:1/3"))
    for transition in (queued(store), store.read("nobody", ANN), store.cancel("nobody", ANN, ""), store.sweep("me")):
        message = await refused(transition)
        assert "The store at redis://127.0.0.1:1/3 does not answer (ConnectionError)" in message
        assert "MCPTASKS_REDIS_URL" in message
        assert "mcptasks doctor" in message
    await store.aclose()


@pytest.mark.parametrize("where", ["127.0.0.1:{port}/0", "127.0.0.1:1/0"], ids=["wrong password", "nobody there"])
@pytest.mark.parametrize(
    "url",
    [
        "redis://user:ge%40heim@{where}",
        "redis://:ge%40heim@{where}",
        "redis://{where}?username=user&password=ge%40heim",
    ],
    ids=["user and password", "password", "query"],
)
async def test_a_password_is_never_shown(
    fragile: EmbeddedValkey, peek: Peek, anyio_backend: str, url: str, where: str
) -> None:
    """Messages end up in logs: neither the text nor what caused it may carry credentials."""
    peek.raw.config_set("requirepass", "another")
    store = TaskStore(Settings(redis_url=url.format(where=where.format(port=fragile.port))))
    with pytest.raises(StoreUnavailable, match="does not answer") as unavailable:
        await store.read("nobody", ANN)
    error: BaseException | None = unavailable.value
    while error is not None:
        assert "heim" not in repr(error)
        assert "user:" not in repr(error)
        error = error.__cause__ or error.__context__
    await store.aclose()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/2", "redis://h:1/2"),
        ("rediss://u:p@h/0", "rediss://h/0"),
        ("redis://:p@h:6379", "redis://h:6379"),
        ("redis://h/0?password=p&x=1", "redis://h/0"),
        ("unix://u:p@/run/valkey.sock?db=1", "unix:///run/valkey.sock"),
        ("redis://u:p@[::1]:6379/0", "redis://[::1]:6379/0"),
    ],
)
def test_an_address_is_the_url_without_its_secrets(url: str, shown: str) -> None:
    """People must still be able to tell which store is meant."""
    assert address(url) == shown


# ------------------------------------------------------------------------------------------------ frozen, restarted


@covers("P62", "A10")
async def test_a_frozen_store_is_given_up_in_time_and_used_again_when_it_is_back(
    fragile: EmbeddedValkey, store: TaskStore
) -> None:
    """A10: never wait for ever; also on a connection that was never used before."""
    fresh = TaskStore(Settings(redis_url=fragile.url))
    os.kill(fragile.pid, signal.SIGSTOP)
    try:
        for transition in (queued(store), fresh.read("nobody", ANN)):
            message = await refused(transition)
            assert f"redis://127.0.0.1:{fragile.port}/0 does not answer (TimeoutError)" in message
    finally:
        os.kill(fragile.pid, signal.SIGCONT)
    claim = await running(store)
    assert (await read(fresh, claim.task_id)).token == 1
    await fresh.aclose()


@covers("P62", "A10")
async def test_of_a_crowd_of_calls_on_a_frozen_store_nobody_waits_longer(
    fragile: EmbeddedValkey, store: TaskStore
) -> None:
    """Those who wait for a connection give up with those who have one."""
    os.kill(fragile.pid, signal.SIGSTOP)
    try:
        await asyncio.gather(*(refused(store.read("nobody", ANN)) for _ in range(CROWD)))
    finally:
        os.kill(fragile.pid, signal.SIGCONT)
    await running(store)


async def test_a_crowd_of_calls_is_served_over_a_few_connections(store: TaskStore, peek: Peek) -> None:
    """redis-py raises at the hundredth connection: of 200 runs that were stopped at once, half kept their claims."""
    before = len(peek.raw.client_list())
    await asyncio.gather(*(running(store) for _ in range(CROWD)))
    assert len(peek.raw.client_list()) - before <= 32


async def test_a_restart_of_the_store_costs_no_call(fragile: EmbeddedValkey, store: TaskStore) -> None:
    """The connection is dead and the scripts are forgotten; the next call heals both by itself."""
    task_id = await queued(store)
    port = fragile.port
    fragile.stop()
    with EmbeddedValkey(fragile.folder, port):
        assert (await read(store, task_id)).task_id == task_id
        assert (await running(store)).token == 1


# ------------------------------------------------------------------------------------------------ refuses to write


@covers("P62", "W10")
async def test_a_full_store_refuses_new_tasks_whole_and_still_reads(store: TaskStore, peek: Peek) -> None:
    """A17: a durable backend may say no to new work, but may not lose what it accepted."""
    claim = await running(store)
    before = peek.all_keys(), peek.stored(claim.task_id)
    with configured(peek, "maxmemory", "1"):
        for transition in (queued(store), end(store, claim), store.progress(claim, "Half", 1, 2)):
            assert "refused the write" in await refused(transition)
        assert (await read(store, claim.task_id)).token == 1
        assert (peek.all_keys(), peek.stored(claim.task_id)) == before
    assert await end(store, claim) == "FINISHED"


@covers("W10")
async def test_in_a_full_store_an_answer_is_stored_whole_or_not_at_all(store: TaskStore, peek: Peek) -> None:
    """A transition that first frees a little (an open question) must not stop half way through."""
    claim = await parked(store, "a", "b")
    before = peek.stored(claim.task_id)
    with configured(peek, "maxmemory", "1"):
        try:
            word = (await store.answer(claim.task_id, ANN, {"a": 1, "b": 2})).outcome
        except StoreUnavailable:
            word = "refused"
    if word == "refused":
        assert peek.stored(claim.task_id) == before
    else:
        assert word == "QUEUED"
        assert (await store.journal(claim.task_id)).answers == {"a": 1, "b": 2}
        assert (await read(store, claim.task_id)).questions == {}


@covers("W10")
async def test_a_store_that_became_a_replica_refuses_writes_and_still_reads(store: TaskStore, peek: Peek) -> None:
    """A09: during a failover a demoted node answers READONLY; that is not a mistake in a script."""
    claim = await running(store)
    before = peek.stored(claim.task_id)
    peek.raw.replicaof("127.0.0.1", "1")
    for transition in (queued(store), end(store, claim)):
        assert "refused the write" in await refused(transition)
    assert (await read(store, claim.task_id)).token == 1
    peek.raw.replicaof("NO", "ONE")
    assert peek.stored(claim.task_id) == before
    assert await end(store, claim) == "FINISHED"


@covers("W10")
async def test_a_store_without_its_replicas_refuses_writes(store: TaskStore, peek: Peek) -> None:
    """An operator who set min-replicas-to-write prefers a refusal to a write that may be lost."""
    with configured(peek, "min-replicas-to-write", "1"):
        assert "refused the write: NOREPLICAS" in await refused(queued(store))
    assert peek.all_keys() == set()


async def test_a_mistake_in_a_script_is_not_called_an_outage(store: TaskStore, peek: Peek) -> None:
    """Else a bug would be waited out for ten minutes and never be seen."""
    task_id = await queued(store)
    peek.raw.delete(peek.keys.task(task_id))
    peek.raw.set(peek.keys.task(task_id), "not a record")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        await store.cancel(task_id, ANN, "No more")
