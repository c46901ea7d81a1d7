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
    "deferred": "task-retried",
    "error": "task-retried",
    "draining": "task-retried",
    "unreleased": "task-retried",
    "lost": "task-retried",
}


#: Why a run that ended will be followed by another one.
_WAITS: Final = {
    "parked": "parked: waits for a person",
    "retrying": "retrying: the tool asked to be run again later",
    "sleeping": "sleeping: waits for a timer of the tool",
    "released": "released: its worker went down, another one continues",
    "deferred": "deferred: this worker has not got its tool, another one is looked for",
    "error": "not run: the store did not answer, the message is sent again",
    "draining": "not run: its worker goes down, another one takes it",
    "unreleased": "stopped: its worker went down, another one continues after the lease",
    "lost": "stopped: another run has the task",
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
            retries = self._runs_before()
            super().send_event("task-received", name=self.name, args="()", kwargs="{}", retries=retries, eta=None)
            super().send_event("task-started")
        elif type == "task-succeeded":
            word = str(fields.get("result")).strip("'")
            self._report(word.rpartition(": ")[2], fields.get("runtime"))
        else:
            super().send_event(type, **fields)

    def _runs_before(self) -> int:
        run = self.kwargs.get("run")
        return run - 1 if isinstance(run, int) else 0

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
