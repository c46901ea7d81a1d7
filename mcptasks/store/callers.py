"""The transitions of the server's side: create, read, answer, cancel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, cast

from mcptasks.actors import operator_word
from mcptasks.errors import TooLarge
from mcptasks.model import Envelope, Guard, Record, Status, Submission, label
from mcptasks.policy import Policy
from mcptasks.store.base import FORGET_BATCH, TASK_KEYS, Next, Transitions, hint_for
from mcptasks.store.keys import owner_digest
from mcptasks.store.records import newer, pairs, read_record, seal_guard, with_payload
from mcptasks.strict_json import clean, dumps

#: An unfinished task stays in Redis this much longer than both its phases, so that the sweeper always comes first.
EXPIRY_GRACE_MS: Final = 60_000

#: The status message of a task that its client cancelled.
BY_CLIENT: Final = "Cancelled by the client"


@dataclass(frozen=True, slots=True)
class Created:
    """Answer of `create`. `record` is the new task's; None unless CREATED."""

    outcome: Literal["CREATED", "EXISTS", "CONFLICT"]
    task_id: str
    record: Record | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer of `create`: the fleet takes no task now, and nothing was stored.

    `what`: "closed" (`detail` is the operator's reason), or the limit that is reached: "owner", "tool", "queue"
    (`detail` is the limit); "final": there is no failed task that it could retry.
    """

    what: Literal["closed", "owner", "tool", "queue", "final"]
    detail: str


class CallerTransitions(Transitions):
    """What callers do to a task, through the MCP server."""

    async def create(
        self,
        task_id: str,
        submission: Submission,
        *,
        owner: str,
        policy: Policy,
        idempotency_key: str | None = None,
        arguments_digest: str = "",
        settled: tuple[Guard, Mapping[str, Any]] | None = None,
        message: Envelope | None = None,
        version: str = "",
        origin: str | None = None,
        operator: str = "",
    ) -> Created | Refused:
        """The task exists and `read` finds it, or the idempotency key names the task that does, or it is refused.

        `settled`: what was asked and answered on the request itself, before the task (SEP-2663, multi-round-trip).
        `message`: pushed to the broker in the same moment, where the broker is the store. `version`: of the code that
        takes the call. `origin`: the failed task that it retries, which stays as it is; timelines name the other
        one, and the `operator`; the next sweep sends the message.

        Raises:
            TooLarge: the arguments are over `settings.arguments_max`.
            BadPayload: the arguments are not JSON.
        """
        settings = self.settings
        arguments = dumps(submission.arguments, "The argument object")
        if len(arguments) > settings.arguments_max:
            raise TooLarge("The argument object", len(arguments), settings.arguments_max, "MCPTASKS_ARGUMENTS_MAX")
        ttl_ms = None if policy.unlimited else policy.ttl_ms or settings.ttl_ms
        idem, digests = (
            self.keys.idem(owner, submission.tool, idempotency_key or ""),
            self.seal.digests(arguments_digest),
        )
        reply = await self.run_script(
            "create",
            {
                **self.own(task_id, "task", "call", "journal"),
                **self.fleet("unsent", "expiry", "admission"),
                **self._broker(message),
                "idem": idem,
                # A script wants all its keys named; without an origin this one is not touched.
                "origin": self.keys.task(origin or task_id),
            },
            {
                "task_id": task_id,
                "tool": submission.tool,
                "owner": owner,
                "owner_digest": owner_digest(owner),
                "call_json": self.seal.seal(task_id, "call", _call_json(submission, arguments)),
                "mrtr": None if settled is None else seal_guard(task_id, settled[0], self.seal),
                "queue": policy.queue or settings.queue,
                "ttl_ms": ttl_ms,
                "poll_ms": settings.poll_ms,
                "poll_parked_ms": settings.poll_parked_ms,
                "resend_ms": settings.resend_ms if origin is None else 0,
                "max_attempts": policy.max_attempts,
                "hard_limit_ms": policy.hard_limit_ms,
                "grace_ms": EXPIRY_GRACE_MS,
                "version": clean(version),
                "idem_digest": None if idempotency_key is None else digests[0],
                "message": None if message is None else message.payload,
                "retry_delays": " ".join(str(delay) for delay in policy.retry_ms),
                "owner_max": settings.owner_max or None,
                "tool_max": settings.tool_max or None,
                "queue_max": settings.queue_max or None,
                "batch": FORGET_BATCH,
                "label": _named(task_id, operator),
                "origin_label": None if origin is None else _named(origin, operator),
                "answers": [] if settled is None else self._flat(task_id, settled[1]),
            },
        )
        if reply[0] == "CLOSED":
            return Refused("closed", reply[1])
        if reply[0] == "FULL":
            return Refused(reply[1], reply[2])
        if reply[0] == "FINAL":
            return Refused("final", "")
        if reply[0] == "CONFLICT" and await self._stored_under(idem, digests[1:]):
            return Created("EXISTS", reply[1])
        if reply[0] != "CREATED":
            return Created(reply[0], reply[1])
        record = Record(
            task_id=task_id,
            tool=submission.tool,
            owner=owner,
            status=Status.QUEUED,
            created_ms=int(reply[1]),
            updated_ms=int(reply[1]),
            ttl_ms=ttl_ms,
            poll_ms=settings.poll_ms,
            revision=1,
            token=0,
            attempt=0,
            max_attempts=policy.max_attempts,
            queue=policy.queue or settings.queue,
            hard_limit_ms=policy.hard_limit_ms,
            version=version,
        )
        return Created("CREATED", task_id, record)

    async def read(self, task_id: str, owner: str | None) -> Record | None:
        """The task, or None when it does not exist or is not the owner's (one answer for both). Writes nothing.

        `owner=None` is the operator, who sees every task.

        Raises:
            SchemaTooNew: a newer mcptasks wrote it.
            Sealed: something of it is sealed with a key that is not here.
        """
        reply = await self.run_script(
            "read", self.own(task_id, "task", "result"), {"owner": owner, "operator": "1" if owner is None else ""}
        )
        if reply[0] == "GONE":
            return None
        fields = with_payload(pairs(reply[1]), reply[2] or None)
        return read_record(fields, self.seal)

    async def owned(self, task_ids: Sequence[str], owner: str) -> list[str]:
        """Those of the tasks that `read` would find, in the order given. One round trip, writes nothing."""
        async with self.connection.turn() as client, client.pipeline(transaction=False) as pipe:
            for task_id in task_ids:
                pipe.hget(self.keys.task(task_id), "owner")
            owners = cast("list[str | None]", await pipe.execute())
        return [task_id for task_id, found in zip(task_ids, owners, strict=True) if found == owner]

    async def answer(
        self,
        task_id: str,
        owner: str | None,
        answers: Mapping[str, Any],
        message: Envelope | None = None,
        *,
        operator: str = "",
    ) -> Next:
        """Each answer whose key is still open, and in time, is stored; with the last one the task moves on.

        QUEUED (send the hint, if there is one: a given `message` was pushed already, and there is one all the same
        where that was for another run) | WOKEN (a run has them) | PARTIAL | IGNORED | GONE (unknown or not the
        owner's). `owner=None` is the operator (of that name), who may have nothing to send with: the sweeper sends at
        once.

        Raises:
            TooLarge: one answer is over `settings.answer_max`; none of them was stored.
            BadPayload: an answer is not JSON.
            SchemaTooNew: a newer mcptasks wrote the task.
        """
        reply = await self.run_script(
            "answer",
            {
                **self.own(task_id, "task", "journal"),
                **self.fleet("unsent", "leases", "countdowns"),
                **self._broker(message),
            },
            {
                "task_id": task_id,
                "owner": owner,
                "operator": operator_word(operator) if owner is None else "",
                "resend_ms": 0 if owner is None else self.settings.resend_ms,
                "wakes": self.keys.wakes,
                "message": None if message is None else message.payload,
                "answers": self._flat(task_id, answers),
            },
        )
        if reply[0] == "NEWER":
            raise newer(task_id, reply[1])
        unsent = reply[0] == "QUEUED" and (message is None or message.run != int(reply[1]))
        return Next(reply[0], hint_for(task_id, *reply[1:]) if unsent else None)

    async def cancel(self, task_id: str, owner: str | None, reason: str | None = None, *, operator: str = "") -> str:
        """The wish is stored: CANCELLED (it had no worker) | REQUESTED (it runs) | FINISHED (too late) | GONE.

        `owner=None` is the operator (of that name). `reason` becomes the status message of the cancelled task; None:
        the client's.

        Raises:
            SchemaTooNew: a newer mcptasks wrote the task.
        """
        # Whoever may cancel need not have the right keys: what nobody worded is for everybody to read.
        message = BY_CLIENT if reason is None else self.seal.seal(task_id, "msg", clean(reason))
        reply = await self.run_script(
            "cancel",
            {**self.own(task_id, *TASK_KEYS), **self.fleet("unsent", "leases", "expiry", "countdowns")},
            {
                "task_id": task_id,
                "owner": owner,
                "operator": operator_word(operator) if owner is None else "",
                "wakes": self.keys.wakes,
                "message": message,
                "said": None if reason is None else self.noted(task_id, reason),
            },
        )
        if reply[0] == "NEWER":
            raise newer(task_id, reply[1])
        return reply[0]

    async def _stored_under(self, idem: str, digests: Sequence[str]) -> bool:
        """The key's call has one of these digests: it was stored when another of our keys was the first, or none was.

        Also if it is gone by now.
        """
        if not digests:
            return False
        async with self.connection.turn() as client:
            known = cast("str | None", await client.get(idem))
        return known is None or known.partition(" ")[2] in digests

    def _broker(self, message: Envelope | None) -> dict[str, str]:
        # A script wants all its keys named; without a message this one is not touched.
        return {"broker_queue": self.keys.unsent if message is None else message.key}

    def _flat(self, task_id: str, answers: Mapping[str, Any]) -> list[str]:
        flat: list[str] = []
        for key, value in answers.items():
            text = dumps(value, f"The answer to {key!r}")
            if len(text) > self.settings.answer_max:
                raise TooLarge(f"The answer to {key!r}", len(text), self.settings.answer_max, "MCPTASKS_ANSWER_MAX")
            flat += [key, self.seal.seal(task_id, f"a:{key}", text)]
        return flat


def _named(task_id: str, operator: str) -> str:
    """The other task as the timeline of its retry names it, and who retried."""
    return f"{label(task_id)} {operator_word(operator)}" if operator else label(task_id)


def _call_json(submission: Submission, arguments: str) -> str:
    """The submission as JSON, without what is as usual, around its arguments, which are JSON already and large."""
    usual = Submission(tool="", arguments={}, protocol_version="")
    told = {f.name: getattr(submission, f.name) for f in fields(submission) if f.name != "arguments"}
    rest = {name: value for name, value in told.items() if value != getattr(usual, name)}
    return f'{{"arguments":{arguments},{dumps(rest, "The call")[1:]}'
