"""JSON in pieces is the JSON of the whole, and no piece is large."""

from __future__ import annotations

import math
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcptasks.errors import BadPayload
from mcptasks.pieces import pieces
from mcptasks.strict_json import dumps
from tests.requirements import covers

_JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)

LONG: Final = "é\ud83d\U0001f600\n\"'" * 20_000


@covers("F05", "F03")
@given(_JSON)
@example([1.0, -0.0, 10**30, 2**53 + 1, 1e-7, [], {}, "", [[]], [{}]])
@example({"": {"": []}, "a": LONG, LONG: 1})
@example([LONG, 1, [LONG], *range(1_000), {"rows": [{"n": n, "t": "x" * n} for n in range(2_000)]}])
@example([[n] for n in range(600)])
@example([0] * 256)
@example([0] * 257)
@example([*[0] * 256, [1]])
@example(LONG)
def test_the_pieces_are_the_whole(value: Any) -> None:
    """Digits, escapes and the order of members included."""
    assert "".join(pieces(value, "It")) == dumps(value, "It")


@covers("F07")
def test_no_piece_is_large() -> None:
    """So that a result of any size is written out in little memory."""
    value = {
        "text": LONG * 50,
        "rows": [{"name": "x" * 900, "n": n} for n in range(20_000)],
        "long": ["x" * 900] * 9_999,
    }
    assert max(len(piece) for piece in pieces(value, "It")) <= 1024 * 1024


@covers("F01")
@pytest.mark.parametrize("bad", [math.nan, math.inf, object()])
@pytest.mark.parametrize("place", [lambda x: x, lambda x: [LONG, x], lambda x: {"a": LONG, "b": [[x]]}])
def test_what_is_no_json_is_refused_wherever_it_stands(bad: Any, place: Any) -> None:
    """With the words of the whole."""
    with pytest.raises(BadPayload) as whole:
        dumps(place(bad), "It")
    with pytest.raises(BadPayload) as found:
        list(pieces(place(bad), "It"))
    assert str(found.value) == str(whole.value)


def test_what_nests_too_deep_is_refused_before_the_first_piece() -> None:
    """Nothing recurses into it."""
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(BadPayload, match="It nests deeper than 200 levels"):
        pieces(deep, "It")
