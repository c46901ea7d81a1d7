"""Validation of what the server sends for the Tasks extension, from the raw bytes on: `schema/tasks.schema.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeAlias, cast

from jsonschema import Draft202012Validator, TypeChecker
from jsonschema.protocols import Validator
from jsonschema.validators import extend

Kind: TypeAlias = Literal["create", "get", "update", "cancel", "push", "acknowledge"]

#: What is sent unasked, by the method that its envelope must have.
_UNASKED: Final = {"push": "notifications/tasks", "acknowledge": "notifications/subscriptions/acknowledged"}

_SCHEMA: Final[dict[str, Any]] = json.loads((Path(__file__).parent / "schema" / "tasks.schema.json").read_text())


def _is_integer(checker: TypeChecker, value: object) -> bool:
    # JSON Schema takes 60000.0 for an integer; a client in a typed language does not.
    return isinstance(value, int) and not isinstance(value, bool)


_STRICT: Final = extend(
    Draft202012Validator, type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer)
)


def _validator(definition: str) -> Validator:
    return cast("Validator", _STRICT({"$defs": _SCHEMA["$defs"], "$ref": f"#/$defs/{definition}"}))


def validate(kind: Kind, payload: bytes | str | Mapping[str, Any]) -> dict[str, Any]:
    """The payload is a valid message of this kind; the value is its result, or the parameters of a notification.

    Args:
        kind: `create` for a `tools/call` that made a task; `get`, `update`, `cancel` for the `tasks/*` method; `push`
            for `notifications/tasks`; `acknowledge` for what a listener is told first.
        payload: raw bytes or text of one JSON value, or the value itself. With a `jsonrpc` key it is a whole JSON-RPC
            message, whose envelope is checked too; without one it is the result or the parameters.

    Raises:
        AssertionError: it is not; every violation is named with its place in the document.
    """
    document = _parse(payload) if isinstance(payload, bytes | str) else dict(payload)
    if "jsonrpc" in document and kind in _UNASKED:
        _check("notification", document)
        assert document["method"] == _UNASKED[kind], f"{kind} does not go by {document['method']}"
        document = document["params"]
    elif "jsonrpc" in document:
        _check("response", document)
        document = document["result"]
    _check(kind, document)
    return document


def _check(definition: str, document: dict[str, Any]) -> None:
    found = sorted(_validator(definition).iter_errors(document), key=lambda error: error.json_path)
    if found:
        raise AssertionError("\n".join(f"{definition} {error.json_path}: {error.message}" for error in found))


def _parse(raw: bytes | str) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except ValueError as problem:
        raise AssertionError(f"not one JSON value: {problem}") from problem
    assert isinstance(document, dict), f"not a JSON object but a {type(document).__name__}"
    return cast("dict[str, Any]", document)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Parsers disagree on which of two equal keys counts, so a document with two has no one meaning.
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a key stands twice in one object: {[key for key, _ in pairs]}")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} does not exist in JSON")
