"""What monitors such as Flower see: the life of each run, under its tool's name, without arguments or results."""

from __future__ import annotations

from typing import Any, Final

from mcptasks.celery_seams import EventfulRequest

#: The word a run ended with -> Celery's event for it. Words not listed here are messages that found nothing to run.
_EVENTS: Final = {
    "completed": "task-succeeded",
    "failed": "task-failed",
    "cancelled": "task-revoked",
    "parked": "task-retried",
    "retrying": "task-retried",
    "sleeping": "task-retried",
    "released": "task-retried",
}


#: Why a run that ended will be followed by another one.
_WAITS: Final = {
    "parked": "parked: waits for a person",
    "retrying": "retrying: the tool asked to be run again later",
    "sleeping": "sleeping: waits for a timer of the tool",
    "released": "released: its worker went down, another one continues",
}


class _Request(EventfulRequest):
    def end_cold(self) -> None:
        """What can be stopped is stopped and given back, and the process ends."""
        self.task.portal.shutdown.end_cold()


class TaskRequest(_Request):
    """Reports two events a run: that it started, under the tool's name, and how it ended."""

    def send_event(self, type: str, **fields: Any) -> None:
        """Celery's own event, or the one that says what became of the task."""
        if type == "task-started":
            # Monitors learn the name from `task-received`, which Celery sends only together with all other events.
            super().send_event("task-received", name=self.name, args="()", kwargs="{}", retries=0, eta=None)
            super().send_event("task-started")
        elif type == "task-succeeded":
            word = str(fields.get("result")).strip("'")
            self._report(word.rpartition(": ")[2], fields.get("runtime"))
        else:
            super().send_event(type, **fields)

    def _report(self, word: str, runtime: float | None) -> None:
        match _EVENTS.get(word):
            case "task-succeeded":
                super().send_event("task-succeeded", result=word, runtime=runtime)
            case "task-failed":
                super().send_event("task-failed", exception="failed; `mcptasks show` says why", traceback="")
            case "task-revoked":
                super().send_event("task-revoked", terminated=False, signum=None, expired=False)
            case "task-retried":
                super().send_event("task-retried", exception=_WAITS[word], traceback="")
            case _:
                super().send_event("task-succeeded", result=f"nothing to do: {word}", runtime=runtime)


class SilentRequest(_Request):
    """Reports nothing (settings.flower = "off")."""

    def send_event(self, type: str, **fields: Any) -> None:
        """Nothing leaves."""
