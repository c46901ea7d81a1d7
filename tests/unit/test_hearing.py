"""Deaf is a worker that has a free slot while messages wait, and receives none; everything else is not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mcptasks.fleet.pulse import Hearing

SLOTS = 2


@dataclass(frozen=True)
class Look:
    """What one look found, and for how long the worker counts as deaf after it."""

    at_ms: int
    deaf_ms: int
    waiting: int | None = 5
    active: int = 0
    received: int = 7


#: By the second look everything but the time is as it was.
FIRST = Look(1_000, 0)

STORIES = {
    "nothing is known at the first look": [FIRST],
    "silence grows from the second look on": [FIRST, Look(3_000, 0), Look(5_000, 2_000), Look(20_000, 17_000)],
    "a message that came ends the silence": [
        FIRST,
        Look(3_000, 0),
        Look(9_000, 0, received=8),
        Look(11_000, 0, received=8),
    ],
    "an empty queue is no silence": [
        FIRST,
        Look(3_000, 0),
        Look(9_000, 0, waiting=0),
        Look(11_000, 0),
        Look(13_000, 2_000),
    ],
    "a full worker need not hear": [
        FIRST,
        Look(3_000, 0),
        Look(9_000, 0, active=2),
        Look(11_000, 0),
        Look(13_000, 2_000),
    ],
    "a worker with one slot left must hear": [FIRST, Look(3_000, 0, active=1), Look(9_000, 6_000, active=1)],
    "more runs than slots are full, too": [FIRST, Look(3_000, 0, active=3), Look(9_000, 0, active=3)],
    "a broker that does not tell is silence": [FIRST, Look(3_000, 0, waiting=None), Look(9_000, 6_000, waiting=None)],
    "the count of a new process is news": [FIRST, Look(3_000, 0), Look(9_000, 0, received=0)],
    "a clock that stands still adds nothing": [FIRST, Look(3_000, 0), Look(3_000, 0)],
}


@pytest.mark.parametrize("story", STORIES)
def test_how_long_a_worker_has_not_heard(story: str) -> None:
    """`mcptasks worker --health` tells a deaf worker from a live one by this and nothing else."""
    hearing = Hearing()
    for look in STORIES[story]:
        deaf_ms = hearing.deaf_ms(
            look.at_ms, waiting=look.waiting, active=look.active, slots=SLOTS, received=look.received
        )
        assert deaf_ms == look.deaf_ms, look
