"""What every transition needs: the keys, the connection, and one way to run a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mcptasks.model import Hint
from mcptasks.settings import Settings
from mcptasks.store.connection import Connection
from mcptasks.store.keys import Keys
from mcptasks.store.seal import Seal
from mcptasks.strict_json import clean

#: The keys that end together with their task.
TASK_KEYS: Final = ("task", "call", "journal", "result")


#: Tasks of which one script clears the indexes at most, once Redis has dropped their keys: some milliseconds.
FORGET_BATCH: Final = 200


#: Characters of one text in a timeline.
NOTED_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Next:
    """Answer of the transitions that may queue or re-check a task: the word, and the message to send if any."""

    outcome: str
    hint: Hint | None = None
    detail: str = ""


class Transitions:
    """The tasks of one prefix. Async only; usable from several event loops, one client each."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keys = Keys(settings.prefix)
        self.connection = Connection(settings)
        self.seal = Seal(settings.encryption_keys)

    def own(self, task_id: str, *names: str) -> dict[str, str]:
        """Keys of one task, by the names that the scripts' headers use."""
        return {name: getattr(self.keys, name)(task_id) for name in names}

    def fleet(self, *names: str) -> dict[str, str]:
        """Indexes of the fleet, by the names that the scripts' headers use."""
        return {name: getattr(self.keys, name) for name in names}

    def noted(self, task_id: str, text: str) -> str:
        """The text as it is to be stored in the task's timeline."""
        return self.seal.seal(task_id, "timeline", cut(text))

    async def now_ms(self) -> int:
        """The store's clock."""
        async with self.connection.turn() as client:
            seconds, micros = await client.time()
        return seconds * 1000 + micros // 1000

    async def run_script(self, name: str, keys: dict[str, Any], args: dict[str, Any]) -> list[Any]:
        """The script's answer, its first item one of the words its header lists."""
        async with self.connection.turn():
            return await self.connection.runner.run(name, keys, args)


def cut(text: str) -> str:
    """The text as a timeline has room for it."""
    return clean(text if len(text) <= NOTED_MAX else text[: NOTED_MAX - 1] + "\u2026")


def hint_for(
    task_id: str, run: str, tool: str, queue: str, hard_limit_ms: str, *, look: int = 0, countdown_ms: int = 0
) -> Hint:
    return Hint(
        task_id=task_id,
        run=int(run),
        look=look,
        tool=tool,
        queue=queue,
        countdown_ms=countdown_ms,
        hard_limit_s=int(hard_limit_ms) / 1000 if hard_limit_ms else None,
    )


def countdown_hint(task_id: str, reply: Sequence[str]) -> Hint | None:
    """The re-check that a PARKED answer asks for; None when the task went cold."""
    countdown_ms, look = int(reply[1]), int(reply[2])
    return hint_for(task_id, *reply[3:7], look=look, countdown_ms=countdown_ms) if countdown_ms else None


def put_off_hint(task_id: str, reply: Sequence[str]) -> Hint | None:
    """The message that a RETRYING or SLEEPING answer asks for; None when the sweeper sends it."""
    countdown_ms = int(reply[1])
    return hint_for(task_id, *reply[2:6], countdown_ms=countdown_ms) if countdown_ms else None
