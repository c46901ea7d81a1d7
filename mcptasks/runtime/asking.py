"""How long a question may stay open: the tool's policy, or what the tool says around the question."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal

from mcptasks.errors import ConfigurationError
from mcptasks.policy import OnInputTimeout, Policy
from mcptasks.times import Duration, InputLimit, duration_ms

_said: Final[ContextVar[tuple[int, OnInputTimeout | None] | None]] = ContextVar("mcptasks_input_timeout", default=None)


@contextmanager
def input_timeout(
    limit: Duration, *, then: OnInputTimeout | Literal["fail", "cancel"] | None = None
) -> Generator[None]:
    """What the code inside asks stays open for so long, instead of the policy's `input_timeout`.

    `then` is the policy's `on_input_timeout`, for these questions. It counts from the first time that the question is
    asked, by the store's clock, and is never moved by a later run; a limit beyond the task's ttl never comes. Questions
    that a tool returns (resolvers, guards) have the policy's limit. Outside a task nothing is limited.

    Raises:
        ConfigurationError: it is no duration, or `then` is neither "fail" nor "cancel".
    """
    try:
        said = duration_ms(limit), None if then is None else OnInputTimeout(then)
    except ValueError:
        raise ConfigurationError(f"then={then!r}: choose fail or cancel") from None
    reset = _said.set(said)
    try:
        yield
    finally:
        _said.reset(reset)


def limit_of(policy: Policy, method: str, label: str) -> InputLimit | None:
    """The limit of a question that is asked here, now; `label` names it to people."""
    ms, then = _said.get() or (policy.input_timeout_ms, None)
    if ms is None:
        return None
    # Only an elicitation can be answered with a cancel.
    if (then or policy.on_input_timeout) is OnInputTimeout.CANCEL and method == "elicitation/create":
        return InputLimit(ms=ms, failure=None)
    return InputLimit(ms=ms, failure=f"Nobody answered {label} within {ms / 1000:g} s, its input timeout")
