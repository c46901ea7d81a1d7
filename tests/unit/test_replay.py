"""A replay binds every question to its own answer, in whatever order the tool's branches ask this time."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcptasks.errors import ReplayMismatch
from mcptasks.model import Guard, Journal
from mcptasks.runtime.lanes import Lane, lane
from mcptasks.runtime.replay import Replay
from tests.requirements import covers

ASK = "elicitation/create"


class Pass:
    """One pass over a tool, whose calls come from beside its lanes unless the test opens one."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.replay = Replay(journal or Journal())
        self.lane = Lane("", None)
        self.asked: dict[str, str] = {}
        self.steps: dict[str, dict[str, Any]] = {}

    def ask(self, message: str, lane: Lane | None = None, method: str = ASK) -> str:
        """The key of that question."""
        question = self.replay.question(lane or self.lane, method, {"message": message})
        self.asked[question.key] = self.replay.note(question)
        return question.key

    def step(self, key: str, lane: Lane | None = None) -> str:
        """The name of that step."""
        call = self.replay.step(lane or self.lane, key)
        self.steps[call.name] = {"at": str(call.place), "result": None}
        return call.name

    def journal(self, *, guard: Guard | None = None) -> Journal:
        """What the store has after this pass, every question answered."""
        before = self.replay.journal
        asked = {**before.asked, **self.asked}
        return Journal(
            asked=asked,
            answers={key: {"action": "accept"} for key in asked},
            steps={**before.steps, **self.steps},
            guard=guard or before.guard,
        )


# ------------------------------------------------------------------------------------------------ keys


@covers("P40", "C08")
def test_the_same_question_asked_three_times_has_three_keys() -> None:
    """SEP-2663: a key is never reused in a task's life; a late answer to the first must not satisfy the second."""
    one = Pass()
    keys = [one.ask("Again?") for _ in range(3)]
    assert len(set(keys)) == 3
    assert [key.rsplit("-", 1)[1] for key in keys] == ["1", "2", "3"]


def test_branches_that_ask_in_another_order_get_the_same_keys() -> None:
    """E03: answers bind by what is asked and how often, so a shuffle is harmless."""
    key_sets = []
    for order in permutations("ABAC"):
        one = Pass()
        key_sets.append(sorted(one.ask(text) for text in order))
    assert all(keys == key_sets[0] for keys in key_sets)
    assert len(set(key_sets[0])) == 4


@pytest.mark.parametrize(
    ("method", "kind"), [(ASK, "elicitation"), ("sampling/createMessage", "sampling"), ("roots/list", "roots")]
)
def test_a_key_says_what_kind_of_question_it_is(method: str, kind: str) -> None:
    """For people who read records."""
    assert Pass().ask("?", method=method).startswith(f"{kind}-")


# ------------------------------------------------------------------------------------------------ answers


@covers("N8")
def test_a_recorded_answer_is_taken_and_an_unknown_one_is_not_there() -> None:
    """N8: replay returns the stored answer."""
    first = Pass()
    key = first.ask("A")
    again = Pass(first.journal())
    assert again.ask("A") == key
    assert again.replay.take(key) == {"action": "accept"}
    assert again.replay.take("another") is None


def test_a_pass_replays_until_everything_recorded_has_come_again() -> None:
    """Meanwhile its progress is muted: an earlier pass has told it."""
    first = Pass()
    first.ask("A")
    first.step("b")
    one = Pass(first.journal())
    assert one.replay.replaying
    one.step("b")
    assert one.replay.replaying
    one.ask("A")
    assert not one.replay.replaying
    assert not Pass().replay.replaying


def test_what_another_round_of_a_guard_tool_did_is_not_waited_for() -> None:
    """It takes another way each time: else such a tool would stay muted for ever, or fail."""
    first = Pass()
    first.step("in round nought")
    guard = Guard(round=1, request_state=None, keys={"region": "r1-x-1"})
    second = Pass(first.journal(guard=guard))
    assert not second.replay.replaying
    second.step("in round one")
    assert second.replay.missing == ""
    third = Pass(second.journal())
    assert third.replay.missing == "step 'in round one'"
    assert third.step("in round nought") == "in round nought#1"


def test_answers_that_came_during_a_hold_are_known_and_are_no_replay() -> None:
    """The run goes on live: what it says now was not said before."""
    one = Pass()
    key = one.ask("?")
    one.replay.extend(one.journal())
    assert not one.replay.replaying
    assert one.replay.take(key) == {"action": "accept"}


# ------------------------------------------------------------------------------------------------ returned questions


@covers("P40")
def test_a_tool_that_reuses_its_own_keys_gets_new_ones_on_the_wire_each_round() -> None:
    """A guard asks under "region" twice; the wire may not."""
    first = Replay(Journal()).next_round("s1", {"region": (ASK, {"message": "Where?"})})
    second = Replay(Journal(guard=first)).next_round("s2", {"region": (ASK, {"message": "Where?"})})
    assert (first.round, second.round) == (1, 2)
    assert (first.request_state, second.request_state) == ("s1", "s2")
    assert first.keys.keys() == second.keys.keys() == {"region"}
    assert first.keys["region"] != second.keys["region"]


def test_equal_questions_of_one_round_have_keys_of_their_own() -> None:
    """Two resolvers may ask the same."""
    asked = {"a": (ASK, {"message": "?"}), "b": (ASK, {"message": "?"})}
    assert len(set(Replay(Journal()).next_round(None, asked).keys.values())) == 2


def test_the_first_round_after_a_prelude_does_not_repeat_its_keys() -> None:
    """Questions settled on the request itself were round nought."""
    guard = Guard(round=0, request_state=None, keys={"a": "r0-1"})
    assert Replay(Journal(guard=guard)).next_round(None, {"a": (ASK, {})}).keys["a"].startswith("r1-")


# ------------------------------------------------------------------------------------------------ steps


def test_a_step_that_is_used_twice_in_a_pass_is_two_steps() -> None:
    """In a loop, say; and the same two in every pass."""
    one, other = Pass(), Pass()
    assert [one.step("charge"), one.step("mail"), one.step("charge")] == ["charge#1", "mail#1", "charge#2"]
    assert other.step("charge") == "charge#1"


@given(st.lists(st.tuples(st.sampled_from(["", "g1.0", "g1.1.sab", "g1"]), st.text("@#1.gas", max_size=6)), max_size=6))
def test_no_two_steps_have_one_name_whatever_their_keys(uses: list[tuple[str, str]]) -> None:
    """Keys come from tools, and may look like anything."""
    one = Pass()
    lanes = {path: Lane(path, None) for path, _ in uses}
    names = [one.step(key, lanes[path]) for path, key in uses]
    assert len(set(names)) == len(names)


# ------------------------------------------------------------------------------------------------ another tool


@pytest.mark.anyio
@covers("E03")
async def test_a_new_call_where_the_record_has_another_one_names_the_two() -> None:
    """E03: at once, before an effect is repeated or a person is asked again; not a swapped answer, and no loop."""
    first = Pass()
    with lane("") as body:
        first.step("reserve", body)
        first.ask("Order 3 pens?", body)
    second = Pass(first.journal())
    with lane("") as body:
        second.step("reserve", body)
        with pytest.raises(ReplayMismatch) as found:
            second.ask("Order 4 pens?", body)
    assert "came to the question 'Order 4 pens?' where an earlier run of it had the question 'Order 3 pens?'" in str(
        found.value
    )


@pytest.mark.anyio
async def test_questions_that_read_alike_are_told_apart_in_the_error() -> None:
    """The official examples put a new id into a page's URL in each run; nobody understands "X where X was"."""

    def ask(one: Pass, url: str, lane: Lane) -> None:
        question = one.replay.question(lane, ASK, {"message": "Pay 2.00?", "mode": "url", "url": url})
        one.asked[question.key] = one.replay.note(question)

    first = Pass()
    with lane("") as body:
        ask(first, "https://pay.example/?id=1", body)
    with lane("") as body, pytest.raises(ReplayMismatch, match="differ in the rest of the text, the form or the URL"):
        ask(Pass(first.journal()), "https://pay.example/?id=2", body)


@pytest.mark.anyio
@covers("E03")
async def test_what_is_recorded_may_come_in_any_order() -> None:
    """E03: everything binds by its key, so a shuffle of what is known is harmless."""
    first = Pass()
    with lane("") as body:
        names = [first.step("a", body), first.ask("B", body), first.step("c", body)]
    for order in permutations(zip(("step", "ask", "step"), "aBc", names, strict=True)):
        again = Pass(first.journal())
        with lane("") as body:
            for call, key, name in order:
                assert getattr(again, call)(key, body) == name
            assert again.step("d", body) == "d#1"
        assert again.replay.missing == ""


@pytest.mark.anyio
async def test_a_step_that_left_no_record_is_done_again_in_its_place() -> None:
    """Its error was not recorded; what came after it was."""
    first = Pass()
    with lane("") as body:
        body.place()  # the step that failed
        first.ask("Once more?", body)
    second = Pass(first.journal())
    with lane("") as body:
        assert second.step("charge", body) == "charge#1"
        assert second.replay.missing == "the question 'Once more?'"


@pytest.mark.anyio
async def test_a_call_from_beside_the_lane_says_nothing_about_its_order() -> None:
    """Branches of `asyncio.gather` come in any order, and some come late."""
    first = Pass()
    with lane("") as body:
        first.step("late")
        first.step("a", body)
    second = Pass(first.journal())
    with lane("") as body:
        second.step("a", body)
        second.step("b", body)
        second.ask("Something new, from another branch?")
    assert second.replay.missing == "step 'late'"


@pytest.mark.anyio
async def test_branches_that_do_the_same_thing_bind_to_their_own_records() -> None:
    """Whichever is faster this time."""
    names: list[dict[str, str]] = []
    for order in ("ab", "ba"):
        one = Pass()
        with lane("") as body:
            group = body.gather()
            lanes = {"a": Lane(f"{group}.0", None), "b": Lane(f"{group}.1", None)}
            names.append({branch: one.step("charge", lanes[branch]) for branch in order})
            assert one.ask("Sure?", lanes["a"]) != one.ask("Sure?", lanes["b"]) != one.ask("Sure?", body)
    assert names[0] == names[1]
    assert names[0]["a"] != names[0]["b"]


@pytest.mark.anyio
async def test_a_new_call_of_one_branch_does_not_wait_for_another_branch() -> None:
    """Each lane's record is the beginning of what this lane does."""
    first = Pass()
    with lane("g1.0") as left:
        first.step("left", left)
    second = Pass(first.journal())
    with lane("g1.1") as right:
        second.step("right", right)
    with lane("g1.0") as left, pytest.raises(ReplayMismatch):
        second.step("another", left)


@pytest.mark.anyio
async def test_what_happened_inside_a_step_that_is_done_need_not_come_again() -> None:
    """The step is not done again, and so nothing in it."""
    first = Pass()
    with lane("") as body:
        outer = first.replay.step(body, "outer").name
        with lane(body.inside(outer)) as inside:
            first.ask("Sure?", inside)
    # Killed inside the outer step: it has no record yet, what it asked has.
    second = Pass(first.journal())
    with lane("") as body:
        second.step("outer", body)
        assert second.replay.missing == "the question 'Sure?'"
    third = Pass(second.journal())
    with lane("") as body:
        third.step("outer", body)
        assert third.replay.missing == ""
        assert third.ask("Sure?", body) not in first.asked, "the same question outside is another one"


def test_an_error_names_what_is_missing_in_the_order_of_the_record_and_not_without_end() -> None:
    """With uses, without half emojis, and no text longer than a line."""
    first = Pass()
    for key in ("a", "b", "\ud83d"):
        first.step(key)
    first.ask("x" * 1000)
    first.step("a")
    missing = Pass(first.journal()).replay.missing
    assert missing.count("step ") == 3 or "the question" in missing
    assert missing.endswith(" and 2 more")
    assert len(missing) < 200
    missing.encode()
