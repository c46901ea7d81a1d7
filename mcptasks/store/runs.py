"""The transitions of the worker's side: claim, renew, ask, sleep, park, step, finish, retry, defer, release.

Every one of them carries the run's fencing token. A run that lost its claim is told so (STALE, TERMINAL or GONE) and
has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast
from uuid import uuid4

from mcptasks.model import Claim, Guard, Hint, Journal, Question, Reason, Status, Timer
from mcptasks.store.base import TASK_KEYS, Next, Transitions, countdown_hint, cut, hint_for, put_off_hint
from mcptasks.store.records import claim_of, read_claim, read_journal, seal_guard, seal_note
from mcptasks.strict_json import clean, dumps
from mcptasks.times import InputLimit


def new_nonce() -> str:
    """A nonce that no other claim has."""
    return uuid4().hex


class RunTransitions(Transitions):
    """What a worker does to the task it runs."""

    async def claim(self, hint: Hint, worker: str, nonce: str = "") -> Claim | Next:
        """This worker runs the task once, or a `Next` says why not. A `LockedClaim` can only be deferred.

        `nonce`: names this wish to claim. A claim whose answer got lost is answered again, the same, to who repeats it
        with its nonce. Empty: a new one, so that only the client's own second try repeats it.

        HELD | STALE | TERMINAL | GONE | NEWER: drop the message. PARKED: send the hint with its countdown, if any.
        EARLY: a retry or a timer (`detail` is the task's status) whose time has not come; send the hint, if there is
        one, with the rest of its countdown: the sweeper has every delay.
        """
        settings = self.settings
        reply = await self.run_script(
            "claim",
            {**self.own(hint.task_id, "task", "call", "journal"), **self.fleet("unsent", "leases", "countdowns")},
            {
                "task_id": hint.task_id,
                "run": hint.run,
                "look": hint.look,
                "lease_ms": settings.lease_ms,
                "worker": worker,
                "nonce": nonce or new_nonce(),
                "budget": settings.countdown_budget,
                "delays": settings.countdowns_ms,
            },
        )
        if reply[0] == "CLAIMED":
            return read_claim(reply[2], reply[3], reply[4], self.seal)
        if reply[0] == "PARKED":
            return Next("PARKED", countdown_hint(hint.task_id, reply))
        if reply[0] == "EARLY":
            wait_ms = int(reply[2])
            if wait_ms > max(settings.countdowns_ms, default=0):
                return Next("EARLY", detail=reply[1])
            return Next("EARLY", hint_for(hint.task_id, *reply[3:7], countdown_ms=wait_ms), detail=reply[1])
        return Next(reply[0], detail=str(reply[1]) if len(reply) > 1 else "")

    async def renew(self, runs: Iterable[tuple[str, int]]) -> list[Literal["RUNNING", "WAITING", "CANCEL", "LOST"]]:
        """The leases of all these (task id, token) hold for another `lease_ms`; one word of news for each, in order."""
        flat = list(runs)
        reply = await self.run_script(
            "renew",
            {**self.fleet("leases"), "tasks": [self.keys.task(task_id) for task_id, _ in flat]},
            {"lease_ms": self.settings.lease_ms, "runs": [part for run in flat for part in run]},
        )
        return reply[1:]

    async def ask(
        self,
        claim: Claim,
        questions: Sequence[tuple[Question, str]],
        *,
        guard: Guard | None,
        hold: bool,
        trace: str = "",
    ) -> Next:
        """The questions (each with its note, whose first word is the digest of what is asked) are open.

        `trace`: this run's W3C traceparent, if it is traced, for the next one to link to.

        HELD: the run keeps its worker. PARKED: it has let go; send the hint if there is one. ANSWERED: nothing is open,
        the claim is kept. MISMATCH (`detail` is the key) and TOO_MANY (the count): nothing was stored.
        CANCELLED: the run was about to let go of a task that is to be cancelled; it has ended.
        STALE | TERMINAL | GONE: this run may not write any more.
        """
        settings, asked = self.settings, [part for q, note in questions for part in self._asked(claim.task_id, q, note)]
        reply = await self.run_script(
            "ask",
            {**self.own(claim.task_id, *TASK_KEYS), **self.fleet("unsent", "leases", "expiry", "countdowns")},
            {
                "task_id": claim.task_id,
                "token": claim.token,
                "hold": "1" if hold else "",
                "mrtr": None if guard is None else seal_guard(claim.task_id, guard, self.seal),
                "trace": trace,
                "budget": settings.countdown_budget,
                "questions_max": settings.questions_max,
                "delay_count": len(settings.countdowns_ms),
                "tail": [*settings.countdowns_ms, *asked],
            },
        )
        if reply[0] == "PARKED":
            return Next("PARKED", countdown_hint(claim.task_id, reply))
        return Next(reply[0], detail=str(reply[1]) if len(reply) > 1 else "")

    async def sleep(self, claim: Claim, timers: Sequence[Timer], *, hold: bool) -> Next:
        """The timers run. Held: SET, and the run keeps its worker. Otherwise the worker has let go of the task.

        SLEEPING: until the first is due; send the hint, if there is one (short delays are counted down). PARKED:
        likewise, or until its open questions are answered. DUE: the first is due by now, the claim is kept.
        CANCELLED: it was to be cancelled, and is. STALE | TERMINAL | GONE: this run may not write any more.
        """
        settings = self.settings
        quadruples = [part for t in timers for part in (t.name, _text(t.delay_ms), _text(t.until_ms), str(t.place))]
        reply = await self.run_script(
            "sleep",
            {**self.own(claim.task_id, *TASK_KEYS), **self.fleet("unsent", "leases", "expiry", "countdowns")},
            {
                "task_id": claim.task_id,
                "token": claim.token,
                "hold": "1" if hold else "",
                "resend_ms": settings.resend_ms,
                "countdown_max_ms": max(settings.countdowns_ms, default=0),
                "budget": settings.countdown_budget,
                "delay_count": len(settings.countdowns_ms),
                "tail": [*settings.countdowns_ms, *quadruples],
            },
        )
        if reply[0] == "PARKED":
            return Next("PARKED", countdown_hint(claim.task_id, reply))
        return Next(reply[0], put_off_hint(claim.task_id, reply) if reply[0] == "SLEEPING" else None)

    async def park(self, claim: Claim) -> Next:
        """A held run has let go of its task: PARKED (send the hint if any) | ANSWERED (go on) | a refusal.

        CANCELLED: a cancel came first, and the task has ended.
        """
        reply = await self.run_script(
            "park",
            {**self.own(claim.task_id, *TASK_KEYS), **self.fleet("unsent", "leases", "expiry", "countdowns")},
            {
                "task_id": claim.task_id,
                "token": claim.token,
                "budget": self.settings.countdown_budget,
                "delays": self.settings.countdowns_ms,
            },
        )
        return Next(reply[0], countdown_hint(claim.task_id, reply) if reply[0] == "PARKED" else None)

    async def reload(self, task_id: str) -> Claim | None:
        """The claim that stands now, for a process that runs it on behalf of the one that holds it; None: no task."""
        async with self.connection.turn() as client, client.pipeline(transaction=True) as pipe:
            pipe.hgetall(self.keys.task(task_id))
            pipe.get(self.keys.call(task_id))
            pipe.hgetall(self.keys.journal(task_id))
            record, call, journal = cast("tuple[dict[str, str], str | None, dict[str, str]]", await pipe.execute())
        return claim_of(record, call or "", journal, self.seal) if record else None

    async def journal(self, task_id: str) -> Journal:
        """The task's journal as it is now.

        Raises:
            Sealed: something of it is sealed with a key that is not here.
        """
        async with self.connection.turn() as client:
            fields = cast("dict[str, str]", await client.hgetall(self.keys.journal(task_id)))
        return read_journal(task_id, fields, self.seal)

    async def step(self, claim: Claim, name: str, value: str) -> tuple[str, str]:
        """The step's result (JSON) is recorded: RECORDED | KNOWN, and the result that stands | a refusal."""
        place = claim.task_id, f"s:{name}"
        said = self.noted(claim.task_id, name)
        args = {"token": claim.token, "name": name, "value": self.seal.seal(*place, value), "said": said}
        reply = await self.run_script("step", self.own(claim.task_id, "task", "journal"), args)
        return reply[0], self.seal.open(*place, reply[1]) if reply[0] == "KNOWN" else value

    async def finish(
        self,
        claim: Claim,
        status: Literal[Status.COMPLETED, Status.FAILED, Status.CANCELLED],
        reason: Reason,
        *,
        message: str = "",
        payload: str = "",
    ) -> str:
        """The task has ended, with its result or error (JSON): FINISHED | STALE | TERMINAL | GONE."""
        field = {Status.COMPLETED: "result", Status.FAILED: "error", Status.CANCELLED: ""}[status]
        reply = await self.run_script(
            "finish",
            {**self.own(claim.task_id, *TASK_KEYS), **self.fleet("unsent", "leases", "expiry", "countdowns")},
            {
                "task_id": claim.task_id,
                "token": claim.token,
                "status": status,
                "reason": reason,
                "message": self._message(claim.task_id, message),
                "payload": self.seal.seal(claim.task_id, field, payload),
            },
        )
        return reply[0]

    async def retry(self, claim: Claim, message: str, error: str) -> Next:
        """The task waits for its next retry: RETRYING (send the hint, if there is one: short delays are counted down).

        EXHAUSTED: none is left, it has failed with this error (JSON). CANCELLED: it was to be cancelled, and is.
        COLD: the run was held; its task goes on waiting for its answers, and no retry is used up.
        STALE | TERMINAL | GONE: this run may not write any more.
        """
        settings = self.settings
        reply = await self.run_script(
            "retry",
            {**self.own(claim.task_id, *TASK_KEYS), **self.fleet("unsent", "leases", "expiry", "countdowns")},
            {
                "task_id": claim.task_id,
                "token": claim.token,
                "message": self._message(claim.task_id, message),
                "said": self.noted(claim.task_id, message),
                "error": self.seal.seal(claim.task_id, "error", error),
                "resend_ms": settings.resend_ms,
                "countdown_max_ms": max(settings.countdowns_ms, default=0),
                "budget": settings.countdown_budget,
            },
        )
        return Next(reply[0], put_off_hint(claim.task_id, reply) if reply[0] == "RETRYING" else None)

    async def defer(self, claim: Claim, waiting: str, error: Mapping[str, Any]) -> Next:
        """The task waits for a worker that can run it: DEFERRED (the sweeper sends its message, there is none now).

        Each time longer (setting `deferrals_ms`). EXHAUSTED: none came in time, it has failed with this error. Neither
        text is sealed: a worker that has the wrong keys must be able to say so to those that have the right ones.
        CANCELLED: it was to be cancelled, and is. COLD: the run was held; its task goes on waiting for its answers.
        STALE | TERMINAL | GONE: this run may not write any more.
        """
        reply = await self.run_script(
            "defer",
            {**self.own(claim.task_id, *TASK_KEYS), **self.fleet("unsent", "leases", "expiry", "countdowns")},
            {
                "task_id": claim.task_id,
                "token": claim.token,
                "waiting": clean(waiting),
                "said": cut(waiting),
                "message": clean(str(error["message"])),
                "error": dumps(error, "The error"),
                "delays": self.settings.deferrals_ms,
            },
        )
        return Next(reply[0], detail=reply[1] if reply[0] == "DEFERRED" else "")

    async def release(self, claim: Claim) -> Next:
        """The claim is given back: RELEASED (send the hint) | STALE | TERMINAL | GONE. Not counted as an attempt.

        COLD: the run was held, and its task goes on waiting for its answers. CANCELLED: it was to be, and has ended.
        FAILED: it must not be begun twice (`max_attempts` 1), and has ended with reason `shutdown`.
        """
        reply = await self.run_script(
            "release",
            {**self.own(claim.task_id, *TASK_KEYS), **self.fleet("unsent", "leases", "expiry", "countdowns")},
            {
                "task_id": claim.task_id,
                "token": claim.token,
                "resend_ms": self.settings.resend_ms,
                "shutdown_message": "The worker went down before the tool was done, and it must not be begun twice",
            },
        )
        return Next(reply[0], hint_for(claim.task_id, *reply[1:]) if reply[0] == "RELEASED" else None)

    def _message(self, task_id: str, text: str) -> str:
        return self.seal.seal(task_id, "msg", clean(text))

    def _asked(self, task_id: str, question: Question, note: str) -> tuple[str, str, str, str, str]:
        key, text = question.key, dumps(question.request, "The question")
        noted = seal_note(task_id, f"k:{key}", note, self.seal)
        sealed = self.seal.seal(task_id, f"q:{key}", text)
        return key, question.method, noted, sealed, self._limit(task_id, question.limit)

    def _limit(self, task_id: str, limit: InputLimit | None) -> str:
        if limit is None:
            return ""
        if limit.failure is None:
            return f"{limit.ms} cancel"
        # -32603: the server could not finish what it accepted, as for all that the sweeper fails.
        error = dumps({"code": -32603, "message": clean(limit.failure)}, "The error")
        return f"{limit.ms} fail {self.seal.seal(task_id, 'error', error)}\n{self._message(task_id, limit.failure)}"


def _text(number: int | None) -> str:
    return "" if number is None else str(number)
