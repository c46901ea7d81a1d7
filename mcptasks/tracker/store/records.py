"""Turns what Redis holds of a tracked task into the model's values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from mcptasks.model import SCHEMA_VERSION
from mcptasks.store.records import newer
from mcptasks.store.seal import Seal
from mcptasks.tracker.model import Claimed, DeadLetter, Delivery, End, Event, EventKind, Tracked, TrackStatus

#: What a server or a caller said: sealed where there are keys.
_SAID: Final = frozenset({"args", "handle", "msg", "result", "failure", "error_text"})


def read_tracked(stored: Mapping[str, str], seal: Seal) -> Tracked:
    """The task of these fields; those that are left out are taken for absent.

    Raises:
        SchemaTooNew: a newer mcptasks wrote it.
        Sealed: something of it is sealed with a key that is not here.
    """
    task_id = stored["id"]
    if int(stored["v"]) > SCHEMA_VERSION:
        raise newer(task_id, stored["v"])
    said = {name: text for name, text in stored.items() if name in _SAID or name.startswith("q:")}
    fields = {**stored, **seal.open_all(task_id, said)}
    answered = tuple(name[2:] for name in fields if name.startswith("a:"))
    return Tracked(
        task_id=task_id,
        owner=fields["owner"],
        server=fields["server"],
        tool=fields["tool"],
        status=TrackStatus(fields["status"]),
        reason=End(fields["reason"]) if fields.get("reason") else None,
        message=fields.get("msg") or None,
        handle=fields.get("handle") or None,
        questions={
            name[2:]: json.loads(text)
            for name, text in fields.items()
            if name.startswith("q:") and name[2:] not in answered
        },
        answered=answered,
        created_ms=int(fields["created"]),
        updated_ms=int(fields["updated"]),
        revision=int(fields["rev"]),
        failures=int(fields["failures"]),
        last_error=fields.get("error_text") or None,
        polls=int(fields["polls"]),
        cancel_requested="cancel" in fields,
        cancel_delivered=fields.get("cancel") == "sent",
        consumers=tuple(fields["consumers"].split()),
        result=_json(fields.get("result")),
        truncated=fields.get("truncated") == "1",
        error=_json(fields.get("failure")),
    )


def _json(text: str | None) -> dict[str, Any] | None:
    return json.loads(text) if text else None


def read_claimed(token: int, late_ms: int, stored: Mapping[str, str], seal: Seal) -> Claimed:
    """The claim of these fields; raises as `read_tracked`."""
    task = read_tracked(stored, seal)
    texts = seal.open_all(
        task.task_id, {name: text for name, text in stored.items() if name == "args" or name.startswith("a:")}
    )
    return Claimed(
        task=task,
        token=token,
        late_ms=late_ms,
        pace_ms=int(stored.get("pace") or 0),
        key=stored["key"],
        arguments=_json(texts.pop("args", None)) or {},
        answers={name[2:]: json.loads(text) for name, text in texts.items()},
        handled=frozenset(name[2:] for name in stored if name.startswith("s:") and f"q:{name[2:]}" not in stored),
        to_cancel=stored.get("cancel") == "1",
    )


def read_event(stored: Mapping[str, str], news: str) -> tuple[Event, int]:
    """The event that the record's fields and "revision kind" make, and its revision."""
    revision, kind = news.split(" ")
    event = Event(
        event_id=f"{stored['id']}:{revision}",
        kind=EventKind(kind),
        task_id=stored["id"],
        server=stored["server"],
        tool=stored["tool"],
        owner=stored["owner"],
    )
    return event, int(revision)


def read_delivery(consumer: str, token: int, news: str, failed: int, stored: Mapping[str, str], seal: Seal) -> Delivery:
    """What `take` handed out; raises as `read_tracked`."""
    event, revision = read_event(stored, news)
    task = read_tracked(stored, seal)
    return Delivery(event=event, consumer=consumer, task=task, token=token, revision=revision, failed=failed)


def read_letter(consumer: str, at_ms: int, stored: Mapping[str, str]) -> DeadLetter | None:
    """The dead letter of these fields; None where its event is gone."""
    if f"e:{consumer}" not in stored:
        return None
    event, _ = read_event(stored, stored[f"e:{consumer}"])
    attempts, why = int(stored.get(f"t:{consumer}", 0)), stored.get(f"x:{consumer}", "")
    return DeadLetter(event=event, consumer=consumer, at_ms=at_ms, attempts=attempts, why=why)
