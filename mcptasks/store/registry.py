"""The workers' register: each says every few seconds that it lives, and whether it hears its queue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, cast

from mcptasks.store.base import Transitions

#: The register outlives its last entry by a day, for those who look at what happened.
_KEPT_S: Final = 86_400

#: An entry older than this is of a worker that does not live any more.
FRESH_MS: Final = 15_000

#: Silence of this length, with messages waiting and slots free, is deafness. BRPOP answers within a second.
DEAF_MS: Final = 15_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPulse:
    """What a worker says of itself."""

    #: By the store's clock; how long ago is `age_ms`.
    at_ms: int
    host: str
    pid: int
    slots: int
    active: int
    #: Messages since it started.
    received: int
    #: Messages that wait in its queues; None: the broker does not tell.
    waiting: int | None
    #: For how long messages have waited while it had free slots and took none; 0: it hears its queues.
    deaf_ms: int
    #: Tool -> how many of its runs go on in the worker's process although their tasks have ended.
    stuck: dict[str, int] = field(default_factory=dict[str, int])
    #: The tool that holds the event loop of the process although its task has ended; empty: none does.
    held_by: str = ""
    #: Where it keeps artifacts.
    artifacts: str = ""
    #: Those it takes messages from; empty: it does not say.
    queues: tuple[str, ...] = ()

    @property
    def deaf(self) -> bool:
        """It does not hear its queues. A silence of a moment is none: its next message may be on the way."""
        return self.deaf_ms >= DEAF_MS


def read_pulse(entry: Mapping[str, Any]) -> WorkerPulse:
    """The entry, without what a newer worker says besides."""
    known = {one.name for one in fields(WorkerPulse)}
    said: dict[str, Any] = {name: value for name, value in entry.items() if name in known}
    said["queues"] = tuple(said.get("queues", ()))  # JSON has lists only
    return WorkerPulse(**said)


class RegistryTransitions(Transitions):
    """Who works here."""

    async def report(self, name: str, pulse: WorkerPulse) -> None:
        """The worker's entry says this."""
        async with self.connection.turn() as client:
            await client.hset(self.keys.workers, name, json.dumps(asdict(pulse)))
            await client.expire(self.keys.workers, _KEPT_S)

    async def sign_off(self, name: str) -> None:
        """The worker has no entry: it went down in order."""
        async with self.connection.turn() as client:
            await client.hdel(self.keys.workers, name)

    async def workers(self) -> dict[str, WorkerPulse]:
        """Every entry by node name, dead workers' included until a day after the last entry."""
        async with self.connection.turn() as client:
            entries = cast("dict[str, str]", await client.hgetall(self.keys.workers))
        loaded: dict[str, dict[str, Any]] = {name: json.loads(text) for name, text in entries.items()}
        return {name: read_pulse(entry) for name, entry in loaded.items()}
