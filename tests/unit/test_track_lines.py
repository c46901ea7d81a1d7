"""A program's lines: whole ones as they are, too long ones as no more than whose answer they are."""

from __future__ import annotations

import pytest

from mcptasks.tracker.program import Lines, TooLong

MAX = 1_000


def cut(text: bytes, size: int) -> list[bytes | TooLong]:
    """What comes of the text, fed in pieces of that size."""
    lines = Lines(MAX)
    return [line for at in range(0, len(text), size) for line in lines.feed(text[at : at + size])]


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_lines_are_cut_where_they_end_however_they_come(size: int) -> None:
    """Also empty ones, one of exactly the limit, and none that has not ended."""
    text = b"one\n\n" + b"x" * MAX + b"\ntwo\nnot yet"
    assert cut(text, size) == [b"one", b"", b"x" * MAX, b"two"]


@pytest.mark.parametrize("size", [1, 100, 5_000])
@pytest.mark.parametrize(
    ("front", "end", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"x":"', b'"}}', 7),
        (b'{ "jsonrpc": "2.0", "id": 7, "result": {"x": "', b'"}}', 7),
        (b'{"id":7,"result":{"x":"', b'"}}', 7),
        (b'{"result":{"x":"', b'"},"jsonrpc":"2.0","id":7}', 7),
        (b'{"result":{"id":7,"x":"', b'"}}', None),
        (b'{"jsonrpc":"2.0","method":"notifications/tasks","params":{"id":7,"x":"', b'"}}', None),
        (b"noise ", b" without end", None),
    ],
)
def test_a_line_over_the_limit_is_not_kept_and_its_edges_tell_whose_it_is(
    front: bytes, end: bytes, request_id: int | None, size: int
) -> None:
    """The next line is whole again."""
    text = front + b"x" * (3 * MAX) + end + b"\nnext\n"
    assert cut(text, size) == [TooLong(request_id), b"next"]


def test_a_line_that_never_ends_costs_no_more_memory_than_one_may() -> None:
    lines = Lines(MAX)
    most = 0
    for _ in range(200):
        assert list(lines.feed(b"x" * 100)) == []
        most = max(most, len(lines._line))  # pyright: ignore[reportPrivateUsage]
    assert most <= MAX
