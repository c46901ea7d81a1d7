"""When nothing moves in a world, and what is due next."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from mcptasks.model import Status, label
from mcptasks.store.store import TaskStore
from mcptasks.testing.clock import MovableClock
from mcptasks.testing.worker import Work, Worker

#: Between two looks at a tool that takes its time.
_LOOK_S: Final = 0.01
#: What a killed run may take to unwind before time goes on without it.
_UNWIND_S: Final = 0.5


class Quiet:
    """Waits for the tools of one world, for `patience_s` real seconds at most."""

    def __init__(self, worker: Worker, store: TaskStore, clock: MovableClock, patience_s: float) -> None:
        self._worker, self._store, self._clock, self._patience_s = worker, store, clock, patience_s

    async def settle(self, left: Collection[Work] = ()) -> None:
        """Everything that can happen now has happened, but for the works that are left alone.

        Raises:
            TimeoutError: a tool still runs; the message names it.
        """
        loop = asyncio.get_running_loop()
        deadline, swept = loop.time() + self._patience_s, set[tuple[str, int]]()
        while True:
            if killed := {work.task for work in self._worker.works if work.killed}:
                await asyncio.wait(killed, timeout=_UNWIND_S)
            if moving := await self._moving(left):
                if loop.time() > deadline:
                    raise TimeoutError(self._still(moving))
                await asyncio.wait({work.task for work in moving}, timeout=_LOOK_S)
                continue
            # Before the sweep, because time may have been moved beyond the leases of the runs that go on.
            await self._worker.keeper.renew()
            now_ms = self._clock.now_ms
            overdue = {entry for entry in await self._agenda() if entry[1] <= now_ms}
            # Once each: what the sweeper has no answer to must not keep a test for ever.
            if not overdue - swept:
                return
            swept |= overdue
            await self._worker.sweep()

    async def next_ms(self) -> int | None:
        """When something is due that is not due yet; None: nothing is."""
        now_ms, call_ms = self._clock.now_ms, self._clock.next_ms()
        moments = [due_ms for _, due_ms in await self._agenda() if due_ms > now_ms]
        return min([*moments, *([] if call_ms is None else [call_ms])], default=None)

    async def go_to(self, moment_ms: int, left: Collection[Work]) -> None:
        """It is that moment, and everything that then can happen has happened. As `settle`."""
        self._clock.move_to(moment_ms)
        if (behind_ms := moment_ms - await self._store.now_ms()) > 0:
            raise RuntimeError(
                f"The store in memory is {behind_ms} ms behind its clock: this fakeredis is none that mcptasks.testing "
                "knows. Install the version that mcptasks[testing] asks for."
            )
        await self.settle(left)

    async def _moving(self, left: Collection[Work]) -> list[Work]:
        works = [work for work in self._worker.works if not (work in left or work.killed)]
        return [work for work in works if not await self._held(work)]

    async def _held(self, work: Work) -> bool:
        """It keeps its worker while it waits for a person."""
        if work.run is None:
            return False
        record = await self._store.read(work.hint.task_id, None)
        return record is not None and record.status is Status.PARKED

    async def _agenda(self) -> set[tuple[str, int]]:
        """What the sweeper will look at, and when; not the leases of runs that go on, which are renewed."""
        agenda = await self._store.agenda()
        alive = {work.hint.task_id for work in self._worker.works if not work.killed and work.run is not None}
        agenda["leases"] = {task_id: due for task_id, due in agenda["leases"].items() if task_id not in alive}
        return {(f"{index} {task_id}", due) for index, tasks in agenda.items() for task_id, due in tasks.items()}

    def _still(self, moving: list[Work]) -> str:
        names = ", ".join(f"{work.hint.tool} (task {label(work.hint.task_id)})" for work in moving)
        return (
            f"Still running after {self._patience_s:g} s: {names}. A tool that waits for the test is left alone by "
            "`advance(..., leave_running=True)`; for one that just takes long, give `run` more patience_s."
        )
