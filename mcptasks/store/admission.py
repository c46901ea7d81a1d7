"""What operators do to the fleet as a whole: close and open admission, see what is unfinished."""

from __future__ import annotations

from typing import cast

from mcptasks.store.base import FORGET_BATCH, Transitions


class AdmissionTransitions(Transitions):
    """The fleet's door."""

    async def close_admission(self, reason: str) -> None:
        """New tasks are refused with this reason, before any record exists; admitted ones go on."""
        async with self.connection.turn() as client:
            await client.hset(self.keys.admission, "reason", reason)

    async def open_admission(self) -> None:
        """New tasks are accepted."""
        async with self.connection.turn() as client:
            await client.delete(self.keys.admission)

    async def admission(self) -> str | None:
        """Why new tasks are refused; None while they are accepted."""
        async with self.connection.turn() as client:
            return cast("str | None", await client.hget(self.keys.admission, "reason"))

    async def active(self) -> list[str]:
        """The ids of all tasks that were admitted and have not ended, those not yet started included, in lexical order.

        Taken from the lists that every transition keeps within its own script: there is no moment in which an
        admitted task is missing from it. Tasks whose keys Redis has dropped are not counted.
        """
        while (reply := await self.run_script("active", self.fleet("ids"), {"batch": FORGET_BATCH}))[0] == "AGAIN":
            pass
        return sorted(reply[1:])

    async def oldest(self) -> tuple[str, int] | None:
        """The id of the unfinished task that was created first, and when (Unix ms); None: there is none.

        One whose keys Redis has dropped may stand there until the next sweep.
        """
        async with self.connection.turn() as client:
            found = cast("list[tuple[str, float]]", await client.zrange(self.keys.active, 0, 0, withscores=True))
        return (found[0][0], int(found[0][1])) if found else None

    async def in_hand(self) -> set[str]:
        """The ids of the tasks that a worker holds at this moment."""
        async with self.connection.turn() as client:
            return set(cast("list[str]", await client.zrange(self.keys.leases, 0, -1)))
