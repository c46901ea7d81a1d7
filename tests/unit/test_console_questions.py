"""Questions as forms in the page, whatever a tool has written into their schemas."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import FormData

from mcptasks.console.questions import Refused, answer_of, asked
from mcptasks.model import Record

_WORDS: Final = (
    *("type", "enum", "enumNames", "oneOf", "anyOf", "const", "title", "description", "items", "default"),
    *("minLength", "maxLength", "minimum", "maximum", "format"),
)
_JUNK: Final[st.SearchStrategy[Any]] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=4),
    max_leaves=10,
)
_KINDS: Final = st.sampled_from(["string", "array", "integer", "boolean", "object", ["string", "null"]])
_FIELDS: Final = st.dictionaries(st.sampled_from(_WORDS), _JUNK | _KINDS, max_size=5)
_SCHEMAS: Final = st.fixed_dictionaries(
    {"properties": _JUNK | st.dictionaries(st.text(max_size=4), _FIELDS | _JUNK, max_size=3)},
    optional={"required": _JUNK | st.lists(st.text(max_size=4))},
)


@dataclass
class Asks:
    """What is shown of a task that asks one thing."""

    questions: dict[str, Any]
    task_id: str = "x" * 32
    tool: str = "report"
    owner: str = "ann"
    answer_by_ms: dict[str, int] = field(default_factory=dict[str, int])


def drawn(schema: Any, key: str = "q") -> Any:
    """The form that people see."""
    question = {"method": "elicitation/create", "params": {"message": "Go on?", "requestedSchema": schema}}
    [one] = asked(cast("Record", Asks({key: question})), 0)
    return question, one


@given(_SCHEMAS, st.sampled_from(["1", "true", "\u00b2", "{}", "", "["]))
def test_no_schema_keeps_the_page_from_being_drawn(schema: Any, text: str) -> None:
    """One tool's mistake must not take the inbox from everybody; what is no field is none."""
    question, one = drawn(schema)
    sent = FormData([("action", "accept"), *((a_field.name, text) for a_field in one.fields)])
    with suppress(Refused):
        assert answer_of(question, sent)["action"] == "accept"


@pytest.mark.parametrize("name", ["two\nlines", "old\rmac", "dos\r\nlines", "half \ud83d", "a b"], ids=ascii)
def test_a_field_is_found_again_under_the_name_that_browsers_send(name: str) -> None:
    """A form's names end lines with CR LF, and no encoding has half a character."""
    question, one = drawn({"properties": {name: {"type": "string"}}, "required": [name]})
    [a_field] = one.fields
    assert answer_of(question, FormData([("action", "accept"), (browsers(a_field.name), "yes")]))["content"] == {
        name: "yes"
    }


def browsers(name: str) -> str:
    """What the page's encoding, HTML and the rules of forms make of a name."""
    page = name.encode("utf-8", "replace").decode()
    return "\r\n".join(page.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
