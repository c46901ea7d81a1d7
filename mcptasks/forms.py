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
    """The form's fields: name -> their schema, in their order. Tools write schemas: what is none says nothing."""
    return {name: _object(field) for name, field in _object(schema.get("properties")).items()}


def required_of(schema: Mapping[str, Any]) -> list[str]:
    """The names of the fields that may not be left out."""
    return [name for name in _array(schema.get("required")) if isinstance(name, str)]


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
    """The values that a field may have, as text -> how people read them; empty: any."""
    return {str(value): title for value, title in _known(field)}


def items_of(field: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of each of a field's several values."""
    return _object(field.get("items"))


def kind_of(field: Mapping[str, Any]) -> str:
    """What the field holds: the JSON type's name; "string" where the schema names none."""
    kind = field.get("type")
    kinds = [kind] if isinstance(kind, str) else _array(kind)
    return next((one for one in kinds if isinstance(one, str) and one != "null"), "string")


def _known(field: Mapping[str, Any]) -> list[tuple[Any, str]]:
    if values := _array(field.get("enum")):
        names = _array(field.get("enumNames"))[: len(values)]
        return list(zip(values, map(str, [*names, *values[len(names) :]]), strict=True))
    titled = [_object(one) for one in _array(field.get("oneOf")) or _array(field.get("anyOf"))]
    return [(one["const"], str(one.get("title", one["const"]))) for one in titled if "const" in one]


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _array(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _parsed(text: str, field: Mapping[str, Any]) -> Any:
    if known := _known(field):
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
            except (ValueError, RecursionError):
                raise NotThat("not JSON") from None


def _number(text: str, *, whole: bool) -> int | float:
    try:
        number = int(text) if whole or text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise NotThat("a whole number" if whole else "a number") from None
    if not math.isfinite(number):
        raise NotThat("a number that is finite")
    return number


def _chosen(text: str, known: Sequence[tuple[Any, str]]) -> Any:
    names = [str(value) for value, _ in known]
    if text in names:
        return known[names.index(text)][0]
    if text.isdecimal() and len(text) <= len(str(len(known))) and 1 <= int(text) <= len(known):
        return known[int(text) - 1][0]
    alike = [value for value, title in known if text.lower() in (str(value).lower(), title.lower())]
    if len(alike) != 1:
        raise NotThat(f"one of {plain(', '.join(names), 300)}, or its number")
    return alike[0]
