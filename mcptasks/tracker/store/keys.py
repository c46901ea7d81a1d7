"""Every key of the tracker, in one place.

They stand below the prefix's `track:`. The lists (`list:...`, `ids`, `drops`) are those of `mcptasks.store.keys`, kept
by the same Lua; in the place of a tool stands the server.

| key                  | type   | holds                                                                       |
|----------------------|--------|-----------------------------------------------------------------------------|
| task:{id}            | hash   | the record; of questions, by key: open `q:`, seen `s:`, answer to deliver   |
|                      |        | `a:`; of events, by consumer: `e:` revision and kind, `t:` failed attempts, |
|                      |        | `l:` lease, `n:` its token, `x:` the last error                             |
| handle:<digest>      | text   | the task of a server's handle                                               |
| due                  | zset   | live task -> when it is polled next, or when its claim runs out             |
| trackers             | zset   | tracker process -> until when it is taken for alive                         |
| outbox:<consumer>    | zset   | task with news for the consumer -> when they are delivered (again)          |
| dead                 | zset   | "task consumer" -> when its event was given up                              |
| consumers            | zset   | consumer -> when there were last news for it; the last hundred              |
| parents              | zset   | task that a durable task follows -> when that one is looked at next         |
| events               | stream | every event, the last ten thousand                                          |
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from mcptasks.store.keys import Keys


@dataclass(frozen=True, slots=True)
class TrackKeys(Keys):
    """The tracker's names below one prefix."""

    def handle(self, digest: str) -> str:
        """Where the task of that handle is found."""
        return f"{self.prefix}handle:{digest}"

    def outbox(self, consumer: str) -> str:
        """What the consumer is owed."""
        return f"{self.prefix}outbox:{consumer}"

    @property
    def due(self) -> str:
        """The next polls."""
        return f"{self.prefix}due"

    @property
    def trackers(self) -> str:
        """Who polls."""
        return f"{self.prefix}trackers"

    @property
    def parents(self) -> str:
        """Tasks that a durable task follows."""
        return f"{self.prefix}parents"

    @property
    def dead(self) -> str:
        """The dead letters."""
        return f"{self.prefix}dead"

    @property
    def consumers(self) -> str:
        """Whose outboxes there are."""
        return f"{self.prefix}consumers"

    @property
    def events(self) -> str:
        """The stream of events."""
        return f"{self.prefix}events"


def handle_name(server: str, handle: str) -> str:
    """What a handle's digest is of: two servers may use the same handle."""
    return json.dumps([server, handle])
