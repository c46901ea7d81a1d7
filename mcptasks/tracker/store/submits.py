"""The transitions of a submission: intend, track, doubt, retract, abandon."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

from mcptasks.errors import TooLarge
from mcptasks.store.keys import owner_digest
from mcptasks.store.records import newer
from mcptasks.strict_json import dumps
from mcptasks.tracker.model import End, Intent, Observation, TrackStatus
from mcptasks.tracker.store.base import TrackTransitions
from mcptasks.tracker.store.keys import handle_name


@dataclass(frozen=True, slots=True)
class TrackAnswer:
    """Answer of `track`: the word, and the other task's id with TAKEN."""

    outcome: Literal["TRACKED", "ENDED", "SAME", "TAKEN", "OTHER", "TERMINAL", "GONE"]
    other: str = ""

    @property
    def stored(self) -> bool:
        """The handle is this task's."""
        return self.outcome in ("TRACKED", "ENDED", "SAME")


class SubmitTransitions(TrackTransitions):
    """What a submitter does, and the fleet in its place when it was lost."""

    async def intend(self, intent: Intent, nonce: str) -> Literal["INTENDED", "EXISTS", "CONFLICT"]:
        """The intent is stored and its submitter's for `options.intent_ms`; or the task that has its id was there.

        Raises:
            TooLarge: the arguments are over `settings.arguments_max`.
            BadPayload: they are not JSON.
            SchemaTooNew: a newer mcptasks wrote the task with that id.
        """
        arguments = dumps(dict(intent.arguments), "The argument object")
        if len(arguments) > self.settings.arguments_max:
            raise TooLarge("The argument object", len(arguments), self.settings.arguments_max, "MCPTASKS_ARGUMENTS_MAX")
        what = dumps([intent.server, intent.tool, dict(sorted(intent.arguments.items())), intent.owner], "The intent")
        reply = await self.run_script(
            "intend",
            {**self.own(intent.task_id, "task"), **self.fleet("due")},
            {
                "task_id": intent.task_id,
                "nonce": nonce,
                "owner": intent.owner,
                "owner_digest": owner_digest(intent.owner),
                "server": intent.server,
                "tool": intent.tool,
                "key": intent.key,
                "arguments": self.sealed(intent.task_id, "args", arguments),
                "consumers": " ".join(intent.consumers),
                "lease_ms": self.options.intent_ms,
                "ttl_ms": self.options.ttl_ms,
                "live_ms": self.options.live_ms,
                "digests": self.seal.digests(_hashed(what)),
            },
        )
        if reply[0] == "NEWER":
            raise newer(intent.task_id, reply[1])
        return reply[0]

    async def track(self, task_id: str, server: str, handle: str | None, seen: Observation) -> TrackAnswer:
        """The task has this handle (None: the server answered at once) and is as observed.

        SAME: it has it already. TAKEN: another tracked task has it, and this one has failed. OTHER | TERMINAL | GONE:
        nothing was stored, and what was started on the server is the caller's to cancel.
        """
        digests = self.seal.digests(_hashed(handle_name(server, handle or "")))
        reply = await self.run_script(
            "track",
            {**self.own(task_id, "task"), **self.fleet("due"), "handles": [self.keys.handle(one) for one in digests]},
            {
                "task_id": task_id,
                "handle": self.sealed(task_id, "handle", handle or ""),
                "handled": digests[0] if handle else "",
                **self._state(task_id, seen),
                "shown": self._questions(task_id, seen),
            },
        )
        return TrackAnswer(reply[0], str(reply[1]) if reply[0] == "TAKEN" else "")

    async def doubt(self, task_id: str, message: str) -> Literal["DOUBTED", "IGNORED"]:
        """The intent's fate is unknown, and people are told."""
        args = {"task_id": task_id, "message": self.sealed(task_id, "msg", message)}
        reply = await self.run_script("doubt", {**self.own(task_id, "task"), **self.fleet("due")}, args)
        return reply[0]

    async def retract(self, task_id: str) -> Literal["RETRACTED", "IGNORED"]:
        """Nothing is left of an intent that was not sent. IGNORED: the fleet has it in hand, or it is none any more."""
        return (
            await self.run_script("retract", {**self.own(task_id, "task"), **self.fleet("due")}, {"task_id": task_id})
        )[0]

    async def abandon(
        self, task_id: str, status: TrackStatus, reason: End, message: str
    ) -> Literal["ABANDONED", "IGNORED"]:
        """The intent has ended so. IGNORED: it has a handle, or has ended otherwise."""
        args = {
            "task_id": task_id,
            "status": status,
            "reason": reason,
            "message": self.sealed(task_id, "msg", message),
        }
        return (await self.run_script("abandon", self.own(task_id, "task"), args))[0]

    def _state(self, task_id: str, seen: Observation) -> dict[str, Any]:
        result = "" if seen.result is None else dumps(seen.result, "The result")
        failure = "" if seen.error is None else dumps(seen.error, "The error")
        return {
            "status": seen.status,
            "reason": seen.reason,
            "message": self.seal.seal_again(task_id, "msg", seen.message),
            "next_ms": seen.next_ms,
            "pace_ms": seen.pace_ms,
            "result": self.sealed(task_id, "result", result),
            "failure": self.sealed(task_id, "failure", failure),
            "truncated": "1" if seen.truncated else "",
        }

    def _questions(self, task_id: str, seen: Observation) -> list[str]:
        flat: list[str] = []
        for key, question in seen.questions.items():
            flat += (key, self.sealed(task_id, f"q:{key}", dumps(question, "The question")))
        return flat


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
