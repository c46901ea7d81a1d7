"""A question's JSON schema as a form in the terminal, and what a person types as the values that the schema wants."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, cast

import jsonschema
from rich.console import Console
from rich.text import Text

from mcptasks.answers import violation
from mcptasks.cli.operating import plain

_YES: Final = frozenset({"y", "yes", "true", "1", "on"})
_NO: Final = frozenset({"n", "no", "false", "0", "off"})


class NotThat(ValueError):
    """The text is no value of the field; the message says what is."""


def fields_of(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The form's fields: name -> their schema, in their order."""
    return cast("dict[str, dict[str, Any]]", schema.get("properties") or {})


def fill(schema: Mapping[str, Any], screen: Console) -> dict[str, Any]:
    """The content that a person has typed, each field asked again until it fits. A field may be left out by Return.

    Raises:
        EOFError: there is nobody to type any more.
    """
    content: dict[str, Any] = {}
    required = cast("list[str]", schema.get("required") or [])
    for name, field in fields_of(schema).items():
        _describe(name, field, screen, required=name in required)
        while True:
            text = screen.input(Text("> ", "bold")).strip()
            if not text and "default" in field:
                content[name] = field["default"]
                break
            if not text and name not in required:
                break
            try:
                content[name] = value_of(text, field)
                break
            except NotThat as exc:
                screen.print(Text(f"  {exc}", "red"))
    return content


def value_of(text: str, field: Mapping[str, Any]) -> Any:
    """What the text means in a field of this schema.

    Raises:
        NotThat: it is no value of it.
    """
    value = _parsed(text, field)
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


def _kind(field: Mapping[str, Any]) -> str:
    kind = field.get("type", "string")
    kinds = cast("list[str]", kind if isinstance(kind, list) else [kind])
    return next((one for one in kinds if one != "null"), "string")


def _parsed(text: str, field: Mapping[str, Any]) -> Any:
    if known := choices(field):
        return _chosen(text, known)
    match _kind(field):
        case "boolean":
            if text.lower() not in _YES | _NO:
                raise NotThat("yes or no")
            return text.lower() in _YES
        case "integer" | "number" as kind:
            return _number(text, whole=kind == "integer")
        case "array":
            items = cast("dict[str, Any]", field.get("items") or {})
            return [_parsed(part.strip(), items) for part in text.split(",") if part.strip()]
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


def _describe(name: str, field: Mapping[str, Any], screen: Console, *, required: bool) -> None:
    items = cast("dict[str, Any]", field.get("items") or {})
    known = choices(field) or choices(items)
    line = Text(plain(str(field.get("title") or name), 100), "bold")
    hints = [] if known else [{"boolean": "yes or no", "integer": "whole number"}.get(_kind(field), _kind(field))]
    hints += ["several, with commas"] if _kind(field) == "array" else []
    hints += [f"Return for {plain(json.dumps(field['default']), 80)}"] if "default" in field else []
    hints += [] if required or "default" in field else ["Return to leave it out"]
    screen.print(line.append(f"  ({'; '.join(hints)})" if hints else "", "dim not bold"))
    if description := field.get("description"):
        screen.print(Text(f"  {plain(str(description))}", "dim"))
    for number, (value, title) in enumerate(known.items(), 1):
        said = plain(value, 100) if title == value else f"{plain(title, 100)} ({plain(value, 100)})"
        screen.print(Text(f"  {number}  {said}"))
