"""sleep: the timers run, and the worker has let go of the task until the first is due."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mcptasks.model import Hint, Reason, Status
from mcptasks.policy import Policy
from mcptasks.store.base import Next
from mcptasks.store.callers import Refused
from mcptasks.store.store import TaskStore
from tests.requirements import covers
from tests.store.conftest import OpenStore
from tests.support.peek import Peek
from tests.support.tasks import (
    ANN,
    asking,
    asking_and_sleeping,
    claimed,
    create,
    hint,
    offer,
    parked,
    question,
    queued,
    read,
    running,
    sleeping,
    timer,
)

pytestmark = pytest.mark.anyio


# ------------------------------------------------------------------------------------------------ alone


async def test_a_short_sleep_is_counted_down(store: TaskStore, peek: Peek) -> None:
    """The sweeper has it too, should the message get lost; to the client nothing has happened."""
    claim = await running(store)
    peek.age(claim.task_id)
    before = peek.now_ms()
    answer = await store.sleep(claim, [timer(delay_ms=5_000)], hold=False)
    message = Hint(task_id=claim.task_id, run=2, tool="report", queue="mcptasks", countdown_ms=5_000)
    assert answer == Next("SLEEPING", message)
    record = await read(store, claim.task_id)
    assert (record.status, record.worker) == (Status.SLEEPING, None)
    assert not peek.updated(claim.task_id)
    found = peek.stored(claim.task_id)
    assert found.indexes.keys() == {"unsent", "countdowns", "expiry"}
    assert before <= found.indexes["unsent"] - 5_000 - store.settings.resend_ms <= peek.now_ms()


async def test_a_long_sleep_is_left_to_the_sweeper(store: TaskStore, peek: Peek) -> None:
    """No message sits in a worker's memory for a month."""
    month_ms = 30 * 86_400_000
    claim = await running(store, policy=Policy(ttl_ms=2 * month_ms))
    before = peek.now_ms()
    assert await store.sleep(claim, [timer(delay_ms=month_ms)], hold=False) == Next("SLEEPING")
    found = peek.stored(claim.task_id)
    assert found.indexes.keys() == {"unsent", "expiry"}
    assert before <= found.indexes["unsent"] - month_ms <= peek.now_ms()
    peek.make_due("unsent", claim.task_id)
    peek.put(claim.task_id, wake="1")
    assert await store.reap(claim.task_id) == Next("DUE", hint(claim.task_id, 2))
    assert (await claimed(store, claim.task_id, run=2)).record.status is Status.RUNNING


@pytest.mark.parametrize("changed", [{"countdown_budget": 0}, {"countdowns_ms": ()}], ids=str)
async def test_past_the_budget_a_short_sleep_is_left_to_the_sweeper_too(
    open_store: OpenStore, changed: dict[str, object]
) -> None:
    """One budget for all countdown messages of the fleet."""
    store = open_store(**changed)
    assert await store.sleep(await running(store), [timer(delay_ms=1_000)], hold=False) == Next("SLEEPING")


async def test_a_sleep_ends_by_the_stores_clock_and_never_before(store: TaskStore, peek: Peek) -> None:
    """A message that comes early is sent again for the rest of a short time, and dropped for that of a long one."""
    for delay_ms, counted in ((50_000, True), (86_000_000, False)):
        claim = await sleeping(store, timer(delay_ms=delay_ms))
        before = peek.stored(claim.task_id)
        early = await store.claim(hint(claim.task_id, 2), "w2")
        assert isinstance(early, Next)
        assert (early.outcome, early.detail, early.hint is not None) == ("EARLY", "sleeping", counted)
        assert early.hint is None or 0 < early.hint.countdown_ms <= delay_ms
        assert peek.stored(claim.task_id) == before
        peek.put(claim.task_id, wake="1")
        assert (await claimed(store, claim.task_id, run=2)).token == 2
        assert peek.field(claim.task_id, "wake") is None


async def test_the_first_of_several_timers_wakes_the_task(store: TaskStore, peek: Peek) -> None:
    """And the others keep their moments."""
    now = peek.now_ms()
    claim = await sleeping(
        store, timer(1, delay_ms=500_000), timer(2, until_ms=now + 200_000), timer(3, delay_ms=300_000)
    )
    assert peek.field(claim.task_id, "wake") == str(now + 200_000)
    peek.put(claim.task_id, wake="1")
    again = await claimed(store, claim.task_id, run=2)
    dues = {name: int(text.split()[0]) - now for name, text in again.journal.timers.items()}
    assert dues["sleep#2"] == 200_000
    assert 500_000 <= dues["sleep#1"] < 600_000
    assert again.journal.timers["sleep#3"].split()[1] == "0.3"
    # The next run comes to the other two again: what it says now does not move them.
    assert await store.sleep(again, [timer(1, delay_ms=1), timer(3, until_ms=1)], hold=False) == Next("SLEEPING")
    assert int(peek.field(claim.task_id, "wake") or 0) - now == dues["sleep#3"]


async def test_a_timer_that_is_due_lets_the_run_go_on(store: TaskStore, peek: Peek) -> None:
    """The claim is kept; the timer stands in the record all the same."""
    claim = await running(store)
    assert await store.sleep(claim, [timer(until_ms=1)], hold=False) == Next("DUE")
    assert (await read(store, claim.task_id)).status is Status.RUNNING
    assert (await store.journal(claim.task_id)).timers == {"sleep#1": "1 0.1"}


async def test_sleep_costs_no_attempt_and_no_time(store: TaskStore, peek: Peek) -> None:
    """Invariant 12, for timers: the run's limit ends with the run, the lease too."""
    claim = await sleeping(store, policy=Policy(max_attempts=1, time_limit_ms=1_000))
    assert peek.field(claim.task_id, "deadline") is None
    assert peek.score("leases", claim.task_id) is None
    peek.put(claim.task_id, wake="1")
    again = await claimed(store, claim.task_id, run=2)
    assert again.record.attempt == 1


@covers("P50", "P52")
async def test_a_sleeping_task_is_cancelled_at_once(store: TaskStore, peek: Peek) -> None:
    """It has no worker."""
    claim = await sleeping(store)
    assert await store.cancel(claim.task_id, ANN, "No more") == "CANCELLED"
    assert peek.stored(claim.task_id).indexes == {}
    assert peek.field(claim.task_id, "wake") is None


@covers("P50", "A08")
async def test_a_run_that_was_cancelled_and_goes_to_sleep_has_ended_its_task(store: TaskStore) -> None:
    """Invariant 6: what was acknowledged is not put off."""
    claim = await running(store)
    await store.cancel(claim.task_id, ANN, "No more")
    assert await store.sleep(claim, [timer()], hold=False) == Next("CANCELLED")
    assert (await read(store, claim.task_id)).status is Status.CANCELLED


@covers("P33", "R7")
async def test_a_sleep_that_is_longer_than_its_tasks_life_ends_with_it(store: TaskStore, peek: Peek) -> None:
    """P33: the ttl goes on."""
    claim = await sleeping(store)
    peek.expire(claim.task_id)
    assert await store.reap(claim.task_id) == Next("FAILED", detail="expired")
    record = await read(store, claim.task_id)
    assert (record.status, record.reason) == (Status.FAILED, Reason.EXPIRED)


async def test_sleepers_do_not_count_as_tasks_that_wait_for_a_worker(open_store: OpenStore) -> None:
    """Else a few thousand of them would close the door to everybody (queue_max)."""
    store = open_store(queue_max=1)
    await sleeping(store, timer(delay_ms=3_600_000))
    await create(store)
    assert await offer(store) == Refused("queue", "1")


# ------------------------------------------------------------------------------------------------ beside questions


async def test_a_held_run_sets_its_timers_and_goes_on_to_ask(store: TaskStore, peek: Peek) -> None:
    """Both are known before the worker lets go, and the client sees the question."""
    claim = await running(store)
    assert await store.sleep(claim, [timer(delay_ms=60_000)], hold=True) == Next("SET")
    assert (await read(store, claim.task_id)).status is Status.RUNNING
    answer = await store.ask(claim, asking(question("q")), guard=None, hold=False)
    assert answer.outcome == "PARKED"
    record = await read(store, claim.task_id)
    assert (record.status, set(record.questions)) == (Status.PARKED, {"q"})
    found = peek.stored(claim.task_id)
    assert found.indexes.keys() == {"unsent", "countdowns", "expiry"}
    assert found.indexes["unsent"] == int(found.task["wake"])


@covers("E05", "P35")
async def test_a_timer_sets_a_task_going_whose_questions_stay_open_and_answerable(
    store: TaskStore, peek: Peek, heard: Callable[[], list[str]]
) -> None:
    """E05: the client saw them, and no answer to them is lost, whether the task waits, runs or is queued."""
    claim = await asking_and_sleeping(store, "a", "b", "c")
    early = await store.claim(hint(claim.task_id, 2), "w2")
    assert isinstance(early, Next) and early.outcome == "STALE"
    peek.put(claim.task_id, wake="1")
    peek.make_due("unsent", claim.task_id)
    assert await store.reap(claim.task_id) == Next("DUE", hint(claim.task_id, 2))
    peek.age(claim.task_id)
    second = await claimed(store, claim.task_id, run=2)
    assert not peek.updated(claim.task_id), "the client sees no difference"
    record = await read(store, claim.task_id)
    assert (record.status, set(record.questions), record.poll_ms) == (
        Status.RUNNING,
        {"a", "b", "c"},
        store.settings.poll_parked_ms,
    )
    assert await store.answer(claim.task_id, ANN, {"a": 1}) == Next("PARTIAL")
    await store.release(second)
    assert await store.answer(claim.task_id, ANN, {"b": 2}) == Next("PARTIAL")
    third = await claimed(store, claim.task_id, run=3)
    assert third.journal.answers == {"a": 1, "b": 2}
    assert await store.answer(claim.task_id, ANN, {"c": 3}) == Next("WOKEN")
    assert heard() == []
    # The run asks again for what it does not know to be answered, and is told.
    assert await store.ask(third, asking(question("c")), guard=None, hold=False) == Next("ANSWERED")
    assert (await store.journal(claim.task_id)).answers == {"a": 1, "b": 2, "c": 3}


async def test_a_run_with_open_questions_parks_when_it_sleeps_again(store: TaskStore, peek: Peek) -> None:
    """Whoever comes first wakes it: the person, or the next timer."""
    claim = await asking_and_sleeping(store, "q")
    peek.put(claim.task_id, wake="1")
    second = await claimed(store, claim.task_id, run=2)
    answer = await store.sleep(second, [timer(2, delay_ms=3_600_000)], hold=False)
    message = Hint(task_id=claim.task_id, run=3, look=1, tool="report", queue="mcptasks", countdown_ms=2_000)
    assert answer == Next("PARKED", message)
    assert peek.stored(claim.task_id).indexes.keys() == {"unsent", "countdowns", "expiry"}
    answered = await store.answer(claim.task_id, ANN, {"q": 1})
    assert answered == Next("QUEUED", hint(claim.task_id, 3))
    assert peek.field(claim.task_id, "wake") is None
    assert (await claimed(store, claim.task_id, run=3)).journal.answers == {"q": 1}


async def test_the_last_answer_moves_a_task_on_whose_timer_is_not_due(store: TaskStore, peek: Peek) -> None:
    """The tool may want only the faster of the two."""
    claim = await asking_and_sleeping(store, "q", delay_ms=3_600_000)
    assert await store.answer(claim.task_id, ANN, {"q": 1}) == Next("QUEUED", hint(claim.task_id, 2))
    assert peek.stored(claim.task_id).indexes.keys() == {"unsent", "expiry"}
    again = await claimed(store, claim.task_id, run=2)
    assert await store.sleep(again, [timer(delay_ms=3_600_000)], hold=False) == Next("SLEEPING")


async def test_a_re_check_of_a_parked_task_claims_it_when_its_timer_is_due(store: TaskStore, peek: Peek) -> None:
    """It is there anyway."""
    claim = await asking_and_sleeping(store, "q")
    look = hint(claim.task_id, 2, look=1)
    answer = await store.claim(look, "w2")
    assert isinstance(answer, Next) and answer.outcome == "PARKED"
    peek.put(claim.task_id, wake="1")
    claim = await store.claim(hint(claim.task_id, 2, look=2), "w2")
    assert not isinstance(claim, Next)


async def test_a_lost_run_with_open_questions_runs_again_with_them(store: TaskStore, peek: Peek) -> None:
    """It really ran, so it is an attempt; the person notices nothing."""
    claim = await asking_and_sleeping(store, "q")
    peek.put(claim.task_id, wake="1")
    await claimed(store, claim.task_id, run=2)
    peek.make_due("leases", claim.task_id)
    assert await store.reap(claim.task_id) == Next("LOST", hint(claim.task_id, 3))
    assert set((await read(store, claim.task_id)).questions) == {"q"}
    assert (await claimed(store, claim.task_id, run=3)).record.attempt == 2


async def test_a_retry_with_open_questions_keeps_them(store: TaskStore, peek: Peek) -> None:
    """Its delay is kept, too: an answer does not cut it short."""
    claim = await asking_and_sleeping(store, "q", policy=Policy(retry_ms=(60_000,)))
    peek.put(claim.task_id, wake="1")
    second = await claimed(store, claim.task_id, run=2)
    assert (await store.retry(second, "Busy", "{}")).outcome == "RETRYING"
    assert await store.answer(claim.task_id, ANN, {"q": 1}) == Next("WOKEN")
    assert (await read(store, claim.task_id)).status is Status.RETRYING


async def test_a_parked_task_without_a_timer_is_never_set_going_by_a_message(store: TaskStore) -> None:
    """As ever."""
    claim = await parked(store)
    answer = await store.claim(hint(claim.task_id, 2), "w2")
    assert isinstance(answer, Next) and answer.outcome == "STALE"
    assert await queued(store)
