"""`docs/compatibility.md` says what the equality tests find."""

from __future__ import annotations

from collections import Counter

from tests.support import kinds
from tests.support.kinds.page import COMMAND, current, tables


def test_the_page_has_the_tables_of_the_kinds_that_are_tested() -> None:
    """Issue 4: the published table cannot go stale."""
    assert current() == tables(), f"make it anew: {COMMAND}"


def test_there_are_forty_shapes_of_tools_and_each_has_a_row_of_its_own() -> None:
    """Issue 4: at least 40 tool shapes, no difference without its reason."""
    every = [*kinds.QUIET, *kinds.ASKING, *kinds.REFUSED]
    assert len({kind.tool for kind in every}) >= 40
    assert [name for name, count in Counter(kind.id for kind in every).items() if count > 1] == []
    assert all(kind.differs is None or kind.differs.why for kind in every)
