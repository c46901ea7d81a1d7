"""Lanes: the parts of a tool in which durable calls come one after the other, in every run the same way.

The tool's own body is a lane; so is each branch of `mcptasks.gather`, and what runs inside a step. A lane numbers its
calls by itself, so that two branches that do the same thing bind to their own records, whichever is faster this time.
Other concurrency (`asyncio.gather`, task groups, threads) shares the lane it was started in: its calls are numbered in
the order in which they come, and say nothing about their order.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(slots=True)
class Lane:
    """One of them, in one pass over the tool."""

    #: Where it hangs in the tool: "" is the body, "g1.0" the first branch of its first gather; "." goes further down.
    path: str
    #: The asyncio task whose calls come in order; None: nobody's do.
    owner: asyncio.Task[Any] | None
    _uses: Counter[str] = field(default_factory=Counter[str])
    _calls: int = 0
    _gathers: int = 0

    def use(self, what: str) -> int:
        """How often this lane has used that name or text, this time included."""
        self._uses[what] += 1
        return self._uses[what]

    def place(self) -> int | None:
        """The next call's place in the lane's order; None for a call that comes from beside it."""
        if self.owner is None or asyncio.current_task() is not self.owner:
            return None
        self._calls += 1
        return self._calls

    def gather(self) -> str:
        """The path, without the branch, of the lanes that the next gather of this lane opens."""
        self._gathers += 1
        return self._below(f"g{self._gathers}")

    def inside(self, name: str) -> str:
        """The path of what runs inside the step of that name."""
        return self._below("s" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12])

    def _below(self, part: str) -> str:
        return f"{self.path}.{part}" if self.path else part


_lane: Final[ContextVar[Lane | None]] = ContextVar("mcptasks_lane", default=None)


def current_lane() -> Lane:
    """The lane of the calling code, which runs in a task."""
    lane = _lane.get()
    if lane is None:  # pragma: no cover - every pass opens one before it calls the tool
        raise RuntimeError("no lane is open: this code does not run in a durable task")
    return lane


@contextmanager
def lane(path: str) -> Generator[Lane]:
    """Inside the block the calling asyncio task is the lane's owner."""
    opened = Lane(path, asyncio.current_task())
    reset = _lane.set(opened)
    try:
        yield opened
    finally:
        _lane.reset(reset)
