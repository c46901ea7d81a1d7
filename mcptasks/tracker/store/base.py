"""What every transition of the tracker needs: `mcptasks.store`'s ways, with the tracker's keys and scripts."""

from __future__ import annotations

from typing import Final

from mcptasks.settings import Settings
from mcptasks.store.base import Transitions
from mcptasks.store.connection import Connection
from mcptasks.store.scripts import SCRIPTS, Script, parse, texts
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.store.keys import TrackKeys

#: Scripts of the task store that work on any lists of that shape.
SHARED_SCRIPTS: Final = ("page", "find")


#: Before the names of the tracker's scripts, some of which are those of other scripts.
TRACK: Final = "track."


def load() -> dict[str, Script]:
    """The tracker's own scripts, by name; they call themselves `track.<name>` where both kinds are told of."""
    own = texts("mcptasks.tracker.store")
    prelude = "\n".join([texts("mcptasks.store")["indexes"], own.pop("prelude")])
    return {name: parse(f"{TRACK}{name}", text, prelude) for name, text in own.items()}


TRACK_SCRIPTS: Final = load()


class TrackTransitions(Transitions):
    """The tracked tasks of one prefix. Async only; usable from several event loops, one client each."""

    keys: TrackKeys

    def __init__(self, settings: Settings, options: TrackOptions) -> None:
        super().__init__(settings)
        self.options = options
        self.keys = TrackKeys(f"{settings.prefix}track:")
        self.connection = Connection(settings, {**TRACK_SCRIPTS, **{name: SCRIPTS[name] for name in SHARED_SCRIPTS}})

    def sealed(self, task_id: str, name: str, text: str) -> str:
        """As it is to be stored in that field."""
        return self.seal.seal(task_id, name, text)
