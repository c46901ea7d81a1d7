"""Looks at lists, for many who look at the same time."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, cast

import pytest

from mcptasks.console.looks import Looks, Wanted
from mcptasks.operations import Operations
from mcptasks.store.lists import Page

pytestmark = pytest.mark.anyio

TOOK_S: Final = 0.1


class SlowFleet:
    """A store in which a look takes its time; says when each began and ended."""

    def __init__(self) -> None:
        self.looks: list[tuple[float, float]] = []

    async def page(self, **_: Any) -> Page:
        began_s = time.monotonic()
        await asyncio.sleep(TOOK_S)
        self.looks.append((began_s, time.monotonic()))
        return Page([], None)


async def test_many_who_look_at_one_list_are_one_look_and_see_it_as_it_is() -> None:
    """A browser each would be a look each, whenever anything changes."""
    fleet = SlowFleet()
    looks = Looks(cast("Operations", fleet), 50)
    asked_s = time.monotonic()
    await asyncio.gather(*(looks.list(Wanted(), live=True) for _ in range(20)))
    assert len(fleet.looks) <= 2 and fleet.looks[-1][0] >= asked_s
    again_s = time.monotonic()
    await looks.list(Wanted(), live=True)
    assert fleet.looks[-1][0] >= again_s, "what was changed before it was asked is seen"


async def test_a_long_look_is_followed_by_a_longer_pause() -> None:
    """A list that is far down in the store must not cost the fleet its store."""
    fleet = SlowFleet()
    looks = Looks(cast("Operations", fleet), 50)
    for _ in range(3):
        await looks.list(Wanted(), live=True)
    for (began_s, ended_s), (next_s, _) in zip(fleet.looks, fleet.looks[1:], strict=False):
        assert next_s - ended_s >= 3 * (ended_s - began_s)
    began_s, ended_s = fleet.looks[-1]
    await looks.list(Wanted(tool="other"), live=True)
    assert fleet.looks[-1][0] < ended_s + 3 * (ended_s - began_s), "another list waits for none of this"
    await looks.list(Wanted())
    assert len(fleet.looks) == 5, "who opens a page has a look of their own"


async def test_what_is_kept_of_lists_has_a_bound() -> None:
    """Their addresses are whatever somebody types."""
    looks = Looks(cast("Operations", SlowFleet()), 50)
    await asyncio.gather(*(looks.list(Wanted(tool=f"tool {n}"), live=True) for n in range(200)))
    assert len(cast("Any", looks)._kept) <= 64
