"""tally: how many unfinished tasks there are in each status, and since when; for metrics, so it has to be cheap."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from mcptasks.model import Claim, Status
from mcptasks.settings import Settings
from mcptasks.store import gauges, scripts
from mcptasks.store.lists import Counts
from mcptasks.store.scripts import Ran
from mcptasks.store.store import TaskStore
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import claimed, ended, parked, queued, running, sleeping

pytestmark = pytest.mark.anyio

AGO_MS = 600_000


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Ran]:
    """Every call of a script."""
    ran: list[Ran] = []
    monkeypatch.setattr(scripts, "observers", [ran.append])
    return ran


def numbers(counts: Counts) -> dict[str, int]:
    """Those that are not nought."""
    return {str(status): number for status, number in counts.by_status.items() if number}


def long_ago(peek: Peek, task_id: str) -> None:
    """The task was created ten minutes ago, and its caller has seen no change since."""
    at_ms = peek.now_ms() - AGO_MS
    peek.put(task_id, created=str(at_ms), updated=str(at_ms))
    for key in peek.raw.keys(f"{peek.keys.tasks}*active"):
        if peek.raw.zscore(key, task_id) is not None:
            peek.raw.zadd(key, {task_id: at_ms})


@pytest.fixture(params=["any login", "a login for its own keys", "a star in the prefix"])
def tallying(
    request: pytest.FixtureRequest, open_store: OpenStore, peek: Peek, settings: Settings
) -> Generator[TaskStore]:
    """Who may not have all statuses at once gets the same numbers, one by one."""
    match request.param:
        case "a login for its own keys":
            own = [f"{settings.prefix}*"]
            peek.raw.acl_setuser("own", enabled=True, passwords=["+x"], keys=own, channels=own, commands=["+@all"])
            host = settings.redis_url.removeprefix("redis://")
            yield open_store(redis_url=f"redis://own:x@{host}")
            peek.raw.acl_deluser("own")
        case "a star in the prefix":
            yield open_store(prefix=f"{settings.prefix}*:")
        case _:
            yield open_store()


@pytest.mark.parametrize("looks", [2, 1_000])
async def test_a_tally_has_the_numbers_of_a_count_and_nothing_that_has_ended(
    tallying: TaskStore, peek: Peek, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Overdue tasks in none; also where many are of one millisecond, and more than one script looks at."""
    monkeypatch.setattr(gauges, "_LOOKS", looks)
    store, peek = tallying, Peek(peek.raw, tallying.settings.prefix)
    for make in (queued, running, parked, running, sleeping, queued, parked, queued, queued):
        await make(store)
    peek.expire((await running(store)).task_id)
    await ended(store)
    peek.drop(await queued(store))
    active = peek.raw.zrange(peek.keys.active, 0, -1)
    peek.raw.zadd(peek.keys.active, dict.fromkeys(active[2:8], peek.raw.zscore(peek.keys.active, active[2])))
    tallied, counted = await store.tally(), await store.count(None)
    assert numbers(tallied) == {"queued": 4, "running": 2, "parked": 2, "sleeping": 1}
    assert tallied.overdue == counted.overdue == 1
    assert {status: counted.by_status[status] for status in tallied.by_status} == tallied.by_status
    # Of what this one is about, which changes: since its last change.
    assert tallied.since_ms[Status.PARKED] == counted.since_ms[Status.PARKED]


@pytest.mark.parametrize("looks", [1, 1_000])
async def test_the_one_that_is_longest_in_a_status_need_not_be_the_oldest(
    store: TaskStore, peek: Peek, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Of two parked tasks the older one has parked later."""
    monkeypatch.setattr(gauges, "_LOOKS", looks)
    old, young = (await parked(store)).task_id, (await parked(store)).task_id
    long_ago(peek, old)
    peek.put(old, updated=str(peek.now_ms()))
    at_ms = peek.now_ms() - AGO_MS // 2
    peek.put(young, updated=str(at_ms))
    peek.raw.zadd(peek.keys.active, {young: at_ms - 1})
    assert (await store.tally()).since_ms == {Status.PARKED: at_ms}


async def test_a_task_that_is_queued_again_has_not_waited_since_its_creation(store: TaskStore, peek: Peek) -> None:
    """An hour's run that a deploy gives back would wake somebody for a full queue, and start twenty workers."""
    claim = await running(store)
    long_ago(peek, claim.task_id)
    before_ms = peek.now_ms()
    assert (await store.release(claim)).outcome == "RELEASED"
    assert (await store.tally()).since_ms[Status.QUEUED] >= before_ms
    waiting = await queued(store)
    long_ago(peek, waiting)
    assert (await store.tally()).since_ms[Status.QUEUED] <= before_ms - AGO_MS // 2


async def test_a_run_is_as_old_as_its_claim(store: TaskStore, peek: Peek) -> None:
    """Not as the last thing that its caller saw."""
    waiting = await queued(store)
    long_ago(peek, waiting)
    before_ms = peek.now_ms()
    assert isinstance(await claimed(store, waiting), Claim)
    assert (await store.tally()).since_ms[Status.RUNNING] >= before_ms


async def test_what_redis_has_dropped_is_forgotten_first(store: TaskStore, peek: Peek) -> None:
    """However many have gone since anybody looked."""
    for _ in range(3):
        peek.drop(await queued(store))
    await queued(store)
    await queued(store)
    args = {"after_ms": "", "after_id": "", "looks": 9, "batch": 2, "known": []}
    assert await store.run_script("tally", store.fleet("ids", "expiry"), args) == ["AGAIN"]
    assert (await store.run_script("tally", store.fleet("ids", "expiry"), args | {"batch": 99}))[0] == "TALLIED"
    assert (await store.run_script("tally", store.fleet("ids", "expiry"), args | {"looks": 1}))[0] == "MORE"
    assert numbers(await store.tally()) == {"queued": 2}


async def test_a_task_that_ends_between_two_looks_hides_none_behind_it(store: TaskStore, peek: Peek) -> None:
    """The place where one script stopped is a task's, which may be gone when the next one goes on."""
    tasks = [await queued(store) for _ in range(5)]
    peek.raw.zadd(peek.keys.active, dict.fromkeys(tasks, peek.now_ms()))
    args = {"after_ms": "", "after_id": "", "looks": 2, "batch": 9, "known": []}
    first = await store.run_script("tally", store.fleet("ids", "expiry"), args)
    assert (first[0], first[2][:2], first[4]) == ("MORE", ["queued", "2"], sorted(tasks)[1])
    await store.cancel(first[4], None, "Ends")
    place = {"after_ms": first[3], "after_id": first[4], "looks": 9}
    rest = await store.run_script("tally", store.fleet("ids", "expiry"), args | place)
    assert (rest[0], rest[2][:2]) == ("TALLIED", ["queued", "3"])


async def test_a_status_of_the_future_is_in_no_number(store: TaskStore, peek: Peek) -> None:
    """A newer mcptasks wrote it."""
    peek.put(await queued(store), v="2", status="a status of the future")
    assert numbers(await store.tally()) == {}


async def test_one_tally_serves_all_who_are_scraped(store: TaskStore, open_store: OpenStore, heard: list[Ran]) -> None:
    """Each process asks every few seconds; the store looks at its tasks once."""
    await queued(store)
    heard.clear()
    first, second = await store.levels(), await open_store().levels()
    assert first.counts == second.counts and numbers(first.counts) == {"queued": 1}
    assert [ran.name for ran in heard] == ["tally"]


async def test_a_tally_of_another_form_is_made_anew(store: TaskStore, peek: Peek, heard: list[Ran]) -> None:
    """Two versions of mcptasks watch one store."""
    peek.raw.set(peek.keys.tally, '{"of": "the future"}', px=60_000)
    assert numbers((await store.levels()).counts) == {}
    assert [ran.name for ran in heard] == ["tally"]


async def test_a_store_that_takes_no_writes_is_watched_all_the_same(store: TaskStore, peek: Peek) -> None:
    """A full one above all."""
    await queued(store)
    peek.raw.config_set("maxmemory", 1)
    try:
        seen = await store.levels()
    finally:
        peek.raw.config_set("maxmemory", 0)
    assert numbers(seen.counts) == {"queued": 1}
    assert not peek.raw.exists(peek.keys.tally)
