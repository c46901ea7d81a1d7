"""The rules of all JSON here: what is stored and sent, every parser reads."""

from __future__ import annotations

import json
import re
from typing import Any, Final, cast

from mcptasks.errors import BadPayload

#: Deeper JSON than this is refused before anything recurses into it; Python's own parser gives up near 1,000.
MAX_DEPTH: Final = 200

_SURROGATES = re.compile("[\ud800-\udfff]")


def dumps(value: Any, what: str) -> str:
    """The value as ASCII JSON that every parser reads: digits kept, lone surrogates as escapes, no NaN.

    Raises:
        BadPayload: NaN or an infinity, nesting deeper than 200, or a value that is not JSON.
    """
    check_depth(value, what)
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError as exc:
        raise BadPayload(f"{what} is not JSON: {_why(exc)}") from exc
    except TypeError as exc:
        raise BadPayload(f"{what} is not JSON: {exc}") from exc


def _why(exc: ValueError) -> str:
    return "NaN and Infinity do not exist in JSON" if "not JSON compliant" in str(exc) else str(exc)


def check_depth(value: Any, what: str) -> None:
    """The value nests at most `MAX_DEPTH` deep; walked with a list of its own, so that no depth can crash the walk.

    Raises:
        BadPayload: it nests deeper.
    """
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise BadPayload(f"{what} nests deeper than {MAX_DEPTH} levels")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(cast("dict[str, Any]", item).values())
            elif isinstance(item, (list, tuple)):
                below.extend(cast("list[Any]", item))
        level = [item for item in below if isinstance(item, (dict, list, tuple))]


def clean(value: Any) -> Any:
    """The same value with every lone surrogate replaced by U+FFFD: what UTF-8 cannot carry costs one character."""
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        return {clean(k): clean(v) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [clean(v) for v in cast("list[Any]", value)]
    return value
