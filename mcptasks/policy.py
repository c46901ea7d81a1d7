"""What a tool's author decides once, with `@tasks.durable(...)`: when a call becomes a task, and its limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal, Self, TypeAlias, TypedDict, Unpack

from mcptasks.errors import ConfigurationError
from mcptasks.model import Undeclared
from mcptasks.times import Duration, duration_ms

#: After a time limit or a cancel with no `cancel_grace` of its own, a run gets this long to clean up.
DEFAULT_GRACE_MS: Final = 5_000

#: The run itself ends at its limit; only one that cannot is still there so much later.
KILL_MARGIN_MS: Final = 10_000

_POLICY_ATTRIBUTE: Final = "__mcptasks_policy__"


class Mode(StrEnum):
    """When a call of the tool becomes a task."""

    #: Never: the call runs in the server process as without mcptasks.
    FORBIDDEN = "forbidden"
    #: When the client declared the tasks extension; for one that did not, `undeclared` says what happens.
    OPTIONAL = "optional"
    #: Always; a client that did not declare the extension is refused (-32021).
    REQUIRED = "required"


class OnInputTimeout(StrEnum):
    """What happens when nobody answers a question in time."""

    #: The task fails, with reason `input_timeout`.
    FAIL = "fail"
    #: The tool hears that the person cancelled.
    CANCEL = "cancel"


ModePicker: TypeAlias = Callable[[Any, str], Mode | str | Awaitable[Mode | str]]
"""Decides per call from (the call's params, the caller's owner string)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The durable policy of one tool. Durations are milliseconds; None is "as the settings say" or "no limit"."""

    mode: Mode | ModePicker = Mode.OPTIONAL
    #: Readable this long from creation, and as long again after the end.
    ttl_ms: int | None = None
    unlimited: bool = False
    queue: str | None = None
    #: Wall-clock limit of one run; waiting for a person does not count.
    time_limit_ms: int | None = None
    #: How long a run may go on without anything that moves; waiting for a person does not count.
    idle_limit_ms: int | None = None
    #: After a cancel the run has this long before the task is settled without it. None: it may take its time.
    cancel_grace_ms: int | None = None
    #: How long a run that asked something keeps its worker, waiting for answers, before it parks; over all questions.
    hold_ms: int = 0
    #: Runs a task may lose to dying workers before it fails as `worker_lost`. 1: the first loss fails it.
    max_attempts: int = 3
    #: The exact delays of the retries a tool may ask for, in order.
    retry_ms: tuple[int, ...] = ()
    #: 0: none. Else questions asked by returning them are settled on the request itself, before the task exists: those
    #: of resolvers all, those of a guard in so many rounds.
    prelude: int = 0
    undeclared: Undeclared | None = None
    #: How long each question may stay open.
    input_timeout_ms: int | None = None
    on_input_timeout: OnInputTimeout = OnInputTimeout.FAIL

    @classmethod
    def recorded(
        cls,
        *,
        ttl_ms: int | None,
        queue: str,
        max_attempts: int,
        hard_limit_ms: int | None,
        retry_ms: tuple[int, ...],
    ) -> Self:
        """As much of the policy as a task's record keeps, which is what a new record is made of."""
        # Of the hard limit's parts the record has only their sum.
        time_limit_ms = None if hard_limit_ms is None else max(hard_limit_ms - KILL_MARGIN_MS, 0)
        return cls(
            ttl_ms=ttl_ms,
            unlimited=ttl_ms is None,
            queue=queue,
            time_limit_ms=time_limit_ms,
            cancel_grace_ms=0,
            max_attempts=max_attempts,
            retry_ms=retry_ms,
        )

    @property
    def grace_ms(self) -> int:
        """How long a run that hit one of its limits may clean up before its slot is taken from it."""
        return self.cancel_grace_ms if self.cancel_grace_ms is not None else DEFAULT_GRACE_MS

    @property
    def hard_limit_ms(self) -> int | None:
        """So long after its claim the run is over, whatever it does; a prefork child is killed. None: no limit."""
        if self.time_limit_ms is None:
            return None
        return self.time_limit_ms + self.grace_ms + self.hold_ms + KILL_MARGIN_MS


class PolicyOptions(TypedDict, total=False):
    """What `@tasks.durable(...)` takes."""

    mode: Mode | str | ModePicker
    """"optional" (a task when the client declared the extension; the default), "required", "forbidden", or a function
    of (call params, owner) that returns one of these per call."""
    ttl: Duration
    """How long the task stays readable, from its creation and again from its end. Default: the settings'."""
    unlimited: bool
    """The task is never removed by time."""
    queue: str
    """The Celery queue. Default: the settings'."""
    time_limit: Duration
    """Wall-clock limit of one run; waiting for a person does not count. Default: none."""
    idle_limit: Duration
    """How long a run may go on without progress; waiting for a person does not count. Progress is a `report_progress`
    with a higher number than this run has told before, the end of a step, and an answer; a status text, a log line or
    the worker's heartbeat is none. Default: none."""
    cancel_grace: Duration
    """How long a run may take to stop after a cancel before the task is settled without it (default: as long as it
    likes), and after its time limit or idle limit (default: 5 s)."""
    hold: Duration
    """How long a run that asked something keeps its worker for the answers, over all its questions, before it parks.
    Default: not at all."""
    max_attempts: int
    """Runs that may be lost to dying workers before the task fails as `worker_lost`. Default: 3."""
    on_worker_lost: Literal["rerun", "fail"]
    """"rerun" (within `max_attempts`; the default), or "fail" on the first loss: for what must never begin twice. A
    shutdown that does not wait for the tool fails it, too (reason `shutdown`)."""
    retry: Sequence[Duration]
    """Delays of the retries that the tool may ask for with `raise Retry(...)`, for instance [1, 5, 30] or
    `exponential(1, 5)`. Lost workers, cancels and ordinary errors do not use them up."""
    prelude: bool | int
    """Questions that the tool asks by returning them are settled on the request itself, before the task exists.
    Resolvers: in as many rounds as they take; nothing but them runs in the server process. A guard (its own body
    returns `InputRequiredResult`, and its annotation says so) runs there for this many rounds, True being one, and its
    task is made with the answers to the last; where it returns a result instead, that is the call's, without a task.
    Questions asked in line are always the task's. Default: none."""
    undeclared: Undeclared | Literal["wait", "inline", "refuse"]
    """A call from a client that did not declare the tasks extension. "wait": it runs on the fleet all the same; the
    call waits for its end, relays its progress, and puts its questions to the client as its protocol version can.
    "inline": it runs in the server process, as without mcptasks. "refuse": it is an error. For mode "optional".
    Default: as the settings say."""
    input_timeout: Duration
    """How long each question may stay open; time without a worker counts against nothing else but the ttl. By the
    store's clock, never early and at most a sweep late. `mcptasks.input_timeout` says it for single questions.
    Default: as long as the task lives."""
    on_input_timeout: OnInputTimeout | Literal["fail", "cancel"]
    """"fail": then the task fails, with reason `input_timeout` (the default). "cancel": an elicitation is answered as
    by a person who cancels (`{"action": "cancel"}`), and the tool goes on; sampling and roots have no such answer, so
    their tasks fail all the same."""


def make_policy(**options: Unpack[PolicyOptions]) -> Policy:
    """The policy these options mean.

    Raises:
        ConfigurationError: an option is unknown, makes no sense, or two contradict each other.
    """
    if unknown := options.keys() - PolicyOptions.__annotations__.keys():
        known = ", ".join(PolicyOptions.__annotations__)
        raise ConfigurationError(f"unknown option {', '.join(sorted(unknown))}; there are {known}")
    attempts, on_worker_lost = options.get("max_attempts", 3), options.get("on_worker_lost", "rerun")
    if attempts < 1:
        raise ConfigurationError("max_attempts must be at least 1")
    if on_worker_lost not in ("rerun", "fail"):
        raise ConfigurationError(f"on_worker_lost={on_worker_lost!r}: choose rerun or fail")
    prelude = int(options.get("prelude", 0))
    if prelude < 0:
        raise ConfigurationError("prelude must be True, False, or a number of rounds")
    time_limit_ms, idle_limit_ms = _optional_ms(options.get("time_limit")), _optional_ms(options.get("idle_limit"))
    if time_limit_ms is not None and idle_limit_ms is not None and time_limit_ms <= idle_limit_ms:
        raise ConfigurationError(
            f"idle_limit ({idle_limit_ms} ms) is no shorter than time_limit ({time_limit_ms} ms): it would never come"
        )
    if options.get("unlimited") and "ttl" in options:
        raise ConfigurationError("ttl and unlimited=True contradict each other; give one")
    return Policy(
        mode=_mode(options.get("mode", Mode.OPTIONAL)),
        ttl_ms=_optional_ms(options.get("ttl")),
        unlimited=options.get("unlimited", False),
        queue=options.get("queue"),
        time_limit_ms=time_limit_ms,
        idle_limit_ms=idle_limit_ms,
        cancel_grace_ms=_optional_ms(options.get("cancel_grace")),
        hold_ms=_optional_ms(options.get("hold")) or 0,
        max_attempts=1 if on_worker_lost == "fail" else attempts,
        retry_ms=tuple(duration_ms(delay) for delay in options.get("retry", ())),
        prelude=prelude,
        undeclared=_undeclared(options),
        input_timeout_ms=_optional_ms(options.get("input_timeout")),
        on_input_timeout=_on_input_timeout(options),
    )


def _mode(mode: Mode | str | ModePicker) -> Mode | ModePicker:
    if not isinstance(mode, str):
        return mode
    try:
        return Mode(mode)
    except ValueError:
        raise ConfigurationError(f"mode={mode!r}: choose forbidden, optional, required, or a function") from None


def _undeclared(options: PolicyOptions) -> Undeclared | None:
    if (choice := options.get("undeclared")) is None:
        return None
    if (mode := options.get("mode")) in (Mode.FORBIDDEN, Mode.REQUIRED):
        raise ConfigurationError(f'undeclared={choice!s} has no meaning for mode="{mode}"; it is for mode="optional"')
    try:
        return Undeclared(choice)
    except ValueError:
        raise ConfigurationError(f"undeclared={choice!r}: choose wait, inline or refuse") from None


def _on_input_timeout(options: PolicyOptions) -> OnInputTimeout:
    choice = options.get("on_input_timeout", OnInputTimeout.FAIL)
    try:
        return OnInputTimeout(choice)
    except ValueError:
        raise ConfigurationError(f"on_input_timeout={choice!r}: choose fail or cancel") from None


def _optional_ms(value: Duration | None) -> int | None:
    return None if value is None else duration_ms(value)


def check_ttl(policy: Policy, default_ttl_ms: int) -> None:
    """A task of this policy cannot expire while its one run may still go on, nor before a question's time is up.

    Raises:
        ConfigurationError: it could.
    """
    ttl_ms = policy.ttl_ms or default_ttl_ms
    if not policy.unlimited and policy.hard_limit_ms is not None and ttl_ms < policy.hard_limit_ms:
        raise ConfigurationError(
            f"ttl ({ttl_ms} ms) is shorter than time_limit with its grace ({policy.hard_limit_ms} ms): "
            "the task would expire while it may still run"
        )
    if not policy.unlimited and policy.idle_limit_ms is not None and ttl_ms <= policy.idle_limit_ms:
        raise ConfigurationError(
            f"ttl ({ttl_ms} ms) is no longer than idle_limit ({policy.idle_limit_ms} ms): "
            "the task would expire before the limit comes"
        )
    if not policy.unlimited and policy.input_timeout_ms is not None and ttl_ms <= policy.input_timeout_ms:
        raise ConfigurationError(
            f"ttl ({ttl_ms} ms) is no longer than input_timeout ({policy.input_timeout_ms} ms): "
            "the task would expire before its question's time is up"
        )


def fixed(delay: Duration, times: int) -> list[float]:
    """The delays of `times` retries, `delay` apart, in seconds: what `retry=` takes."""
    return [duration_ms(delay) / 1000] * times


def exponential(first: Duration, times: int, *, factor: float = 2.0, longest: Duration = "1h") -> list[float]:
    """The delays of `times` retries, each `factor` times the one before, none over `longest`, in seconds."""
    cap, delays = duration_ms(longest) / 1000, list[float]()
    delay = duration_ms(first) / 1000
    for _ in range(times):
        delays.append(min(delay, cap))
        # Not `factor**n`, which overflows long after the cap is reached.
        delay *= factor
    return delays


def attach(fn: Callable[..., Any], policy: Policy) -> None:
    """The function carries the policy, also through `functools.wraps`.

    Raises:
        ConfigurationError: the callable takes no attributes (a bound method); decorate the function itself.
    """
    try:
        setattr(fn, _POLICY_ATTRIBUTE, policy)
    except AttributeError:
        raise ConfigurationError(f"{fn!r} cannot carry a policy; apply @tasks.durable() to a plain function") from None


def policy_of(fn: Callable[..., Any]) -> Policy | None:
    """The policy a tool's function carries, or None when it was never made durable."""
    found = getattr(fn, _POLICY_ATTRIBUTE, None)
    return found if isinstance(found, Policy) else None
