"""The task store: one method per transition, each one Lua script and one round trip.

Every method raises `StoreUnavailable` when Redis or Valkey does not answer, refuses the connection, or refuses the
write; nothing is half done then, because a script either ran or did not.
"""

from __future__ import annotations

from mcptasks.store.admission import AdmissionTransitions
from mcptasks.store.callers import CallerTransitions
from mcptasks.store.registry import RegistryTransitions
from mcptasks.store.runs import RunTransitions
from mcptasks.store.upkeep import UpkeepTransitions


class TaskStore(CallerTransitions, RunTransitions, UpkeepTransitions, AdmissionTransitions, RegistryTransitions):
    """The tasks of one prefix, for callers, workers, the sweeper and operators."""

    async def aclose(self) -> None:
        """The running loop's connections are closed."""
        await self.connection.aclose()
