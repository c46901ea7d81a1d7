"""The task store: one method per transition, each one Lua script and one round trip.

Every method raises `StoreUnavailable` when Redis or Valkey does not answer, refuses the connection, or refuses the
write; nothing is half done then, because a script either ran or did not.
"""

from __future__ import annotations

from mcptasks.settings import Settings
from mcptasks.store.admission import AdmissionTransitions
from mcptasks.store.artifacts import ArtifactTransitions
from mcptasks.store.callers import CallerTransitions
from mcptasks.store.changes import Changes
from mcptasks.store.files import Files
from mcptasks.store.gauges import GaugeTransitions
from mcptasks.store.retention import RetentionTransitions
from mcptasks.store.retrying import RetryTransitions
from mcptasks.store.runs import RunTransitions
from mcptasks.store.timeline import TimelineTransitions
from mcptasks.store.upkeep import UpkeepTransitions
from mcptasks.store.watch import Watch


class TaskStore(
    CallerTransitions,
    RunTransitions,
    ArtifactTransitions,
    UpkeepTransitions,
    AdmissionTransitions,
    GaugeTransitions,
    RetentionTransitions,
    TimelineTransitions,
    RetryTransitions,
):
    """The tasks of one prefix, for callers, workers, the sweeper and operators."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        #: For those who want to know when a task has changed.
        self.changes = Changes(settings, self.keys, self.connection)
        #: For those who want to know when any task has.
        self.watch = Watch(settings, self.keys, self.connection)
        #: The bytes of artifacts and large results.
        self.files = Files(settings.artifacts_url, self.seal)

    async def aclose(self) -> None:
        """The running loop's connections are closed."""
        try:
            await self.changes.aclose()
            await self.watch.aclose()
        finally:
            await self.connection.aclose()
