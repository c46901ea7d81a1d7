"""The tracker's store: one method per transition, each one Lua script and one round trip.

Every method raises `StoreUnavailable` when Redis or Valkey does not answer, refuses the connection, or refuses the
write; nothing is half done then, because a script either ran or did not.
"""

from __future__ import annotations

from mcptasks.settings import Settings
from mcptasks.store.changes import Changes
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.store.callers import CallerTransitions
from mcptasks.tracker.store.outbox import OutboxTransitions
from mcptasks.tracker.store.parents import ParentTransitions
from mcptasks.tracker.store.polls import PollTransitions


class TrackStore(PollTransitions, OutboxTransitions, CallerTransitions, ParentTransitions):
    """The tracked tasks of one prefix, for callers, pollers and those who deliver events."""

    def __init__(self, settings: Settings, options: TrackOptions) -> None:
        super().__init__(settings, options)
        #: For those who wait for a task.
        self.changes = Changes(settings, self.keys, self.connection)

    async def aclose(self) -> None:
        """The running loop's connections are closed."""
        await self.changes.aclose()
        await self.connection.aclose()
