"""The transitions of the sweeper's side: sweep finds what is overdue, reap settles one of them, forget clears up."""

from __future__ import annotations

from typing import Final, cast

from mcptasks.store.base import FORGET_BATCH, TASK_KEYS, Next, Transitions, hint_for

#: Ids per index and sweep; a longer backlog is taken in the next sweeps.
SWEEP_BATCH: Final = 100


class UpkeepTransitions(Transitions):
    """What the fleet does for tasks that nobody else moves on."""

    async def sweep(self, me: str) -> list[str] | None:
        """The overdue task ids, if this worker is the fleet's sweeper now; None when another one is."""
        reply = await self.run_script(
            "sweep",
            self.fleet("sweeper", "unsent", "leases", "expiry"),
            {"me": me, "term_ms": self.settings.sweep_ms * 3, "batch": SWEEP_BATCH},
        )
        return None if reply[0] == "BUSY" else reply[1:]

    async def agenda(self) -> dict[str, dict[str, int]]:
        """What the sweeper has before it: index (unsent, leases, expiry) -> task id -> when it is due. Writes nothing.

        By the store's clock, in ms. An entry is a look that is due, which may find nothing to do.
        """
        names = ("unsent", "leases", "expiry")
        async with self.connection.turn() as client, client.pipeline(transaction=True) as pipe:
            for name in names:
                pipe.zrange(getattr(self.keys, name), 0, -1, withscores=True)
            found = cast("list[list[tuple[str, float]]]", await pipe.execute())
        return {name: {task: int(at) for task, at in entries} for name, entries in zip(names, found, strict=True)}

    async def forget(self) -> bool:
        """A batch of tasks whose keys Redis has dropped stands in no index any more. True: there may be others."""
        return (await self.run_script("forget", self.fleet("ids"), {"batch": FORGET_BATCH}))[0] == "MORE"

    async def reap(self, task_id: str) -> Next:
        """The overdue task is where its record says.

        RESEND, DUE (its time has come), LOST, QUEUED: send the hint. WAITING: its message stands in a long queue.
        FAILED (`detail` is the reason), CANCELLED, COLD, NOTHING, NEWER: done.
        QUEUED, WOKEN, PARTIAL: as of `answer`; questions that were open for too long are answered as cancelled.
        """
        reply = await self.run_script(
            "reap",
            {**self.own(task_id, *TASK_KEYS), **self.fleet("unsent", "leases", "expiry", "countdowns")},
            {
                "task_id": task_id,
                "resend_ms": self.settings.resend_ms,
                "queue_prefix": self.settings.prefix if self.settings.broker_is_store else None,
                "wakes": self.keys.wakes,
                "expired_message": "The task expired: its time to live ran out before it was done",
                "lost_message": "The worker process was lost ATTEMPTS times while it ran this task; it is given up",
                "timeout_message": "The task ran into its time limit and its worker was lost",
            },
        )
        if reply[0] in ("RESEND", "DUE", "LOST", "QUEUED"):
            return Next(reply[0], hint_for(task_id, *reply[1:]))
        return Next(reply[0], detail=str(reply[1]) if len(reply) > 1 else "")
