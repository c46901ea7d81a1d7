"""What may stop a run: whoever asks first names the reason, and how long it may then take."""

from __future__ import annotations

import asyncio
import threading

import pytest

from mcptasks.policy import DEFAULT_GRACE_MS, Policy
from mcptasks.runtime.watchdog import Interrupt, Stop, grace_s
from tests.requirements import covers

pytestmark = pytest.mark.anyio


@pytest.fixture
async def interrupt(anyio_backend: str) -> Interrupt:
    """Of a run on the test's own loop."""
    return Interrupt(asyncio.get_running_loop())


async def test_nothing_is_requested_at_first(interrupt: Interrupt) -> None:
    """A run that nobody stops runs."""
    assert (interrupt.requested, interrupt.kind, interrupt.kinds) == (False, None, ())


@covers("W4")
async def test_whoever_asks_first_names_the_reason(interrupt: Interrupt) -> None:
    """W4: a cancel after the time-out keeps the time-out as the reason, and the other way round."""
    interrupt.request(Stop.WALL)
    interrupt.request(Stop.CANCEL)
    interrupt.request(Stop.WALL)
    assert (interrupt.kind, interrupt.kinds) == (Stop.WALL, (Stop.WALL, Stop.CANCEL))


@covers("N6")
async def test_a_lost_claim_overrules_every_other_reason(interrupt: Interrupt) -> None:
    """It forbids writing, so no other end can be stored."""
    interrupt.request(Stop.CANCEL)
    interrupt.request(Stop.LOST)
    assert interrupt.kind is Stop.LOST


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


# ------------------------------------------------------------------------------------------------ grace


@covers("P52", "W4")
@pytest.mark.parametrize(
    ("kinds", "policy", "seconds"),
    [
        ([Stop.CANCEL], Policy(), None),
        ([Stop.CANCEL], Policy(cancel_grace_ms=2_000), 2.0),
        ([Stop.WALL], Policy(time_limit_ms=1), DEFAULT_GRACE_MS / 1000),
        ([Stop.WALL], Policy(time_limit_ms=1, cancel_grace_ms=2_000), 2.0),
        ([Stop.LOST], Policy(), DEFAULT_GRACE_MS / 1000),
        ([Stop.LOST], Policy(cancel_grace_ms=60_000), DEFAULT_GRACE_MS / 1000),
        ([Stop.CANCEL, Stop.WALL], Policy(), DEFAULT_GRACE_MS / 1000),
        ([Stop.CANCEL, Stop.LOST], Policy(cancel_grace_ms=1_000), 1.0),
        ([], Policy(), None),
    ],
    ids=str,
)
def test_the_shortest_grace_of_all_reasons_counts(kinds: list[Stop], policy: Policy, seconds: float | None) -> None:
    """P52: off by default for a cancel; a limit or a lost claim always ends."""
    assert grace_s(kinds, policy) == seconds
