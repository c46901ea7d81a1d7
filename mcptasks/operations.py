"""The fleet in an operator's hand: admission, what is unfinished, cancel everything, drain."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore

#: Between two looks at what is left.
_LOOK_S: Final = 0.1


class Operations:
    """A connection to the fleet's store; `async with Operations() as fleet`. Sees and touches every owner's tasks.

    Every method raises `StoreUnavailable` when the store does not answer.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._store = TaskStore(settings or Settings.load())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._store.aclose()

    async def close_admission(self, reason: str) -> None:
        """New durable calls are refused with this reason, before any record exists; admitted ones go on."""
        await self._store.close_admission(reason)

    async def open_admission(self) -> None:
        """New durable calls are accepted again."""
        await self._store.open_admission()

    async def admission(self) -> str | None:
        """Why durable calls are refused; None while they are accepted."""
        return await self._store.admission()

    async def active(self) -> list[str]:
        """The ids of all unfinished tasks, those not yet started included, in lexical order."""
        return await self._store.active()

    async def cancel_all(self, reason: str) -> int:
        """Every unfinished task is cancelled or told to stop, with the reason as its status message.

        Returns how many were signalled. Admission stays as it is.
        """
        signalled, with_a_worker = 0, await self._store.in_hand()
        # Those that wait go first: a slot that a cancelled run frees must not begin what is to be cancelled next.
        for task_id in sorted(await self._store.active(), key=with_a_worker.__contains__):
            signalled += await self._store.cancel(task_id, None, reason) in ("CANCELLED", "REQUESTED")
        return signalled

    async def drained(self) -> None:
        """Returns when every admitted task has ended, its last write included. The time-out is the caller's."""
        while await self._store.active():  # noqa: ASYNC110 - the event is in another process
            await asyncio.sleep(_LOOK_S)
