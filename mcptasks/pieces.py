"""JSON in pieces, so that a large value is written out without ever being one text in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from mcptasks.strict_json import check_depth, dumps

#: Characters of a text that are encoded at a time; an escape makes up to six bytes of one (twelve of a rare one).
_TEXT: Final = 32 * 1024
#: What is encoded in one go: so many scalars, none of them longer than this.
_RUN: Final = 256
_SHORT: Final = 1024


def pieces(value: Any, what: str) -> Iterator[str]:
    """The very JSON of `wire.dumps(value, what)`, in pieces of a megabyte at most.

    Raises:
        BadPayload: as `dumps`; the pieces before may be out by then.
    """
    check_depth(value, what)
    return _pieces(value, what)


def _pieces(value: Any, what: str) -> Iterator[str]:
    if isinstance(value, str) and len(value) > _TEXT:
        yield '"'
        for at in range(0, len(value), _TEXT):
            yield dumps(value[at : at + _TEXT], what)[1:-1]
        yield '"'
    elif isinstance(value, dict) and not _flat(cast("dict[str, Any]", value).values()):
        yield "{"
        for number, (name, item) in enumerate(cast("dict[str, Any]", value).items()):
            yield ("," if number else "") + dumps({name: None}, what)[1:-5]
            yield from _pieces(item, what)
        yield "}"
    elif isinstance(value, (list, tuple)) and not _flat(cast("list[Any]", value)):
        yield "["
        yield from _items(cast("list[Any]", value), what)
        yield "]"
    else:
        yield dumps(value, what)


def _items(items: list[Any] | tuple[Any, ...], what: str) -> Iterator[str]:
    for at in range(0, len(items), _RUN):
        run = items[at : at + _RUN]
        if _flat(run):
            yield ("," if at else "") + dumps(run, what)[1:-1]
            continue
        for number, item in enumerate(run, at):
            if number:
                yield ","
            yield from _pieces(item, what)


def _flat(items: Iterable[Any]) -> bool:
    """They are few, short, and hold nothing."""
    for number, item in enumerate(items):
        if number == _RUN or isinstance(item, (dict, list, tuple)) or (isinstance(item, str) and len(item) > _SHORT):
            return False
    return True
