"""Places in JSON, as RFC 6901 names them, and templates of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def parts(pointer: str) -> list[str]:
    """The names on the way to the place; none for "", the whole.

    Raises:
        ValueError: it is no JSON pointer.
    """
    if pointer and not pointer.startswith("/"):
        raise ValueError(f'{pointer!r} is no JSON pointer: write "" for the whole, or a path such as "/job/id"')
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def find(document: Any, pointer: str) -> Any:
    """What stands at that place; None where nothing does."""
    found = document
    for part in parts(pointer):
        if isinstance(found, dict):
            found = cast("dict[str, Any]", found).get(part)
        elif isinstance(found, list) and part.isascii() and part.isdigit() and int(part) < len(found):
            found = cast("list[Any]", found)[int(part)]
        else:
            return None
    return found


def fill(template: Any, values: Mapping[str, Any]) -> Any:
    """The template, with each text that is one of these names ("$handle") replaced by its value, at any depth.

    A name may go on with a pointer into its value: "$arguments/topic".
    """
    if isinstance(template, dict):
        return {name: fill(value, values) for name, value in cast("dict[str, Any]", template).items()}
    if isinstance(template, list):
        return [fill(value, values) for value in cast("list[Any]", template)]
    if isinstance(template, str):
        name, slash, rest = template.partition("/")
        if name in values:
            return find(values[name], slash + rest)
    return template
