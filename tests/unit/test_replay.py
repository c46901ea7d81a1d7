"""A replay binds every question to its own answer, in whatever order the tool's branches ask this time."""

from __future__ import annotations

import random
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcptasks.model import Guard, Journal
from mcptasks.runtime.replay import Replay, digest
from tests.requirements import covers
from tests.support.properties import UNHURRIED

ASK = "elicitation/create"
PARAMS = st.dictionaries(st.text(), st.integers() | st.text() | st.none(), max_size=4)


def replay(answers: dict[str, Any] | None = None, *, guard: Guard | None = None, steps: Any = None) -> Replay:
    """A pass over this journal."""
    return Replay(Journal(answers=answers or {}, steps=steps or {}, guard=guard))


# ------------------------------------------------------------------------------------------------ keys


@covers("P40", "C08")
def test_the_same_question_asked_three_times_has_three_keys() -> None:
    """SEP-2663: a key is never reused in a task's life; a late answer to the first must not satisfy the second."""
    one = replay()
    keys = [one.mint(ASK, {"message": "Again?"}).key for _ in range(3)]
    assert len(set(keys)) == 3
    assert [key.rsplit("-", 1)[1] for key in keys] == ["1", "2", "3"]


def test_branches_that_ask_in_another_order_get_the_same_keys() -> None:
    """E03: answers bind by what is asked and how often, so a shuffle is harmless."""
    asked = [{"message": "A"}, {"message": "B"}, {"message": "A"}, {"message": "C"}]
    key_sets = []
    for order in permutations(asked):
        one = replay()
        key_sets.append(sorted(one.mint(ASK, params).key for params in order))
    assert all(keys == key_sets[0] for keys in key_sets)
    assert len(set(key_sets[0])) == 4


@UNHURRIED
@given(PARAMS, st.randoms(use_true_random=False))
def test_the_digest_does_not_see_the_order_of_members_or_the_requests_metadata(
    params: dict[str, Any], chance: random.Random
) -> None:
    """Progress tokens differ from pass to pass; the question is the same."""
    names = [name for name in params if name != "_meta"]
    chance.shuffle(names)
    shuffled = {name: params[name] for name in names}
    assert digest(ASK, {**params, "_meta": {"progressToken": 1}}) == digest(ASK, shuffled)


@UNHURRIED
@given(st.lists(st.tuples(st.sampled_from([ASK, "roots/list"]), PARAMS), unique_by=repr, max_size=20))
def test_different_questions_have_different_digests(questions: list[tuple[str, dict[str, Any]]]) -> None:
    """N8: the store tells by it whether a key is asked with another text."""
    plain = [(method, {k: v for k, v in params.items() if k != "_meta"}) for method, params in questions]
    distinct = {repr((method, sorted(params.items()))) for method, params in plain}
    assert len({digest(method, params) for method, params in plain}) == len(distinct)


@covers("F03")
def test_a_question_with_half_an_emoji_has_a_key() -> None:
    """F03: in messages and in names."""
    assert digest(ASK, {"\ud83d": "\udcff"}) != digest(ASK, {"\ud83d": "?"})


@pytest.mark.parametrize(
    ("method", "kind"), [(ASK, "elicitation"), ("sampling/createMessage", "sampling"), ("roots/list", "roots")]
)
def test_a_key_says_what_kind_of_question_it_is(method: str, kind: str) -> None:
    """For people who read records."""
    assert replay().mint(method, {}).key.startswith(f"{kind}-")


# ------------------------------------------------------------------------------------------------ answers


@covers("N8")
def test_a_recorded_answer_is_taken_and_an_unknown_one_is_not_there() -> None:
    """N8: replay returns the stored answer."""
    first = replay()
    key = first.mint(ASK, {"message": "A"}).key
    again = replay({key: {"action": "decline"}})
    assert again.mint(ASK, {"message": "A"}).key == key
    assert again.take(key) == {"action": "decline"}
    assert again.take("another") is None


def test_a_pass_replays_until_every_recorded_answer_was_taken() -> None:
    """Meanwhile its progress is muted: an earlier pass has told it."""
    one = replay({"a": 1, "b": 2})
    assert one.replaying
    one.take("b")
    assert one.replaying
    one.take("a")
    assert not one.replaying
    assert not replay().replaying


def test_answers_to_returned_questions_are_not_waited_for() -> None:
    """They reach the tool through its parameters, not through a call: else such a tool would stay muted for ever."""
    guard = Guard(round=1, request_state=None, keys={"region": "r1-x-1"})
    assert not replay({"r1-x-1": 1}, guard=guard).replaying
    assert replay({"r1-x-1": 1, "elicitation-y-1": 2}, guard=guard).replaying


def test_answers_that_came_during_a_hold_are_known_and_are_no_replay() -> None:
    """The run goes on live: what it says now was not said before."""
    one = replay()
    key = one.mint(ASK, {}).key
    one.extend(Journal(answers={key: {"action": "accept"}}))
    assert not one.replaying
    assert one.take(key) == {"action": "accept"}


# ------------------------------------------------------------------------------------------------ returned questions


@covers("P40")
def test_a_tool_that_reuses_its_own_keys_gets_new_ones_on_the_wire_each_round() -> None:
    """A guard asks under "region" twice; the wire may not."""
    first = replay().next_round("s1", {"region": (ASK, {"message": "Where?"})})
    second = replay(guard=first).next_round("s2", {"region": (ASK, {"message": "Where?"})})
    assert (first.round, second.round) == (1, 2)
    assert (first.request_state, second.request_state) == ("s1", "s2")
    assert first.keys.keys() == second.keys.keys() == {"region"}
    assert first.keys["region"] != second.keys["region"]


def test_equal_questions_of_one_round_have_keys_of_their_own() -> None:
    """Two resolvers may ask the same."""
    asked = {"a": (ASK, {"message": "?"}), "b": (ASK, {"message": "?"})}
    assert len(set(replay().next_round(None, asked).keys.values())) == 2


def test_the_first_round_after_a_prelude_does_not_repeat_its_keys() -> None:
    """Questions settled on the request itself were round nought."""
    guard = Guard(round=0, request_state=None, keys={"a": "r0-1"})
    assert replay(guard=guard).next_round(None, {"a": (ASK, {})}).keys["a"].startswith("r1-")


# ------------------------------------------------------------------------------------------------ steps


def test_a_step_that_is_used_twice_in_a_pass_is_two_steps() -> None:
    """In a loop, say; and the same two in every pass."""
    one, other = replay(), replay()
    assert [one.step_name("charge"), one.step_name("mail"), one.step_name("charge")] == [
        "charge#1",
        "mail#1",
        "charge#2",
    ]
    assert other.step_name("charge") == "charge#1"
