"""Pages that change by themselves: their living part is drawn again when something has changed, and sent if it differs.

All browsers of a process share one connection to the store's changes.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Final

from mcptasks.errors import MCPTasksError
from mcptasks.operations import Operations

#: Between two looks at most: what is not heard of (a new task, one that a worker took) is seen then.
_TICK_S: Final = 2.0
#: Between two looks at least, however much happens.
_GAP_S: Final = 0.2
#: Ages are told anew after this long, also where nothing else is new.
_AGES_S: Final = 15.0
#: Then the browser comes again by itself, and is asked again who it is.
_LIFE_S: Final = 600.0

_TIMES: Final = re.compile(r"<time[^>]*>[^<]*</time>")

Draw = Callable[[], Awaitable[str]]


async def drawn(fleet: Operations, draw: Draw) -> AsyncGenerator[str]:
    """The part of the page as it is now, and again whenever it has become another, for ten minutes.

    It ends early where it cannot be drawn; the browser tries again, and says so.
    """
    stirred = asyncio.Event()
    fleet.listen(stirred.set)
    try:
        ends_s, last, sent_s = time.monotonic() + _LIFE_S, "", 0.0
        while (now_s := time.monotonic()) < ends_s:
            stirred.clear()
            try:
                html = await draw()
            except MCPTasksError:
                return
            same = news(html)
            if same != last or now_s - sent_s > _AGES_S:
                last, sent_s = same, now_s
                yield html
            await asyncio.sleep(_GAP_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(stirred.wait(), _TICK_S - _GAP_S)
    finally:
        fleet.leave(stirred.set)


def news(html: str) -> str:
    """The part of the page without what changes by itself, as time goes by."""
    return _TIMES.sub("", html)
