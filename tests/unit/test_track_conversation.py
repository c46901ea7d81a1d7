"""The questions of a 2025-11-25 task, heard on a stream of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from mcptasks.tracker.drivers import conversation
from mcptasks.tracker.drivers.conversation import Conversations
from mcptasks.tracker.limits import PAYLOAD_MAX

pytestmark = pytest.mark.anyio


class Chatterbox:
    """A server that asks without end."""

    server = "crm"

    def __init__(self) -> None:
        self.asked = 0
        self.closed = asyncio.Event()

    async def stream(self, method: str, params: Any, *, session: str | None = None) -> AsyncGenerator[dict[str, Any]]:
        try:
            for number in itertools.count(1):
                self.asked = number
                yield {"id": number, "method": "elicitation/create", "params": {"message": "?" * 10_000}}
                await asyncio.sleep(0)
        finally:
            self.closed.set()


async def test_a_server_that_asks_without_end_is_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs no more memory than that; and what was heard is too much to be stored, so the task ends."""
    monkeypatch.setattr(conversation, "_HEARD_MAX", 2 * PAYLOAD_MAX)
    peer: Any = Chatterbox()
    talks = Conversations(peer)
    async with asyncio.timeout(20):
        first = asyncio.ensure_future(talks.questions(" task"))
        await peer.closed.wait()
    assert PAYLOAD_MAX < peer.asked * 10_000 < 3 * PAYLOAD_MAX
    assert await first
    await talks.aclose()
