"""Speaks to a server as it asks to be spoken to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from mcptasks.tracker.drivers.core import CoreDriver
from mcptasks.tracker.drivers.tasks import TasksDriver
from mcptasks.tracker.peer import Peer
from mcptasks.tracker.remote import Accepted, Snapshot


class AutoDriver:
    """See `Driver`: the Tasks extension where the server speaks 2026-07-28, else the tasks of 2025-11-25.

    A server that has neither is called all the same, and its answer is the end: there is no task.
    """

    def __init__(self, peer: Peer, *, honours_key: bool) -> None:
        self._peer, self._honours_key = peer, honours_key
        self._modern = TasksDriver(peer, honours_key=honours_key)
        self._core = CoreDriver(peer, honours_key=honours_key)

    @property
    def honours_key(self) -> bool:
        return self._honours_key

    async def submit(
        self, tool: str, arguments: Mapping[str, Any], *, key: str, on_send: Callable[[], None] | None = None
    ) -> Accepted:
        return await (await self._fitting()).submit(tool, arguments, key=key, on_send=on_send)

    async def look(self, handle: str) -> Snapshot:
        return await (await self._fitting()).look(handle)

    async def answer(self, handle: str, answers: Mapping[str, Any]) -> None:
        await (await self._fitting()).answer(handle, answers)

    async def cancel(self, handle: str) -> None:
        await (await self._fitting()).cancel(handle)

    async def listen(self, handles: Sequence[str]) -> AsyncGenerator[tuple[str, Snapshot]]:
        """As `Driver.listen`."""
        async with aclosing((await self._fitting()).listen(handles)) as told:
            async for each in told:
                yield each

    async def aclose(self) -> None:
        """No stream of a question is open any more."""
        await self._core.aclose()

    async def _fitting(self) -> TasksDriver | CoreDriver:
        # Each time anew: after a lost session a server may have become another one.
        return self._modern if (await self._peer.greet()).modern else self._core
