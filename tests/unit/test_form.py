"""What a person types, as the values that a question's schema wants."""

from __future__ import annotations

import io
from typing import Any, Final

import pytest
from rich.console import Console

from mcptasks.answers import checked
from mcptasks.cli.form import fill
from mcptasks.forms import NotThat, value_of

SIZES: Final = {"type": "string", "enum": ["s", "m", "10"], "enumNames": ["Small", "Medium", "Ten"]}
TITLED: Final = {"type": "string", "oneOf": [{"const": "eu", "title": "Europe"}, {"const": "us", "title": "America"}]}


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ({"type": "string"}, "007", "007"),
        ({"type": "string", "format": "email"}, "a@example.org", "a@example.org"),
        ({"type": "integer", "minimum": 1}, "7", 7),
        ({"type": "number"}, "7", 7),
        ({"type": "number"}, "7.5", 7.5),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, "0", False),
        ({"type": ["integer", "null"]}, "3", 3),
        (SIZES, "m", "m"),
        (SIZES, "2", "m"),
        (SIZES, "10", "10"),
        (SIZES, "SMALL", "s"),
        (TITLED, "europe", "eu"),
        (TITLED, "us", "us"),
        ({"type": "array", "items": SIZES}, "s, 2", ["s", "m"]),
        ({"type": "array", "items": {"anyOf": [{"const": "a", "title": "A one"}]}}, "a one", ["a"]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({}, "text", "text"),
        ({"type": "integer", "enum": [10, 20]}, "20", 20),
        ({"enum": [True, False]}, "true", True),
        ({"enum": ["a", "b"], "enumNames": ["One"]}, "b", "b"),
    ],
    ids=str,
)
def test_a_text_becomes_what_its_field_wants(field: dict[str, Any], text: str, value: Any) -> None:
    """Numbers as numbers, choices by value, name or number."""
    assert value_of(text, field) == value
    assert type(value_of(text, field)) is type(value)


@pytest.mark.parametrize(
    ("field", "text", "why"),
    [
        ({"type": "integer"}, "7.5", "a whole number"),
        ({"type": "integer", "minimum": 1}, "0", "less than the minimum"),
        ({"type": "number"}, "nan", "finite"),
        ({"type": "number"}, "seven", "a number"),
        ({"type": "boolean"}, "perhaps", "yes or no"),
        ({"type": "string", "maxLength": 2}, "abc", "too long"),
        (SIZES, "4", "one of s, m, 10"),
        (SIZES, "\u00b2", "one of s, m, 10"),
        (SIZES, "9" * 5_000, "one of s, m, 10"),
        ({"type": "object"}, "[" * 100_000, "not JSON"),
        (SIZES, "xl", "one of s, m, 10"),
        ({"type": "array", "items": SIZES, "minItems": 1}, "", "non-empty|too short"),
        ({"type": "object"}, "{", "not JSON"),
    ],
    ids=str,
)
def test_a_text_that_does_not_fit_says_what_does(field: dict[str, Any], text: str, why: str) -> None:
    """Before anything is sent."""
    with pytest.raises(NotThat, match=why):
        value_of(text, field)


def typed(schema: dict[str, Any], *lines: str) -> tuple[dict[str, Any], str]:
    """The content of a form that somebody filled in so, and what stood on the screen."""
    given, out = iter(lines), io.StringIO()

    class Screen(Console):
        """Somebody types."""

        def input(self, prompt: Any = "", **how: Any) -> str:
            try:
                return next(given)
            except StopIteration:
                raise EOFError from None

    content = fill(schema, Screen(file=out, width=100, highlight=False))
    assert next(given, None) is None, "a line was left over"
    return content, out.getvalue()


def test_a_form_asks_again_until_it_fits_and_takes_defaults() -> None:
    """Field by field, in their order; an optional one may be left out."""
    schema = {
        "type": "object",
        "required": ["count", "size"],
        "properties": {
            "count": {"type": "integer", "title": "How many?", "description": "Of all."},
            "size": {**SIZES, "default": "m"},
            "note": {"type": "string"},
            "mail": {"type": "string", "default": "none"},
        },
    }
    content, shown = typed(schema, "", "many", "3", "", "", "")
    assert content == {"count": 3, "size": "m", "mail": "none"}
    assert shown.count("a whole number") == 2
    for said in ("How many?  (whole number)", "Of all.", "1  Small (s)", 'Return for "m"', "Return to leave it out"):
        assert said in shown, said


def test_a_form_of_a_hostile_schema_moves_no_terminal() -> None:
    """Titles, descriptions and choices are a tool's words."""
    evil = "\x1b[2J[red]x"
    schema = {"properties": {evil: {"title": evil, "description": evil, "enum": [evil], "default": evil}}}
    content, shown = typed(schema, "")
    assert content == {evil: evil}
    assert "\x1b" not in shown and "[red]x" in shown


def test_a_form_without_anybody_ends() -> None:
    """Nothing is made up."""
    with pytest.raises(EOFError):
        typed({"required": ["a"], "properties": {"a": {"type": "string", "minLength": 1}}}, "")


@pytest.mark.parametrize(
    "broken", [{"pattern": 7}, {"pattern": "("}, {"$ref": "#/nowhere"}, {"$ref": "http://127.0.0.1:9/x"}], ids=str
)
def test_a_broken_schema_is_the_tools_business(broken: dict[str, Any]) -> None:
    """The tool will say so; whoever answers, here or as a client, is not met with an error of ours."""
    assert value_of("x", broken) == "x"
    schema = {"type": "object", "properties": {"a": broken}}
    answer = {"action": "accept", "content": {"a": "x"}}
    question = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": schema}}
    assert checked({"q": answer}, {"q": question}) == {"q": answer}
