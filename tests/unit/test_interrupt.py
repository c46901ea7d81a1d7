"""One run's clock and what may stop it: any thread may ask, and the clock stands while a person is waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from mcptasks.runtime.clock import Alarm
from mcptasks.runtime.interrupt import Interrupt
from mcptasks.runtime.watchdog import Do, Limits, Stop
from tests.requirements import covers

pytestmark = pytest.mark.anyio


class Clock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def time(self) -> float:
        """As of a loop."""
        return self.now_s

    def call_later(self, delay: float, callback: Callable[[], Any]) -> Alarm:
        """In real time: what is waited for here is short."""
        return asyncio.get_running_loop().call_later(delay, callback)


@pytest.fixture
def clock() -> Clock:
    """Of the test's run."""
    return Clock()


@pytest.fixture
async def interrupt(anyio_backend: str, clock: Clock) -> Interrupt:
    """Of a run on the test's own loop."""
    return Interrupt(asyncio.get_running_loop(), clock)


async def test_nothing_is_requested_at_first(interrupt: Interrupt) -> None:
    """A run that nobody stops runs."""
    assert (interrupt.requested, interrupt.kinds, interrupt.now_s) == (False, (), 0)
    assert interrupt.look().do is Do.RUN


@covers("W4")
async def test_whoever_asks_first_names_the_reason(interrupt: Interrupt, clock: Clock) -> None:
    """W4: a cancel after the time-out keeps the time-out as the reason, and the other way round."""
    with interrupt.work():
        for kind in (Stop.WALL, Stop.CANCEL, Stop.WALL):
            interrupt.request(kind)
            clock.now_s += 1
        assert (interrupt.look().reason, interrupt.kinds) == (Stop.WALL, (Stop.WALL, Stop.CANCEL))


@covers("N6")
async def test_a_lost_claim_overrules_every_other_reason(interrupt: Interrupt) -> None:
    """It forbids writing, so no other end can be stored."""
    interrupt.request(Stop.CANCEL)
    interrupt.request(Stop.LOST)
    assert interrupt.look().reason is Stop.LOST


@covers("B04")
async def test_a_waiter_is_woken_by_a_request_from_another_thread(interrupt: Interrupt) -> None:
    """Cancels are heard in the keeper's thread; the run sits in its loop."""
    waiting = asyncio.create_task(interrupt.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    threading.Thread(target=interrupt.request, args=(Stop.CANCEL,)).start()
    async with asyncio.timeout(30):
        await waiting
    assert interrupt.requested


async def test_a_waiter_who_has_seen_one_reason_waits_for_another(interrupt: Interrupt) -> None:
    """A second reason may bring a shorter grace; the same one again does not."""
    interrupt.request(Stop.CANCEL)
    async with asyncio.timeout(30):
        await interrupt.wait()
        waiting = asyncio.create_task(interrupt.wait(seen=1))
        for _ in range(5):
            interrupt.request(Stop.CANCEL)
            await asyncio.sleep(0)
        assert not waiting.done()
        interrupt.request(Stop.WALL)
        await waiting


async def test_an_answer_wakes_a_held_run_and_stops_nothing(interrupt: Interrupt) -> None:
    """It is news, not an interruption."""
    threading.Thread(target=interrupt.wake).start()
    async with asyncio.timeout(30):
        await interrupt.answered.wait()
    assert not interrupt.requested


def test_a_request_to_a_run_whose_loop_is_closed_is_kept_and_harmless() -> None:
    """The keeper may hear of a task just as its process goes down."""

    async def make() -> Interrupt:
        return Interrupt(asyncio.get_running_loop())

    interrupt = asyncio.run(make())
    interrupt.request(Stop.CANCEL)
    interrupt.wake()
    assert interrupt.requested


# ------------------------------------------------------------------------------------------------ the clock


@covers("W4", "E07")
async def test_time_that_is_not_worked_counts_against_no_limit(interrupt: Interrupt, clock: Clock) -> None:
    """A person thinks for a day; a limit that had two seconds left has two seconds left."""
    interrupt.begin(Limits(wall_s=10, idle_s=5))
    with interrupt.work():
        clock.now_s += 3
    clock.now_s += 86_400
    with interrupt.work():
        assert (interrupt.now_s, interrupt.look().look_s) == (3, 5)
        clock.now_s += 1.9
        assert interrupt.look().do is Do.RUN
        clock.now_s += 0.1
        assert interrupt.look().reason is Stop.IDLE


async def test_a_block_in_a_block_does_not_stop_the_clock(interrupt: Interrupt, clock: Clock) -> None:
    """The tool is stopped while it works."""
    with interrupt.work():
        with interrupt.work():
            clock.now_s += 1
        clock.now_s += 1
    assert interrupt.now_s == 2


@covers("W4")
async def test_only_what_is_more_than_before_is_progress(interrupt: Interrupt, clock: Clock) -> None:
    """W4: a heartbeat that repeats its number, or another text beside it, is none."""
    interrupt.begin(Limits(idle_s=5))
    with interrupt.work():
        interrupt.progressed(1)
        for done in (1, 1, 0.5, float("nan")):
            clock.now_s += 1
            interrupt.progressed(done)
        assert interrupt.look().look_s == 5
        interrupt.progressed(1.5)
        assert interrupt.look().look_s == 9


async def test_a_pass_that_goes_over_the_same_ground_gets_on(interrupt: Interrupt, clock: Clock) -> None:
    """What an earlier pass had told was not told again, but it is done again. The time of the run is not given back."""
    interrupt.begin(Limits(wall_s=20, idle_s=5))
    with interrupt.work():
        interrupt.progressed(9)
        clock.now_s += 4
        interrupt.begin(Limits(wall_s=20, idle_s=5))
        clock.now_s += 4
        interrupt.progressed(1)
        assert interrupt.look().look_s == 13
        interrupt.moved()
        clock.now_s += 12
        assert interrupt.look().reason is Stop.IDLE
        assert interrupt.look().asked == ((Stop.IDLE, 13), (Stop.WALL, 20))


@covers("W4")
async def test_a_limit_that_was_acted_on_stays_the_reason(interrupt: Interrupt, clock: Clock) -> None:
    """What moves afterwards, such as the clean-up, does not bring the run back to life."""
    interrupt.begin(Limits(idle_s=5, grace_s=3))
    with interrupt.work():
        clock.now_s += 5
        assert interrupt.look().do is Do.STOP
        interrupt.progressed(1)
        clock.now_s += 3
        assert (interrupt.look().do, interrupt.look().reason) == (Do.LEAVE, Stop.IDLE)


async def test_the_end_is_when_it_was_first_seen(interrupt: Interrupt, clock: Clock) -> None:
    """Whoever looks again later must not find that the limit had passed."""
    interrupt.begin(Limits(wall_s=5))
    with interrupt.work():
        clock.now_s += 4
        interrupt.ended()
        clock.now_s += 4
        interrupt.ended()
        assert not interrupt.look().void
