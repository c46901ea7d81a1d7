"""The tables of `docs/compatibility.md`, made of the kinds that the tests run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tests.support.kinds import ASKING, QUIET, REFUSED, SHELVES
from tests.support.kinds.shelf import LEGACY, MODERN, Kind, Reply, Shelf

PAGE: Final = Path(__file__).parents[3] / "docs" / "compatibility.md"
#: How the tables are made anew, for whoever finds them stale.
COMMAND: Final = ".venv/bin/python -m tests.support.kinds"

_BEGIN: Final = f"<!-- The tables are generated from tests/support/kinds: {COMMAND} -->\n"
_END: Final = "<!-- end of the tables -->\n"

_REPLIES: Final = {
    Reply.ACCEPT: "accepted",
    Reply.DECLINE: "declined",
    Reply.CANCEL: "dismissed",
    Reply.UNABLE: "no answer",
}


def tables() -> str:
    """Everything between the page's two marks."""
    return "\n".join([*_count(), *(line for shelf in SHELVES for line in _shelf(shelf))])


def current() -> str:
    """What the page has between its marks."""
    text = PAGE.read_text()
    return text[text.index(_BEGIN) + len(_BEGIN) : text.index(_END)]


def write() -> None:
    """The page has these tables."""
    text = PAGE.read_text()
    PAGE.write_text(text.replace(_BEGIN + current() + _END, _BEGIN + tables() + _END))


def _count() -> Iterator[str]:
    every = [*QUIET, *REFUSED, *ASKING]
    differ = [kind for kind in every if kind.differs is not None]
    tools = {kind.tool for kind in every}
    yield f"{len(every)} calls of {len(tools)} tools. {len(differ)} differ, for the reason that stands beside them."
    yield ""


def _shelf(shelf: Shelf) -> Iterator[str]:
    yield from ("## " + shelf.title, "")
    if shelf.quiet:
        rows = [(kind.says, _as_a_task(kind)) for kind in shelf.quiet]
        rows += [(kind.says, "refused with the live answer; there is no task") for kind in shelf.refused]
        yield from _table(("the tool, or the call", "as a task"), rows)
    if shelf.asking:
        head = ("the tool asks", "answered", f"live, {MODERN}", f"live, {LEGACY}", "as a task")
        yield from _table(head, _asking_rows(shelf.asking))


def _asking_rows(kinds: Iterable[Kind]) -> Iterator[tuple[str, ...]]:
    merged: dict[str, list[Kind]] = {}
    for kind in kinds:
        merged.setdefault(kind.tool, []).append(kind)
    for group in merged.values():
        first, replies = group[0], ", ".join(_REPLIES[kind.reply] for kind in group)
        live = ["yes" if version in first.live_on else "no" for version in (MODERN, LEGACY)]
        yield first.says, replies, *live, _as_a_task(first)


def _as_a_task(kind: Kind) -> str:
    if kind.differs is None:
        return "the same"
    waiting = " A call that waits for its task is live in this." if kind.differs.waiting_is_live else ""
    return f"**differs.** {kind.differs.why}{waiting}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield _row(head)
    yield _row(("---",) * len(head))
    yield from (_row(row) for row in rows)
    yield ""


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
