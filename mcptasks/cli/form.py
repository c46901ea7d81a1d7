"""A question's form in the terminal, field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from mcptasks.forms import NotThat, choices, fields_of, items_of, kind_of, required_of, value_of
from mcptasks.shown import plain


def fill(schema: Mapping[str, Any], screen: Console) -> dict[str, Any]:
    """The content that a person has typed, each field asked again until it fits. A field may be left out by Return.

    Raises:
        EOFError: there is nobody to type any more.
    """
    content: dict[str, Any] = {}
    required = required_of(schema)
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


def _describe(name: str, field: Mapping[str, Any], screen: Console, *, required: bool) -> None:
    known = choices(field) or choices(items_of(field))
    line = Text(plain(str(field.get("title") or name), 100), "bold")
    hints = [] if known else [{"boolean": "yes or no", "integer": "whole number"}.get(kind_of(field), kind_of(field))]
    hints += ["several, with commas"] if kind_of(field) == "array" else []
    hints += [f"Return for {plain(json.dumps(field['default']), 80)}"] if "default" in field else []
    hints += [] if required or "default" in field else ["Return to leave it out"]
    screen.print(line.append(f"  ({'; '.join(hints)})" if hints else "", "dim not bold"))
    if description := field.get("description"):
        screen.print(Text(f"  {plain(str(description))}", "dim"))
    for number, (value, title) in enumerate(known.items(), 1):
        said = plain(value, 100) if title == value else f"{plain(title, 100)} ({plain(value, 100)})"
        screen.print(Text(f"  {number}  {said}"))
