"""An open question as a form in the page, and what the form sends as the answer that its task waits for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from starlette.datastructures import FormData

from mcptasks.forms import NotThat, choices, fields_of, items_of, kind_of, required_of, value_of, values_of
from mcptasks.model import Record, label
from mcptasks.shown import plain, plain_lines, span
from mcptasks.times import iso

FORM, URL, OTHER = "form", "url", "other"
_ELICITATION: Final = "elicitation/create"
#: What a question that no person is meant to answer waits for.
_WAITS: Final = {
    "sampling/createMessage": "an answer of its client's model",
    "roots/list": "its client's folders",
}
#: So many choices are shown at once; of more one is chosen from a list.
_RADIOS: Final = 6
#: A text that may be longer gets several lines.
_LONG: Final = 200
_TYPES: Final = {"email": "email", "date": "date", "uri": "url"}
#: What stands before the names of the form's fields.
_PREFIX: Final = "f:"


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field as the template draws it."""

    name: str
    title: str
    help: str
    #: text, long, number, radio, list, boxes or json.
    widget: str
    required: bool
    type: str = "text"
    choices: dict[str, str] = field(default_factory=dict[str, str])
    values: tuple[str, ...] = ()
    #: Attributes that let a browser check it beforehand.
    limits: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One open question as the template draws it."""

    task: str
    tool: str
    owner: str
    key: str
    #: Names it in the page.
    anchor: str
    kind: str
    method: str
    lines: list[str]
    #: What it waits for, where no person is meant to answer; the address, where something is to be settled elsewhere.
    waits: str = ""
    url: str = ""
    fields: list[Field] = field(default_factory=list[Field])
    #: How long it may still be answered; empty: for as long as the task lives.
    left: str = ""
    #: The moment of that, in ISO 8601.
    due: str = ""
    error: str = ""
    raw: str = ""


class Refused(Exception):
    """The form holds no answer. The message says why; `errors` has more of it by field."""

    def __init__(self, message: str, errors: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.errors = dict(errors or {})


def asked(
    record: Record, now_ms: int, key: str | None = None, form: FormData | None = None, refusal: Refused | None = None
) -> list[Asked]:
    """The task's open questions. With a form that was refused, the one of that key shows what was sent, and why not."""
    found: list[Asked] = []
    for one, question in sorted(record.questions.items()):
        sent = form if one == key else None
        found.append(_asked(record, one, question, now_ms, sent, refusal if one == key else None))
    return found


def answer_of(question: Mapping[str, Any], form: FormData) -> dict[str, Any]:
    """What a client would send for what the form says.

    Raises:
        Refused: it says nothing that the question's schema allows.
    """
    action = form.get("action")
    if action in ("decline", "cancel"):
        return {"action": action}
    if action == "raw":
        return _raw(str(form.get("raw") or ""))
    if action != "accept" or question["method"] != _ELICITATION:
        raise Refused("Choose one of the buttons.")
    schema = _schema(question)
    if schema is None:
        return {"action": "accept"}
    content, errors = dict[str, Any](), dict[str, str]()
    required = required_of(schema)
    for name, wanted in fields_of(schema).items():
        # Browsers end lines as teletypes did.
        sent = (text for text in form.getlist(sent_as(_PREFIX + name)) if isinstance(text, str))
        texts = [text.replace("\r\n", "\n") for text in sent]
        try:
            if kind_of(wanted) == "array" and choices(items_of(wanted)):
                if texts or name in required:
                    content[name] = values_of(texts, wanted)
            elif text := "\n".join(texts).strip():
                content[name] = value_of(text, wanted)
            elif name in required:
                raise NotThat("is needed")
        except NotThat as exc:
            errors[name] = str(exc)
    if errors:
        raise Refused("This answer was not sent. See the fields below.", errors)
    return {"action": "accept", "content": content}


def anchor(task: str, key: str) -> str:
    """A name for the question that any page may have: keys are the tool's, and may be anything."""
    return "q-" + hashlib.sha256(f"{task} {key}".encode("utf-8", "replace")).hexdigest()[:16]


def sent_as(text: str) -> str:
    """What a browser sends for a field's name: its lines end in CR LF, and there is no half character."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return lines.replace("\n", "\r\n").encode("utf-8", "replace").decode()


def _raw(text: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise Refused("This is not JSON. Nothing was sent.") from None
    if not isinstance(value, dict):
        raise Refused("An answer is a JSON object. Nothing was sent.")
    return cast("dict[str, Any]", value)


def _schema(question: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any] | None", question["params"].get("requestedSchema"))


def _asked(
    record: Record, key: str, question: Mapping[str, Any], now_ms: int, form: FormData | None, refusal: Refused | None
) -> Asked:
    params, method = cast("dict[str, Any]", question["params"]), str(question["method"])
    kind = OTHER if method != _ELICITATION else URL if "url" in params else FORM
    schema = _schema(question) if kind == FORM else None
    due = record.answer_by_ms.get(key)
    return Asked(
        task=label(record.task_id),
        tool=plain(record.tool, 80),
        owner=plain(record.owner, 60),
        key=key,
        anchor=anchor(record.task_id, key),
        kind=kind,
        method=plain(method, 80),
        lines=plain_lines(str(params.get("message") or "")),
        waits=_WAITS.get(method, "its client") if kind == OTHER else "",
        url=plain(str(params["url"]), 2_000) if kind == URL else "",
        fields=[] if schema is None else _fields(schema, form, refusal),
        left="" if due is None else span(due - now_ms),
        due="" if due is None else iso(due),
        error="" if refusal is None else str(refusal),
        raw="" if form is None else str(form.get("raw") or ""),
    )


def _fields(schema: Mapping[str, Any], form: FormData | None, refusal: Refused | None) -> list[Field]:
    required = required_of(schema)
    errors = {} if refusal is None else refusal.errors
    found: list[Field] = []
    for name, wanted in fields_of(schema).items():
        several = kind_of(wanted) == "array"
        default = wanted.get("default", [] if several else None)
        values = tuple(_text(value) for value in (default if several and isinstance(default, list) else [default]))
        if form is not None:
            values = tuple(str(value) for value in form.getlist(sent_as(_PREFIX + name)))
        found.append(
            Field(
                name=_PREFIX + name,
                title=plain(str(wanted.get("title") or name), 200),
                help=plain(str(wanted.get("description") or ""), 500),
                required=name in required,
                values=tuple(value for value in values if value),
                error=errors.get(name, ""),
                **_widget(wanted, required=name in required),
            )
        )
    return found


def _widget(wanted: Mapping[str, Any], *, required: bool) -> dict[str, Any]:
    known, kind = choices(wanted), kind_of(wanted)
    if kind == "boolean":
        return {"widget": "radio", "choices": {"true": "Yes", "false": "No"} | ({} if required else {"": "No answer"})}
    if known:
        shown = {value: plain(title, 200) for value, title in known.items()}
        if len(shown) > _RADIOS:
            return {"widget": "list", "choices": shown}
        return {"widget": "radio", "choices": shown | ({} if required else {"": "No answer"})}
    match kind:
        case "array":
            if several := choices(items_of(wanted)):
                return {"widget": "boxes", "choices": {value: plain(title, 200) for value, title in several.items()}}
            return {"widget": "text", "limits": {"placeholder": "several, with commas"}}
        case "integer" | "number":
            limits = {"min": wanted.get("minimum"), "max": wanted.get("maximum")}
            step = {"step": "1" if kind == "integer" else "any"}
            return {"widget": "number", "limits": {name: v for name, v in limits.items() if _number(v)} | step}
        case "object":
            return {"widget": "json"}
        case _:
            longest = wanted.get("maxLength")
            limits = {"minlength": wanted.get("minLength"), "maxlength": longest}
            long = isinstance(longest, int) and longest > _LONG
            return {
                "widget": "long" if long else "text",
                "type": _TYPES.get(str(wanted.get("format")), "text"),
                "limits": {name: v for name, v in limits.items() if _number(v)},
            }


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
