"""Who acted on a task, as one word of an entry in its timeline: "client", "tool", "timeout", "operator=olga"."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

OPERATOR: Final = "operator"
#: Characters of an operator's name that a timeline has room for.
NAME_MAX: Final = 80


def operator_word(name: str) -> str:
    """The word for the operator of that name; without one it is just some operator."""
    known = name.encode("utf-8", "replace").decode()[:NAME_MAX]
    return f"{OPERATOR}={quote(known, safe='@+')}" if known else OPERATOR


def read_actor(word: str) -> tuple[str, str]:
    """Who acted, and their name; empty where nobody said it."""
    who, _, name = word.partition("=")
    return who, unquote(name)
