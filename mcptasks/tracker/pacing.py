"""How hard one process may press one server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Pacing:
    """At most so many requests at a time, and at most so many begun per second, evenly spread."""

    def __init__(self, max_concurrency: int, rate: float | None) -> None:
        """`rate`: requests per second; None: no limit but the first."""
        self._slots = asyncio.Semaphore(max_concurrency)
        self._gap_s = 0.0 if rate is None else 1.0 / rate
        self._next_at = 0.0

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """Inside the block one request may be made; whoever comes first goes first."""
        async with self._slots:
            if self._gap_s:
                now = asyncio.get_running_loop().time()
                at = max(now, self._next_at)
                self._next_at = at + self._gap_s
                await asyncio.sleep(at - now)
            yield
