"""Judges what a server said of its task before any of it is stored: shape, size, depth, numbers. Pure."""

from __future__ import annotations

from typing import Any, Final, cast

from mcptasks.errors import BadPayload
from mcptasks.strict_json import clean, dumps
from mcptasks.tracker.intervals import Pace, after_look, pace
from mcptasks.tracker.model import End, Observation, TrackStatus
from mcptasks.tracker.remote import RemoteStatus, Snapshot

#: Characters of a text that a server or an error says (D3).
TEXT_MAX: Final = 4_000
#: Bytes of all open questions together, and of one artifact reference (D3).
PAYLOAD_MAX: Final = 65_536


def cut(text: str) -> str:
    """The text's first 4,000 characters, and nothing that UTF-8 cannot carry."""
    return cast("str", clean(text[:TEXT_MAX]))


def judged(snapshot: Snapshot, *, result_max: int, answered: frozenset[str] = frozenset()) -> Observation:
    """What is to be stored of the snapshot: within all limits, or a failure that says which one it broke.

    `answered`: keys whose answers are delivered; a task that shows only these waits for nobody.
    """
    at = pace(snapshot.hint)
    message = cut(snapshot.message or "")
    try:
        match snapshot.status:
            case RemoteStatus.COMPLETED:
                return _completed(snapshot, message, result_max)
            case RemoteStatus.FAILED:
                error = _error(snapshot.error)
                return _ended(TrackStatus.FAILED, End.FAILED, message or cut(str(error["message"])), error=error)
            case RemoteStatus.CANCELLED:
                return _ended(TrackStatus.CANCELLED, End.CANCELLED, message)
            case RemoteStatus.WORKING | RemoteStatus.INPUT_REQUIRED:
                return _live(snapshot, message, at, answered)
    except BadPayload as exc:
        return broken(str(exc))


def broken(why: str) -> Observation:
    """The task has failed, because its server does not keep to the protocol."""
    return _ended(TrackStatus.FAILED, End.PROTOCOL, cut(f"Protocol error: {why}"))


def lost(*, cancelled: bool) -> Observation:
    """The server knows its task no more. `cancelled`: it was told to cancel it, so that is what has happened."""
    if cancelled:
        return _ended(TrackStatus.CANCELLED, End.LOST, "Cancelled; the server knows the task no more")
    return _ended(
        TrackStatus.FAILED, End.LOST, "The server knows no such task: it has forgotten it, or its time was up"
    )


def _live(snapshot: Snapshot, message: str, at: Pace, answered: frozenset[str]) -> Observation:
    questions = dict(snapshot.questions) if snapshot.status is RemoteStatus.INPUT_REQUIRED else {}
    size = len(dumps(questions, "The questions"))
    if size > PAYLOAD_MAX:
        return broken(f"its open questions have {size:,} bytes; the limit is {PAYLOAD_MAX:,}")
    asking = bool(questions.keys() - answered)
    return Observation(
        status=TrackStatus.INPUT_REQUIRED if asking else TrackStatus.WORKING,
        message=message,
        questions=clean(questions),
        pace_ms=at.ms,
        next_ms=after_look(at.ms, asking=asking),
    )


def _completed(snapshot: Snapshot, message: str, result_max: int) -> Observation:
    if snapshot.result is None:
        return broken("the task is completed, and there is no result")
    result = cast("dict[str, Any]", clean(_checked(snapshot.result)))
    size = len(dumps(result, "The result"))
    for item in _items(result):
        if item.get("type") == "resource_link" and len(dumps(item, "The artifact reference")) > PAYLOAD_MAX:
            return broken(f"a reference to an artifact is over {PAYLOAD_MAX:,} bytes")
    truncated = size > result_max
    if truncated:
        result = _preview(result, size, result_max)
    return _ended(TrackStatus.COMPLETED, End.COMPLETED, message, result=result, truncated=truncated)


def _checked(value: dict[str, Any]) -> dict[str, Any]:
    dumps(value, "The result")  # deep nesting, NaN: before anything recurses into it
    return value


def _items(result: dict[str, Any]) -> list[dict[str, Any]]:
    content = result.get("content")
    return [item for item in cast("list[Any]", content) if isinstance(item, dict)] if isinstance(content, list) else []


def _preview(result: dict[str, Any], size: int, room: int) -> dict[str, Any]:
    """The beginning of the result's texts, in a result that is whole JSON and says what it is."""
    note = f"[preview: the result has {size:,} bytes, over the limit of {room:,}; the rest was not stored]"
    text = "\n".join(str(item["text"]) for item in _items(result) if item.get("type") == "text" and "text" in item)
    # ASCII JSON spells a character with up to twelve bytes.
    text = text[: max(0, room // 12)]
    content = [{"type": "text", "text": part} for part in (text, note) if part]
    return {"content": content, "isError": bool(result.get("isError", False))}


def _error(error: dict[str, Any] | None) -> dict[str, Any]:
    if error is None:
        raise BadPayload("the task has failed, and there is no error")
    dumps(error, "The error")
    kept: dict[str, Any] = {"code": error.get("code"), "message": cut(str(error.get("message", "")))}
    if "data" in error and len(dumps(error["data"], "The error")) <= PAYLOAD_MAX:
        kept["data"] = clean(error["data"])
    return kept


def _ended(
    status: TrackStatus,
    reason: End,
    message: str,
    *,
    result: dict[str, Any] | None = None,
    truncated: bool = False,
    error: dict[str, Any] | None = None,
) -> Observation:
    return Observation(
        status=status,
        reason=reason,
        message=message,
        result=result,
        truncated=truncated,
        error=error,
        pace_ms=0,
        next_ms=0,
    )
