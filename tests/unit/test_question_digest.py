"""What makes two questions the same question."""

from __future__ import annotations

import random
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from mcptasks.runtime.replay import digest
from tests.requirements import covers

ASK: Final = "elicitation/create"
PARAMS: Final = st.dictionaries(st.text(), st.integers() | st.text() | st.none(), max_size=4)


@given(PARAMS, st.randoms(use_true_random=False))
def test_the_digest_does_not_see_the_order_of_members_or_the_requests_metadata(
    params: dict[str, Any], chance: random.Random
) -> None:
    """Progress tokens differ from pass to pass; the question is the same."""
    names = [name for name in params if name != "_meta"]
    chance.shuffle(names)
    shuffled = {name: params[name] for name in names}
    assert digest(ASK, {**params, "_meta": {"progressToken": 1}}) == digest(ASK, shuffled)


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


def test_the_id_of_a_page_does_not_count_and_its_url_does() -> None:
    """SDK: authors make the id with `uuid4()`, so it is another one whenever the tool runs from the top."""
    page = {"mode": "url", "message": "Log in", "url": "https://id.example/login"}
    assert digest(ASK, {**page, "elicitationId": "1"}) == digest(ASK, {**page, "elicitationId": "2"})
    assert digest(ASK, {**page, "elicitationId": "1"}) != digest(ASK, {**page, "url": "https://id.example/?id=1"})
