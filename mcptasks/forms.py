"""A question's JSON schema as the fields of a form, and what a person types as the values that the schema wants.

The same reading for the terminal and for the browser. A form is flat: fields of text, numbers, yes or no, and choices.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import jsonschema

from mcptasks.answers import violation
from mcptasks.shown import plain

_YES: Final = frozenset({"y", "yes", "true", "1", "on"})
_NO: Final = frozenset({"n", "no", "false", "0", "off"})


class NotThat(ValueError):
    """The text is no value of the field; the message says what is."""


def fields_of(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The form's fields: name -> their schema, in their order."""
    return cast("dict[str, dict[str, Any]]", schema.get("properties") or {})


def value_of(text: str, field: Mapping[str, Any]) -> Any:
    """What the text means in a field of this schema.

    Raises:
        NotThat: it is no value of it.
    """
    return fitting(_parsed(text, field), field)


def values_of(texts: Sequence[str], field: Mapping[str, Any]) -> Any:
    """What several texts mean in a field that takes several.

    Raises:
        NotThat: they are no value of it.
    """
    items = items_of(field)
    return fitting([_parsed(text, items) for text in texts], field)


def fitting(value: Any, field: Mapping[str, Any]) -> Any:
    """The value, which a field of this schema may have.

    Raises:
        NotThat: it may not.
    """
    if (error := violation(value, field, jsonschema.FormatChecker())) is not None:
        raise NotThat(plain(error.message, 200))
    return value


def choices(field: Mapping[str, Any]) -> dict[str, str]:
    """The values that a text field may have -> how people read them; empty: any."""
    if "enum" in field:
        values = [str(value) for value in field["enum"]]
        names = [str(name) for name in field.get("enumNames") or values]
        return dict(zip(values, names, strict=False))
    titled = cast("list[dict[str, Any]]", field.get("oneOf") or field.get("anyOf") or [])
    return {str(one["const"]): str(one.get("title", one["const"])) for one in titled if "const" in one}


def items_of(field: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of each of a field's several values."""
    return cast("dict[str, Any]", field.get("items") or {})


def kind_of(field: Mapping[str, Any]) -> str:
    """What the field holds: the JSON type's name; "string" where the schema names none."""
    kind = field.get("type", "string")
    kinds = cast("list[str]", kind if isinstance(kind, list) else [kind])
    return next((one for one in kinds if one != "null"), "string")


def _parsed(text: str, field: Mapping[str, Any]) -> Any:
    if known := choices(field):
        return _chosen(text, known)
    match kind_of(field):
        case "boolean":
            if text.lower() not in _YES | _NO:
                raise NotThat("yes or no")
            return text.lower() in _YES
        case "integer" | "number" as kind:
            return _number(text, whole=kind == "integer")
        case "array":
            return [_parsed(part.strip(), items_of(field)) for part in text.split(",") if part.strip()]
        case "string":
            return text
        case _:
            try:
                return json.loads(text)
            except ValueError:
                raise NotThat("not JSON") from None


def _number(text: str, *, whole: bool) -> int | float:
    try:
        number = int(text) if whole or text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise NotThat("a whole number" if whole else "a number") from None
    if not math.isfinite(number):
        raise NotThat("a number that is finite")
    return number


def _chosen(text: str, known: Mapping[str, str]) -> str:
    values = list(known)
    if text in known:
        return text
    if text.isdigit() and 1 <= int(text) <= len(values):
        return values[int(text) - 1]
    alike = [value for value, name in known.items() if text.lower() in (value.lower(), name.lower())]
    if len(alike) != 1:
        raise NotThat(f"one of {plain(', '.join(values), 300)}, or its number")
    return alike[0]
