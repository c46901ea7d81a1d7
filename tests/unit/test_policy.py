"""What a tool's author decides once: options are checked when they are written, not when they bite."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from mcptasks.errors import ConfigurationError
from mcptasks.model import Undeclared
from mcptasks.policy import KILL_MARGIN_MS, Mode, Policy, attach, check_ttl, exponential, fixed, make_policy, policy_of
from mcptasks.runtime.asking import input_timeout, limit_of
from mcptasks.times import InputLimit
from tests.requirements import covers


def test_durations_become_milliseconds_and_absent_ones_no_limit() -> None:
    """None is "as the settings say" or "no limit", never nought."""
    policy = make_policy(ttl="24h", time_limit="15m", cancel_grace="10s", hold=2.5, queue="reports")
    assert (policy.ttl_ms, policy.time_limit_ms, policy.cancel_grace_ms, policy.hold_ms, policy.queue) == (
        86_400_000,
        900_000,
        10_000,
        2_500,
        "reports",
    )
    assert make_policy() == Policy()
    assert (Policy().ttl_ms, Policy().time_limit_ms, Policy().cancel_grace_ms, Policy().hold_ms) == (
        None,
        None,
        None,
        0,
    )


@covers("N1")
@pytest.mark.parametrize("mode", ["forbidden", "optional", "required"])
def test_a_mode_may_be_written_as_text(mode: str) -> None:
    """N1: never, when the client can, always."""
    assert make_policy(mode=mode).mode is Mode(mode)


@covers("N1")
def test_a_mode_may_be_a_function_of_the_call() -> None:
    """N1: it is kept as it is, and called per call."""

    def pick(params: Any, owner: str) -> Mode:
        return Mode.REQUIRED if owner else Mode.FORBIDDEN

    assert make_policy(mode=pick).mode is pick


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "always"}, "mode='always': choose forbidden, optional, required, or a function"),
        ({"max_attempts": 0}, "max_attempts must be at least 1"),
        ({"on_worker_lost": "ignore"}, "on_worker_lost='ignore': choose rerun or fail"),
        ({"retry": ["1s", "later"]}, "'later' is not a duration"),
        ({"ttl": "1h", "unlimited": True}, "ttl and unlimited=True contradict each other"),
        ({"time_limit": "soon"}, "'soon' is not a duration"),
        ({"hold": 0}, "0 is not a positive duration"),
        ({"ttl": -1}, "-1 is not a positive duration"),
        ({"on_input_timeout": "ignore"}, "on_input_timeout='ignore': choose fail or cancel"),
        ({"input_timeout": "soon"}, "'soon' is not a duration"),
        ({"prelude": -1}, "prelude must be True, False, or a number of rounds"),
        ({"undeclared": "perhaps"}, "choose wait, inline or refuse"),
        ({"undeclared": "wait", "mode": "required"}, 'undeclared=wait has no meaning for mode="required"'),
        ({"undeclared": "inline", "mode": "forbidden"}, 'undeclared=inline has no meaning for mode="forbidden"'),
    ],
    ids=str,
)
def test_an_option_that_makes_no_sense_is_refused_with_the_fix(options: dict[str, Any], says: str) -> None:
    """At import of the server, where the author sees it."""
    with pytest.raises(ConfigurationError, match=says):
        make_policy(**options)


def test_a_tool_that_may_not_run_twice_fails_with_its_first_lost_worker() -> None:
    """W3: by policy, run again within the attempt limit, or fail."""
    assert make_policy(on_worker_lost="fail", max_attempts=5).max_attempts == 1
    assert make_policy(on_worker_lost="rerun", max_attempts=5).max_attempts == 5


def test_retries_are_an_exact_list_however_they_are_written() -> None:
    """N4: helpers for fixed and exponential delays expand to the same list."""
    assert make_policy(retry=[1, "5s", 0.5]).retry_ms == (1_000, 5_000, 500)
    assert make_policy(retry=fixed("2s", 3)).retry_ms == (2_000, 2_000, 2_000)
    assert make_policy(retry=exponential("1s", 5, longest="10s")).retry_ms == (1_000, 2_000, 4_000, 8_000, 10_000)
    assert make_policy(retry=exponential("100ms", 3, factor=10)).retry_ms == (100, 1_000, 10_000)
    assert make_policy(retry=fixed("1s", 0)).retry_ms == ()


def test_what_becomes_of_a_client_that_knows_no_tasks_is_the_operators_word_unless_the_author_says() -> None:
    """None is "as the settings say"."""
    assert make_policy().undeclared is None
    assert make_policy(undeclared="inline").undeclared is Undeclared.INLINE
    assert make_policy(undeclared=Undeclared.REFUSE, mode="optional").undeclared is Undeclared.REFUSE
    assert make_policy(undeclared="wait", mode=lambda params, owner: "required").undeclared is Undeclared.WAIT


@covers("P21")
def test_a_prelude_is_a_number_of_rounds() -> None:
    """True is one: what a guard asks in its first round."""
    assert [make_policy(prelude=rounds).prelude for rounds in (False, True, 3)] == [0, 1, 3]


@covers("W4", "C13")
def test_an_idle_limit_is_shorter_than_what_ends_the_task_anyway() -> None:
    """Else it would never come, and its author believes that it does."""
    assert make_policy(idle_limit="1m", time_limit="1h").idle_limit_ms == 60_000
    with pytest.raises(ConfigurationError, match=r"idle_limit \(3600000 ms\) is no shorter than time_limit"):
        make_policy(idle_limit="1h", time_limit="1h")
    check_ttl(Policy(idle_limit_ms=59_999), 60_000)
    check_ttl(Policy(idle_limit_ms=60_000, unlimited=True), 60_000)
    with pytest.raises(ConfigurationError, match="would expire before the limit comes"):
        check_ttl(Policy(idle_limit_ms=60_000), 60_000)


@covers("W4")
@pytest.mark.parametrize(
    ("policy", "fits"),
    [
        (Policy(input_timeout_ms=59_999), True),
        (Policy(input_timeout_ms=60_000), False),
        (Policy(input_timeout_ms=60_000, ttl_ms=60_001), True),
        (Policy(input_timeout_ms=60_000, unlimited=True), True),
    ],
)
def test_a_task_may_not_expire_before_a_questions_time_is_up(policy: Policy, fits: bool) -> None:
    """Else the author's `input_timeout`, and what is to happen then, would never come."""
    if fits:
        check_ttl(policy, 60_000)
        return
    with pytest.raises(ConfigurationError, match="would expire before its question's time is up"):
        check_ttl(policy, 60_000)


def test_the_time_of_a_question_is_the_policys_unless_the_tool_says() -> None:
    """And only an elicitation can be answered with a cancel."""
    policy = make_policy(ttl="7d", input_timeout="2d", on_input_timeout="cancel")
    assert limit_of(Policy(), "elicitation/create", "it") is None
    assert limit_of(policy, "elicitation/create", "it") == InputLimit(ms=2 * 86_400_000, failure=None)
    failure = "Nobody answered it within 172800 s, its input timeout"
    assert limit_of(policy, "roots/list", "it") == InputLimit(ms=2 * 86_400_000, failure=failure)
    with input_timeout("1s", then="fail"), input_timeout(2):
        assert limit_of(policy, "elicitation/create", "it") == InputLimit(ms=2_000, failure=None)
    assert limit_of(policy, "elicitation/create", "it") == InputLimit(ms=2 * 86_400_000, failure=None)
    bad: Any = "ignore"
    with pytest.raises(ConfigurationError, match="choose fail or cancel"), input_timeout("1s", then=bad):
        pass


def test_the_hard_limit_leaves_room_for_the_limit_its_grace_and_the_hold() -> None:
    """The run ends by itself; only one that cannot is killed so much later."""
    assert Policy().hard_limit_ms is None
    assert Policy(hold_ms=9).hard_limit_ms is None
    assert Policy(time_limit_ms=1_000).hard_limit_ms == 1_000 + 5_000 + KILL_MARGIN_MS
    assert Policy(time_limit_ms=1_000, cancel_grace_ms=200, hold_ms=30).hard_limit_ms == 1_230 + KILL_MARGIN_MS


@covers("C13")
@pytest.mark.parametrize(
    ("policy", "fits"),
    [
        (Policy(time_limit_ms=45_000, ttl_ms=60_000), True),
        (Policy(time_limit_ms=45_001, ttl_ms=60_000), False),
        (Policy(time_limit_ms=45_000), True),
        (Policy(time_limit_ms=86_400_000), False),
        (Policy(time_limit_ms=86_400_000, unlimited=True), True),
        (Policy(ttl_ms=1), True),
    ],
)
def test_a_task_may_not_expire_while_its_one_run_may_still_go_on(policy: Policy, fits: bool) -> None:
    """C13: a ttl below the tool's time limit is refused at registration."""
    if fits:
        check_ttl(policy, 60_000)
        return
    with pytest.raises(ConfigurationError, match="the task would expire while it may still run"):
        check_ttl(policy, 60_000)


def test_a_policy_is_found_on_its_function_and_through_wrappers() -> None:
    """Other people's decorators stand between ours and the tool."""
    policy = Policy(queue="q")

    def tool() -> None: ...

    attach(tool, policy)

    @functools.wraps(tool)
    def wrapped() -> None: ...

    assert (policy_of(tool), policy_of(wrapped), policy_of(print)) == (policy, policy, None)


def test_something_else_under_the_same_name_is_no_policy() -> None:
    """A mock or a foreign library may answer to any attribute."""

    class Anything:
        def __call__(self) -> None: ...

        def __getattr__(self, name: str) -> str:
            return name

    assert policy_of(Anything()) is None


def test_a_callable_that_cannot_carry_a_policy_is_told_what_to_decorate() -> None:
    """A bound method takes no attributes."""

    class Service:
        def tool(self) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"cannot carry a policy; apply @tasks\.durable\(\) to a plain function"
    ):
        attach(Service().tool, Policy())
