"""The transitions of tasks that a durable task follows: adopt, orphans."""

from __future__ import annotations

from typing import Final, Literal

from mcptasks.store.keys import Keys
from mcptasks.tracker.store.base import TrackTransitions

#: How soon a cancel of the durable task is seen by whoever looks.
AFTER_MS: Final = 2_000
_BATCH: Final = 200


class ParentTransitions(TrackTransitions):
    """What ties a tracked task to the durable task that waits for it."""

    async def adopt(self, task_id: str, parent: str) -> Literal["ADOPTED", "TERMINAL", "GONE"]:
        """The task is cancelled when the durable task `parent` is cancelled, fails, or is gone."""
        keys = {**self.own(task_id, "task"), **self.fleet("parents")}
        return (await self.run_script("adopt", keys, {"task_id": task_id, "parent": parent}))[0]

    async def orphans(self) -> int:
        """The cancels of durable tasks have reached the tasks that they followed, of some that are due for a look."""
        task_prefix = Keys(self.settings.prefix).task("").removesuffix("{}")
        args = {"task_prefix": task_prefix, "after_ms": AFTER_MS, "batch": _BATCH}
        return int((await self.run_script("orphans", self.fleet("parents", "due"), args))[1])
