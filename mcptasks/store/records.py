"""Turns what Redis holds into the model's values, and says so when it cannot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mcptasks.errors import SchemaTooNew
from mcptasks.model import SCHEMA_VERSION, Claim, Guard, Journal, Reason, Record, Status, Submission, label
from mcptasks.progress import Progress


def pairs(flat: Sequence[str]) -> dict[str, str]:
    """HGETALL's reply as a script returns it: names and values in turn."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def read_record(fields: Mapping[str, str]) -> Record:
    """The record of these hash fields.

    Raises:
        SchemaTooNew: a newer mcptasks wrote it.
    """
    if int(fields["v"]) > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"Task {label(fields['id'])} was written by a newer mcptasks (schema {fields['v']}, this one reads "
            f"{SCHEMA_VERSION}). It is left untouched; upgrade this process."
        )
    status = Status(fields["status"])
    questions = {name[2:]: json.loads(text) for name, text in fields.items() if name.startswith("q:")}
    return Record(
        task_id=fields["id"],
        tool=fields["tool"],
        owner=fields["owner"],
        status=status,
        reason=Reason(fields["reason"]) if "reason" in fields else None,
        status_message=fields.get("msg") or None,
        progress=_progress(fields),
        created_ms=int(fields["created"]),
        updated_ms=int(fields["updated"]),
        ttl_ms=int(fields["ttl"]) if fields["ttl"] else None,
        poll_ms=int(fields["poll_parked" if questions else "poll"]),
        revision=int(fields["rev"]),
        token=int(fields["token"]),
        attempt=int(fields["attempt"]),
        max_attempts=int(fields["max_attempts"]),
        cancel_requested=fields.get("cancel") == "1",
        worker=fields.get("worker") or None,
        queue=fields["queue"],
        hard_limit_ms=int(fields["hard_limit"]) if fields["hard_limit"] else None,
        questions=questions,
        answer_by_ms={name[2:]: int(text.split(" ")[0]) for name, text in fields.items() if name.startswith("d:")},
        version=fields.get("version", ""),
        result=json.loads(fields["result"]) if "result" in fields else None,
        error=json.loads(fields["error"]) if "error" in fields else None,
    )


def _progress(fields: Mapping[str, str]) -> Progress | None:
    if not fields.get("progress"):
        return None
    total, rate, at_ms = fields.get("total"), fields.get("rate"), fields.get("progressed")
    return Progress.of(
        float(fields["progress"]),
        float(total) if total else None,
        fields.get("msg"),
        rate=float(rate) if rate else None,
        at_ms=int(at_ms) if at_ms else None,
    )


def read_journal(fields: Mapping[str, str]) -> Journal:
    """The journal of these hash fields."""
    guard = json.loads(fields["mrtr"]) if fields.get("mrtr") else None
    return Journal(
        asked={name[2:]: note for name, note in fields.items() if name.startswith("k:")},
        answers={name[2:]: json.loads(text) for name, text in fields.items() if name.startswith("a:")},
        steps={name[2:]: json.loads(text) for name, text in fields.items() if name.startswith("s:")},
        timers={name[2:]: text for name, text in fields.items() if name.startswith("t:")},
        guard=None if guard is None else Guard(**guard),
    )


def read_claim(record: Sequence[str], call: str, journal: Sequence[str]) -> Claim:
    """What claim.lua returned."""
    return claim_of(pairs(record), call, pairs(journal))


def claim_of(fields: Mapping[str, str], call: str, journal: Mapping[str, str]) -> Claim:
    """The claim of these stored values. A call that is missing or unreadable makes one without a submission."""
    return Claim(
        record=read_record(fields),
        submission=_submission(call),
        journal=read_journal(journal),
        progress=float(fields["progress"]) if fields.get("progress") else None,
        at_ms=int(fields["started"]),
    )


def _submission(call: str) -> Submission | None:
    try:
        loaded: dict[str, Any] = json.loads(call)
        return Submission(**loaded)
    except (ValueError, TypeError):
        return None
