"""How hard one process may press one server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class NoTurn(Exception):
    """So many wait for the server that this one's turn does not come in time; it has been sent nothing."""


class Pacing:
    """At most so many requests at a time, and at most so many begun per second, evenly spread."""

    def __init__(self, max_concurrency: int, rate: float | None) -> None:
        """`rate`: requests per second; None: no limit but the first."""
        self._slots = asyncio.Semaphore(max_concurrency)
        self._gap_s = 0.0 if rate is None else 1.0 / rate
        self._next_at = 0.0

    @asynccontextmanager
    async def turn(self, patience_s: float) -> AsyncGenerator[None]:
        """Inside the block one request may be made; whoever comes first goes first.

        Raises:
            NoTurn: there is none within that time; one by the rate is not waited for then, nor used up.
        """
        try:
            async with asyncio.timeout(patience_s):
                await self._slots.acquire()
        except TimeoutError:
            raise NoTurn from None
        try:
            await self._keep_pace(patience_s)
            yield
        finally:
            self._slots.release()

    async def _keep_pace(self, patience_s: float) -> None:
        now = asyncio.get_running_loop().time()
        at = max(now, self._next_at)
        if at - now > patience_s:
            raise NoTurn
        self._next_at = at + self._gap_s
        await asyncio.sleep(at - now)
