"""Checks answers before any of them is stored, whoever gives them: the task's caller or an operator.

A bad accepted answer would poison the task: the SDK raises on it in every replay. So it is refused here and the
question stays open (protocol.md P42). Answers to keys that are not open are passed over (P41).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import jsonschema
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from mcp_types import CreateMessageResult, CreateMessageResultWithTools, ElicitResult, ListRootsResult
from pydantic import BaseModel
from pydantic import ValidationError as ModelError
from referencing.exceptions import Unresolvable

from mcptasks.capabilities import with_tools
from mcptasks.errors import BadAnswer, BadPayload
from mcptasks.strict_json import check_depth, clean

_RESULTS: Final[Mapping[str, type[BaseModel]]] = {
    "elicitation/create": ElicitResult,
    "sampling/createMessage": CreateMessageResult,
    "roots/list": ListRootsResult,
}


def result_type(question: Mapping[str, Any]) -> type[BaseModel]:
    """What a question of the wire (`{"method", "params"}`) is answered with, as the SDK will read it in the tool.

    A model that was given tools may answer with several pieces of content, and with uses of its tools.
    """
    method = question["method"]
    return CreateMessageResultWithTools if with_tools(method, question["params"]) else _RESULTS[method]


def checked(answers: Mapping[str, Any], questions: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the answers whose question is open, each one valid.

    Raises:
        BadAnswer: one of them does not answer its question; it names the key and the rule, never the value.
    """
    return {key: _checked(key, answer, questions[key]) for key, answer in answers.items() if key in questions}


def _checked(key: str, answer: Any, question: Mapping[str, Any]) -> Any:
    try:
        check_depth(answer, "it")
    except BadPayload as exc:
        raise _refused(key, str(exc)) from None
    answer = clean(answer)  # only now: it recurses
    try:
        result_type(question).model_validate(answer, by_name=False)
    except ModelError as exc:
        where = ", ".join(".".join(str(part) for part in error["loc"]) or "the answer" for error in exc.errors()[:3])
        raise _refused(key, f"it is no result of {question['method']} ({where})") from None
    schema = question["params"].get("requestedSchema")
    content = cast("dict[str, Any]", answer)
    if schema is not None and content.get("action") == "accept":
        _match(key, content.get("content") or {}, schema)
    return answer


def _match(key: str, content: Any, schema: Mapping[str, Any]) -> None:
    if (error := violation(content, schema)) is not None:
        where = ".".join(str(part) for part in error.absolute_path) or "content"
        raise _refused(key, f"{where!r} does not satisfy {error.validator!r} of its requestedSchema")


def violation(
    value: Any, schema: Mapping[str, Any], formats: jsonschema.FormatChecker | None = None
) -> ValidationError | None:
    """The worst that is wrong with the value; None where it satisfies the schema.

    None, too, where the schema itself is broken: the tool wrote it and must say so, not whoever answers.
    """
    try:
        found = best_match(jsonschema.Draft202012Validator(schema, format_checker=formats).iter_errors(value))
    # What no check of a schema finds: a reference to nowhere, a pattern that is none, a schema that contains itself.
    except (Unresolvable, re.error, RecursionError):
        return None
    except Exception:
        if _is_broken(schema):
            return None
        raise
    # To check the schema takes twenty times as long as all the rest: only an answer that would be refused waits for it.
    return found if isinstance(found, ValidationError) and not _is_broken(schema) else None


def _is_broken(schema: Mapping[str, Any]) -> bool:
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except (SchemaError, RecursionError):
        return True
    return False


def _refused(key: str, why: str) -> BadAnswer:
    return BadAnswer(f"Answer to {key[:80]!r} refused: {why}. The question stays open; nothing was stored.")
