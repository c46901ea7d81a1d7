"""The life of a task in plain Python: what the store must hold and answer, said a second time and without Redis.

Written from the statuses and the store's docstrings. Where this and the Lua disagree, one of them is wrong. Moments are
windows (earliest, latest), because the store's clock is read by the store alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from mcptasks.model import Reason, Status
from mcptasks.store.callers import EXPIRY_GRACE_MS

Window: TypeAlias = tuple[float, float]
Answer: TypeAlias = tuple[Any, ...]
"""What a transition answers: its word, and what comes with it. A message is (run, look, countdown in ms)."""

#: Where the indexes of what there is have a task: its place in the lists, and when it is to be forgotten.
LISTS: Final = ("active", "completed", "failed", "cancelled", "drops")
#: A moment that lies behind us, wherever "now" is.
PAST: Final[Window] = (1, 1)
#: Stands for the rest of a countdown, which nobody can foretell to the millisecond.
REST: Final = "the rest"
OWNER: Final = "ann"
#: Of every question.
METHOD: Final = "elicitation/create"

LIMIT: Final = 300_000
#: How long questions with a limit may stay open, and the message of the failure.
INPUT_LIMIT: Final = 700_000
TOO_LATE: Final = "Nobody answered"
#: A folder whose removal nobody has reported is handed out again.
DISCARD_AGAIN: Final = 600_000
EXPIRED: Final = "The task expired: its time to live ran out before it was done"
TIMED_OUT: Final = "The task ran into its time limit and its worker was lost"
WENT_DOWN: Final = "The worker went down before the tool was done, and it must not be begun twice"
GIVEN_UP: Final = "The worker process was lost {} times while it ran this task; it is given up"


def after(at: Window, ms: float) -> Window:
    """The moment so much later."""
    return at[0] + ms, at[1] + ms


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the settings and the tool's policy say."""

    lease_ms: int
    resend_ms: int
    countdowns_ms: tuple[int, ...]
    countdown_budget: int
    questions_max: int
    ttl_ms: int | None
    max_attempts: int
    hard_limit_ms: int | None
    retry_ms: tuple[int, ...]
    deferrals_ms: tuple[int, ...]
    artifacts_max: int
    artifacts_total_max: int


@dataclass(kw_only=True)
class Life:
    """One task. Each method is a transition of the same name; it returns what the store must answer."""

    terms: Terms
    born: Window
    status: Status = Status.QUEUED
    reason: Reason | None = None
    message: str | None = None
    #: The field and the JSON of a result or an error.
    payload: tuple[str, str] | None = None
    token: int = 0
    attempt: int = 0
    retries: int = 0
    #: How often in a row a worker could not run it.
    deferrals: int = 0
    resends: int = 0
    look: int = 0
    #: The next run is no new attempt.
    resume: bool = False
    #: Parked for the client, but its run keeps its worker.
    held: bool = False
    worker: str | None = None
    #: The worker that had it when it ended.
    ran: str | None = None
    #: What happened to it, as the store has it, without the moments.
    timeline: list[str] = field(default_factory=list[str])
    #: Why it is to be cancelled; None: it is not.
    why: str | None = None
    progressed: tuple[float, float] | None = None
    #: How fast; known while the run that said so works on.
    rate: float | None = None
    #: Open questions, and all that were ever asked: key -> text.
    open: dict[str, str] = field(default_factory=dict[str, str])
    asked: dict[str, str] = field(default_factory=dict[str, str])
    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    #: When an open question's time is up, and what happens then.
    limits: dict[str, tuple[Window, str]] = field(default_factory=dict[str, tuple[Window, str]])
    steps: dict[str, str] = field(default_factory=dict[str, str])
    #: When each timer is due, and the first of those that the task waits for.
    timers: dict[str, Window] = field(default_factory=dict[str, Window])
    wake: Window | None = None
    guarded: bool = False
    #: It has a folder for files, and these artifacts: name -> digest, size, file.
    reserved: bool = False
    files: dict[str, tuple[str, int, str]] = field(default_factory=dict[str, tuple[str, int, str]])
    #: Index -> when the task is due there.
    places: dict[str, Window] = field(default_factory=dict[str, Window])
    deadline: Window | None = None
    due: Window | None = None
    expired: bool = False
    #: When Redis removes its keys; None: never.
    dies: Window | None = None
    gone: bool = False
    #: Countdown messages of other tasks.
    others: int = 0
    #: The latest transition showed the client a difference.
    shown: bool = False

    def __post_init__(self) -> None:
        ttl = self.terms.ttl_ms
        self.places["unsent"] = after(self.born, self.terms.resend_ms)
        if ttl is not None:
            self.places["expiry"] = after(self.born, ttl)
            self.dies = after(self.born, 2 * ttl + EXPIRY_GRACE_MS)
        self._list("active")

    @property
    def has_worker(self) -> bool:
        """Some run may write."""
        return not self.gone and (self.status is Status.RUNNING or self.held)

    @property
    def active(self) -> bool:
        """It was admitted and has not ended."""
        return not self.gone and not self.status.terminal

    # -------------------------------------------------------------------------------------------- callers

    def answer(self, at: Window, owner: str, answers: Mapping[str, int]) -> Answer:
        if self.gone or owner != OWNER:
            return ("GONE",)
        out_of_time = {key for key, (due, _) in self.limits.items() if due == PAST}
        return self._take(at, "client", {key: answer for key, answer in answers.items() if key not in out_of_time})

    def _take(self, at: Window, by: str, answers: Mapping[str, Any]) -> Answer:
        hits = [key for key in answers if key in self.open]
        if not hits:
            return ("IGNORED",)
        self._note("answer", by, *sorted(hits))
        for key in hits:
            del self.open[key]
            self.limits.pop(key, None)
            self.answers[key] = answers[key]
        self.shown = True
        if self.open:
            return ("PARTIAL",)
        if self.held:
            self.status, self.held = Status.RUNNING, False
            return ("WOKEN",)
        if self.status is not Status.PARKED:
            return ("WOKEN",)
        self._enqueue(at)
        return "QUEUED", self._message()

    def cancel(self, at: Window, owner: str | None, why: str) -> Answer:
        if self.gone or owner not in (None, OWNER):
            return ("GONE",)
        if self.status.terminal:
            return ("FINISHED",)
        by = "operator" if owner is None else "client"
        if self.has_worker:
            if self.why is None:
                self.why = why
                self._note("cancel", by, why)
            return ("REQUESTED",)
        self._note("cancel", by, why)
        self._settle(at, Status.CANCELLED, Reason.CANCELLED, why)
        return ("CANCELLED",)

    # -------------------------------------------------------------------------------------------- workers

    def claim(self, at: Window, run: int, look: int, worker: str) -> Answer:
        if self.gone:
            self._leave("unsent", "countdowns")
            return ("GONE",)
        if self.status.terminal:
            return "TERMINAL", self.status
        if self.has_worker:
            return self._claimed() if worker == self.worker else ("HELD", self.worker)
        if run != self.token + 1:
            return "STALE", str(self.token)
        if self.status is Status.PARKED and self.wake != PAST:
            if look == 0 or look != self.look:
                return "STALE", str(self.token)
            return "PARKED", self._countdown(at, look + 1)
        due = {Status.RETRYING: self.due, Status.SLEEPING: self.wake}.get(self.status)
        if due is not None and due != PAST:
            near = due[0] - at[0] <= self._longest_countdown
            return ("EARLY", (run, 0, REST)) if near else ("EARLY", str(self.status))
        if not self.resume:
            self.attempt += 1
        if self.token or self.timeline:
            self._note("claim", run, self.attempt, worker)
        limit = self.terms.hard_limit_ms
        self.status, self.token, self.worker, self.resume, self.wake = Status.RUNNING, run, worker, False, None
        self.deadline = None if limit is None else after(at, limit)
        self._leave("unsent", "countdowns")
        self.places["leases"] = after(at, self.terms.lease_ms)
        return self._claimed()

    def _claimed(self) -> Answer:
        number = None if self.progressed is None else self.progressed[0]
        given = dict(self.answers), dict(self.steps), self.guarded, number
        return "CLAIMED", self.token, self.attempt, self.worker, *given

    def renew(self, at: Window, token: int) -> Answer:
        if self._refusal(token):
            return ("LOST",)
        if self.status is not Status.RUNNING or self.deadline != PAST:
            self.places["leases"] = after(at, self.terms.lease_ms)
        running = "RUNNING" if self.status is Status.RUNNING else "WAITING"
        return (running if self.why is None else "CANCEL",)

    def progress(self, at: Window, token: int, message: str, done: float, total: float, rate: float | None) -> Answer:
        if no := self._refusal(token):
            return (no,)
        same = (self.message, self.progressed, self.rate) == (message, (done, total), rate)
        self.shown = not same
        if not same:
            self._note_progress(message, done, total)
        self.message, self.progressed, self.rate = message, (done, total), rate
        return ("SAME" if same else "SAVED",)

    def note(self, at: Window, token: int, text: str) -> Answer:
        if no := self._refusal(token):
            return (no,)
        self._note("note", text)
        return ("NOTED",)

    def ask(
        self, at: Window, token: int, asked: Sequence[tuple[str, str]], *, hold: bool, guard: bool, limit: str | None
    ) -> Answer:
        if no := self._refusal(token):
            return (no,)
        for key, text in asked:
            if self.asked.get(key, text) != text:
                return "MISMATCH", key
        fresh = {key: text for key, text in asked if key not in self.asked}
        count = len(self.open) + len(fresh)
        if count > self.terms.questions_max:
            return "TOO_MANY", str(count)
        if count and not hold and self._cancelled(at):
            return ("CANCELLED",)
        self.guarded |= guard
        self.asked |= fresh
        self.open |= fresh
        if limit is not None:
            due = after(at, INPUT_LIMIT)
            self.limits |= dict.fromkeys(fresh, (due, limit))
            known = self.places.get("expiry")
            if fresh and (known is None or due[0] < known[0]):
                self.places["expiry"] = due
        if not count:
            self.wake = None
            return ("ANSWERED",)
        if fresh:
            self._note("ask", *(f"{METHOD}={key}" for key in fresh))
        if not hold:
            self._note("park")
        self.status, self.shown = Status.PARKED, True
        if hold:
            self.held = True
            return ("HELD",)
        self._go_cold()
        return "PARKED", self._countdown(at, 1)

    def sleep(self, at: Window, token: int, timers: Sequence[tuple[str, int | None, int]], *, hold: bool) -> Answer:
        if no := self._refusal(token):
            return (no,)
        if not hold and self._cancelled(at):
            return ("CANCELLED",)
        for name, delay, moment in timers:
            self.timers.setdefault(name, (moment, moment) if delay is None else after(at, delay))
        dues = [self.timers[name] for name, _, _ in timers]
        first = min(due[0] for due in dues), min(due[1] for due in dues)
        if not hold and first == PAST:
            return ("DUE",)
        self._note("sleep")
        self.wake = first
        if hold:
            return ("SET",)
        if self.open:
            self._note("park")
            self._go_cold()
            return "PARKED", self._countdown(at, 1)
        self.shown = self.rate is not None
        self._let_go(Status.SLEEPING)
        self.resume, self.resends, self.deferrals = True, 0, 0
        return "SLEEPING", self._put_off(first, first[0] - at[0], REST)

    def park(self, at: Window, token: int) -> Answer:
        if no := self._refusal(token):
            return (no,)
        if self.status is Status.RUNNING:
            return ("ANSWERED",)
        if self._cancelled(at):
            return ("CANCELLED",)
        self._note("park")
        self._go_cold()
        return "PARKED", self._countdown(at, 1)

    def step(self, at: Window, token: int, name: str, value: str) -> Answer:
        if no := self._refusal(token):
            return no, value
        word = "KNOWN" if name in self.steps else "RECORDED"
        if word == "RECORDED":
            self._note("step", name)
        return word, self.steps.setdefault(name, value)

    def finish(
        self, at: Window, token: int, status: Status, reason: Reason, message: str, payload: tuple[str, str] | None
    ) -> Answer:
        if no := self._refusal(token):
            return (no,)
        self._settle(at, status, reason, message, payload)
        return ("FINISHED",)

    def retry(self, at: Window, token: int, message: str, error: str) -> Answer:
        if no := self._refusal(token):
            return (no,)
        if self._cancelled(at):
            return ("CANCELLED",)
        if self.held:
            self._note("park")
            self._go_cold()
            return ("COLD",)
        if self.retries == len(self.terms.retry_ms):
            self._settle(at, Status.FAILED, Reason.RETRIES_EXHAUSTED, message, ("error", error))
            return ("EXHAUSTED",)
        delay = self.terms.retry_ms[self.retries]
        self._note("retry", self.retries + 1, delay, message)
        self._let_go(Status.RETRYING)
        self.retries, self.due, self.message = self.retries + 1, after(at, delay), message
        self.resume, self.resends, self.shown = True, 0, True
        return "RETRYING", self._put_off(after(at, delay), delay, delay)

    def defer(self, at: Window, token: int, waiting: str, message: str, error: str) -> Answer:
        if no := self._refusal(token):
            return (no,)
        if self._cancelled(at):
            return ("CANCELLED",)
        if self.held:
            self._note("park")
            self._go_cold()
            return ("COLD",)
        if self.deferrals == len(self.terms.deferrals_ms):
            self._settle(at, Status.FAILED, Reason.FAILED, message, ("error", error))
            return ("EXHAUSTED",)
        delay = self.terms.deferrals_ms[self.deferrals]
        self._note("defer", self.deferrals + 1, delay, waiting)
        self._let_go(Status.RETRYING)
        self.deferrals, self.due, self.message = self.deferrals + 1, after(at, delay), waiting
        self.resume, self.resends, self.shown = True, 0, True
        self.places["unsent"] = after(at, delay)
        return "DEFERRED", str(delay)

    def release(self, at: Window, token: int) -> Answer:
        if no := self._refusal(token):
            return (no,)
        if self._cancelled(at):
            return ("CANCELLED",)
        if self.held:
            self._note("park")
            self._go_cold()
            return ("COLD",)
        if self.terms.max_attempts == 1:
            self._fail(at, Reason.SHUTDOWN, WENT_DOWN)
            return ("FAILED",)
        self._note("release")
        self._enqueue(at)
        self.resume = True
        return "RELEASED", self._message()

    # -------------------------------------------------------------------------------------------- files

    def reserve(self, at: Window, token: int) -> Answer:
        if no := self._refusal(token):
            return (no,)
        self.reserved = True
        self._keep_files()
        return ("RESERVED",)

    def artifact(self, at: Window, token: int, name: str, digest: str, size: int, file: str) -> Answer:
        if no := self._refusal(token):
            return no, ""
        known, _, old = self.files.get(name, ("", 0, ""))
        if known == digest:
            return "KNOWN", old
        others = [size for each, (_, size, _) in self.files.items() if each != name]
        if len(others) == self.terms.artifacts_max:
            return "TOO_MANY", str(len(others) + 1)
        if sum(others) + size > self.terms.artifacts_total_max:
            return "TOO_LARGE", str(sum(others) + size)
        self._note("artifact", size, name)
        self.files[name] = digest, size, file
        return "RECORDED", old

    def discard(self, at: Window, done: bool) -> Answer:
        """`done`: somebody says that its files are removed."""
        if done:
            self._leave("artifacts")
        if self.places.get("artifacts") != PAST:
            return "DISCARD", False
        if self.gone:
            self.places["artifacts"] = after(at, DISCARD_AGAIN)
            return "DISCARD", True
        self._keep_files()
        return "DISCARD", False

    def _keep_files(self) -> None:
        self.places["artifacts"] = self.dies or (9e15, 9e15)

    # -------------------------------------------------------------------------------------------- upkeep

    def sweep(self) -> bool:
        """It is overdue in some index."""
        return PAST in (self.places.get(index) for index in ("leases", "expiry", "unsent"))

    def reap(self, at: Window) -> Answer:
        if not self.active:
            self._leave("unsent", "leases", "expiry", "countdowns")
            return ("NOTHING",)
        if self.expired:
            return self._fail(at, Reason.EXPIRED, EXPIRED)
        lost = self.has_worker and self.places["leases"] == PAST
        if not lost and self.places.get("expiry") == PAST and (answer := self._reap_questions(at)):
            return answer
        if self.has_worker:
            return self._reap_run(at)
        if self.places.get("unsent") != PAST:
            return ("NOTHING",)
        self.resends += 1
        self.places["unsent"] = after(at, min(self.terms.resend_ms * 2**self.resends, LIMIT))
        return "RESEND" if self.status is Status.QUEUED else "DUE", self._message()

    def _reap_questions(self, at: Window) -> Answer | None:
        late = {key: what for key, (due, what) in self.limits.items() if due == PAST}
        if late and self._cancelled(at):
            return ("CANCELLED",)
        if "fail" in late.values():
            return self._fail(at, Reason.INPUT_TIMEOUT, TOO_LATE)
        ttl = self.terms.ttl_ms
        moments = [due for key, (due, _) in self.limits.items() if key not in late]
        moments += [] if ttl is None else [after(self.born, ttl)]
        self._leave("expiry")
        if moments:
            self.places["expiry"] = min(moments)
        return self._take(at, "timeout", {key: {"action": "cancel"} for key in late}) if late else None

    def _reap_run(self, at: Window) -> Answer:
        if self.places["leases"] != PAST:
            return ("NOTHING",)
        if self._cancelled(at):
            return ("CANCELLED",)
        if self.held:
            self._note("lost", self.token, self.worker)
            self._go_cold()
            self.token += 1
            return ("COLD",)
        if self.deadline == PAST:
            return self._fail(at, Reason.WALL_TIMEOUT, TIMED_OUT)
        if self.attempt >= self.terms.max_attempts:
            return self._fail(at, Reason.WORKER_LOST, GIVEN_UP.format(self.attempt))
        self._note("lost", self.token, self.worker)
        self._enqueue(at)
        self.resume = False
        return "LOST", self._message()

    # -------------------------------------------------------------------------------------------- inside

    def _refusal(self, token: int) -> str | None:
        if self.gone:
            return "GONE"
        if self.status.terminal:
            return "TERMINAL"
        return None if self.has_worker and token == self.token else "STALE"

    def _note(self, *parts: object) -> None:
        if not self.timeline and self.token:
            # The record alone told of it until now.
            self.timeline.append(f"claim {self.token} {self.attempt} {self.worker}")
        self.timeline.append(" ".join(map(str, parts)))

    def _note_progress(self, message: str, done: float, total: float) -> None:
        what, _, rest = self.timeline[-1].partition(" ") if self.timeline else ("", "", "")
        if what != "progress":
            return self._note("progress", 1, done, done, total, message)
        count, first, _ = rest.split(" ", 2)
        self.timeline[-1] = f"progress {int(count) + 1} {first} {done} {total} {message}"
        return None

    def _message(self) -> tuple[int, int, int]:
        return self.token + 1, 0, 0

    def _leave(self, *indexes: str) -> None:
        for index in indexes:
            self.places.pop(index, None)

    def _let_go(self, status: Status) -> None:
        self.status, self.held, self.worker, self.deadline, self.rate = status, False, None, None, None
        self._leave("leases")

    def _put_off(self, due: Window, delay: float, countdown: Any) -> tuple[int, int, Any] | None:
        if delay > self._longest_countdown or self.others >= self.terms.countdown_budget:
            self.places["unsent"] = due
            return None
        self.places["countdowns"] = due
        self.places["unsent"] = after(due, self.terms.resend_ms)
        return self.token + 1, 0, countdown

    @property
    def _longest_countdown(self) -> int:
        return max(self.terms.countdowns_ms, default=0)

    def _enqueue(self, at: Window) -> None:
        self.shown = self.shown or self.rate is not None
        self._let_go(Status.QUEUED)
        self.wake = None
        self.resends = 0
        self._leave("countdowns")
        self.places["unsent"] = after(at, self.terms.resend_ms)

    def _go_cold(self) -> None:
        self._let_go(Status.PARKED)
        self.resume, self.look, self.deferrals = True, 0, 0
        if self.wake is not None:
            self.places["unsent"] = self.wake

    def _countdown(self, at: Window, look: int) -> tuple[int, int, int] | None:
        self._leave("countdowns")
        if look > len(self.terms.countdowns_ms) or self.others >= self.terms.countdown_budget:
            self.look = 0
            return None
        delay = self.terms.countdowns_ms[look - 1]
        self.look = look
        self.places["countdowns"] = after(at, delay)
        return self.token + 1, look, delay

    def _cancelled(self, at: Window) -> bool:
        """Whoever lets go of a task that is to be cancelled carries that out."""
        if self.why is not None:
            self._settle(at, Status.CANCELLED, Reason.CANCELLED, self.why)
        return self.why is not None

    def _fail(self, at: Window, reason: Reason, text: str) -> Answer:
        self._settle(at, Status.FAILED, reason, text, ("error", f'{{"code":-32603,"message":"{text}"}}'))
        return "FAILED", reason

    def _settle(
        self, at: Window, status: Status, reason: Reason, message: str, payload: tuple[str, str] | None = None
    ) -> None:
        self.ran = self.worker
        self._let_go(status)
        self.wake = None
        self.reason, self.payload, self.resume, self.shown, self.deferrals = reason, payload, False, True, 0
        # Whoever cancelled said why, and that is better than what the run says.
        self.message = self.why if status is Status.CANCELLED and self.why else message or self.message
        self.open.clear()
        self.limits.clear()
        self.places.clear()
        self.due = None
        self.dies = None if self.terms.ttl_ms is None else after(at, self.terms.ttl_ms)
        self._list(str(status))
        if self.reserved:
            self._keep_files()

    def _list(self, where: str) -> None:
        self.places[where] = self.born
        self.places["drops"] = self.dies or (9e15, 9e15)

    def forget(self) -> None:
        """Everybody who asks for lists clears them of what Redis has dropped."""
        if self.gone:
            self._leave(*LISTS)
