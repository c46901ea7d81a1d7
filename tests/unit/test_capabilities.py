"""What a client must have declared to be asked something; the rules are those of the SDK for a live call."""

from __future__ import annotations

from typing import Any

import pytest

from mcptasks.capabilities import missing
from tests.requirements import covers

FORM: dict[str, Any] = {"elicitation": {"form": {}}}
URL: dict[str, Any] = {"elicitation": {"url": {}}}
TOOLS: dict[str, Any] = {"sampling": {"tools": {}}}


@covers("P44", "C14")
@pytest.mark.parametrize(
    ("declared", "method", "params", "needed"),
    [
        ({}, "elicitation/create", {}, FORM),
        ({"elicitation": {}}, "elicitation/create", {}, None),
        ({"elicitation": {}}, "elicitation/create", {"mode": "url"}, URL),
        (URL, "elicitation/create", {"mode": "form"}, FORM),
        (URL, "elicitation/create", {"mode": "url"}, None),
        ({**FORM, **URL}, "elicitation/create", {"mode": "url"}, None),
        ({}, "sampling/createMessage", {}, {"sampling": {}}),
        ({"sampling": {}}, "sampling/createMessage", {}, None),
        ({"sampling": {}}, "sampling/createMessage", {"tools": []}, TOOLS),
        ({"sampling": {}}, "sampling/createMessage", {"toolChoice": {"mode": "auto"}}, TOOLS),
        (TOOLS, "sampling/createMessage", {"tools": []}, None),
        ({}, "roots/list", {}, {"roots": {}}),
        ({"roots": {}}, "roots/list", {"tools": []}, None),
    ],
)
def test_what_is_missing_is_named_as_the_client_would_declare_it(
    declared: dict[str, Any], method: str, params: dict[str, Any], needed: dict[str, Any] | None
) -> None:
    """An empty elicitation capability means forms, the only kind there was before kinds had names."""
    assert missing(declared, method, params) == needed
