"""Turns what Redis holds into the model's values, and says so when it cannot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from mcptasks.errors import SchemaTooNew, Sealed
from mcptasks.model import SCHEMA_VERSION, Claim, Guard, Journal, Reason, Record, Status, Submission, label
from mcptasks.progress import Progress
from mcptasks.store.seal import Seal, is_sealed
from mcptasks.strict_json import dumps

#: Fields of the record that hold what a person or a tool said, open questions besides.
_SAID: Final = frozenset({"msg", "result", "error"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedClaim(Claim):
    """A claim of a task of which this process cannot open what is stored: it has no submission, and can only wait."""

    why: str


def pairs(flat: Sequence[str]) -> dict[str, str]:
    """HGETALL's reply as a script returns it: names and values in turn."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def newer(task_id: str, schema: str) -> SchemaTooNew:
    """The error for a record of that version."""
    return SchemaTooNew(
        f"Task {label(task_id)} was written by a newer mcptasks (schema {schema}, this one reads {SCHEMA_VERSION}). "
        "It is left untouched; upgrade this process."
    )


def with_payload(stored: Mapping[str, str], payload: str | None) -> dict[str, str]:
    """The record's hash fields, and as one more of them the result or error that stands beside an ended one."""
    if payload is None:
        return dict(stored)
    return {**stored, "error" if stored["status"] == Status.FAILED else "result": payload}


def read_record(stored: Mapping[str, str], seal: Seal) -> Record:
    """The record of these fields.

    Raises:
        SchemaTooNew: a newer mcptasks wrote it.
        Sealed: something of it is sealed with a key that is not here.
    """
    if int(stored["v"]) > SCHEMA_VERSION:
        raise newer(stored["id"], stored["v"])
    said = {name: text for name, text in stored.items() if name in _SAID or name.startswith("q:")}
    fields = {**stored, **seal.open_all(stored["id"], said)}
    status = Status(fields["status"])
    questions = {name[2:]: json.loads(text) for name, text in fields.items() if name.startswith("q:")}
    return Record(
        task_id=fields["id"],
        tool=fields["tool"],
        owner=fields["owner"],
        status=status,
        reason=Reason(fields["reason"]) if "reason" in fields else None,
        status_message=fields.get("msg") or None,
        progress=read_progress(fields),
        created_ms=int(fields["created"]),
        started_ms=int(fields["started"]) if "started" in fields else None,
        updated_ms=int(fields["updated"]),
        ttl_ms=int(fields["ttl"]) if fields["ttl"] else None,
        poll_ms=int(fields["poll_parked" if questions else "poll"]),
        revision=int(fields["rev"]),
        token=int(fields["token"]),
        attempt=int(fields["attempt"]),
        max_attempts=int(fields["max_attempts"]),
        cancel_requested=fields.get("cancel") == "1",
        worker=fields.get("worker") or None,
        ran_on=fields.get("worker") or fields.get("ran") or None,
        queue=fields["queue"],
        hard_limit_ms=int(fields["hard_limit"]) if fields["hard_limit"] else None,
        questions=questions,
        answer_by_ms={name[2:]: int(text.split(" ")[0]) for name, text in fields.items() if name.startswith("d:")},
        artifacts="artifacts" in fields,
        version=fields.get("version", ""),
        result=json.loads(fields["result"]) if "result" in fields else None,
        error=json.loads(fields["error"]) if "error" in fields else None,
    )


def read_progress(fields: Mapping[str, str]) -> Progress | None:
    """What these fields of a record say of its progress."""
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


def read_journal(task_id: str, stored: Mapping[str, str], seal: Seal) -> Journal:
    """The journal of these hash fields.

    Raises:
        Sealed: something of it is sealed with a key that is not here.
    """
    fields = seal.open_all(task_id, stored)
    guard = json.loads(fields["mrtr"]) if fields.get("mrtr") else None
    return Journal(
        asked={
            name[2:]: read_note(task_id, name, note, seal) for name, note in fields.items() if name.startswith("k:")
        },
        answers={name[2:]: json.loads(text) for name, text in fields.items() if name.startswith("a:")},
        steps={name[2:]: json.loads(text) for name, text in fields.items() if name.startswith("s:")},
        timers={name[2:]: text for name, text in fields.items() if name.startswith("t:")},
        guard=None if guard is None else Guard(**guard),
        parked=fields.get("trace", ""),
    )


def seal_note(task_id: str, name: str, note: str, seal: Seal) -> str:
    """A question's note as it is to be stored in that field: its first word, which a script compares, stays plain."""
    digest, space, rest = note.partition(" ")
    return f"{digest}{space}{seal.seal(task_id, name, rest)}"


def read_note(task_id: str, name: str, stored: str, seal: Seal) -> str:
    """The note that `seal_note` made this of."""
    digest, space, rest = stored.partition(" ")
    return f"{digest}{space}{seal.open(task_id, name, rest)}"


def seal_guard(task_id: str, guard: Guard, seal: Seal) -> str:
    """The multi-round state as it is to be stored."""
    return seal.seal(task_id, "mrtr", dumps(asdict(guard), "The request state"))


def read_claim(record: Sequence[str], call: str, journal: Sequence[str], seal: Seal) -> Claim:
    """What claim.lua returned."""
    return claim_of(pairs(record), call, pairs(journal), seal)


def claim_of(fields: Mapping[str, str], call: str, journal: Mapping[str, str], seal: Seal) -> Claim:
    """The claim of these stored values: a locked one where something is sealed with a key that is not here.

    A call that is missing or unreadable makes one without a submission.
    """
    task_id = fields["id"]
    moment: Any = {
        "progress": float(fields["progress"]) if fields.get("progress") else None,
        "at_ms": int(fields["started"]),
    }
    try:
        record, told = read_record(fields, seal), read_journal(task_id, journal, seal)
        submission = read_submission(seal.open(task_id, "call", call))
        return Claim(record=record, submission=submission, journal=told, **moment)
    except Sealed as exc:
        record = read_record({name: text for name, text in fields.items() if not is_sealed(text)}, seal)
        return LockedClaim(record=record, submission=None, journal=Journal(), why=str(exc), **moment)


def read_submission(call: str) -> Submission | None:
    """The stored call; None: it is missing or unreadable."""
    try:
        loaded: dict[str, Any] = json.loads(call)
        return Submission(**loaded)
    except (ValueError, TypeError):
        return None
