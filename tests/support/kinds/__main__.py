"""Writes the tables of `docs/compatibility.md`."""

from tests.support.kinds.page import write

write()
