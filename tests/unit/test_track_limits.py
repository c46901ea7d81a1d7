"""What a server says of its task is judged before any of it is stored."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from mcptasks.tracker.intervals import INPUT_MS
from mcptasks.tracker.limits import PAYLOAD_MAX, TEXT_MAX, judged, lost
from mcptasks.tracker.model import End, Observation, TrackStatus
from mcptasks.tracker.remote import RemoteStatus, Snapshot
from tests.requirements import covers

MAX = 1_000
ASK: dict[str, Any] = {"method": "elicitation/create", "params": {"message": "Sure?"}}


def judge(status: RemoteStatus, **said: Any) -> Observation:
    """The snapshot, judged."""
    return judged(Snapshot(status=status, **said), result_max=MAX)


def result(text: str) -> dict[str, Any]:
    """A tool's result with this text."""
    return {"content": [{"type": "text", "text": text}], "isError": False}


def test_a_working_task_is_due_again_when_its_server_says() -> None:
    """D2."""
    seen = judge(RemoteStatus.WORKING, hint=30_000, message="at it")
    assert (seen.status, seen.next_ms, seen.pace_ms, seen.message) == (TrackStatus.WORKING, 30_000, 30_000, "at it")


@covers("D2")
def test_questions_make_it_wait_for_a_person() -> None:
    """A minute between polls at least, and the pace stays known for when it works again."""
    seen = judge(RemoteStatus.INPUT_REQUIRED, hint=2_000, questions={"k": ASK})
    assert (seen.status, seen.next_ms, seen.pace_ms) == (TrackStatus.INPUT_REQUIRED, INPUT_MS, 2_000)
    assert seen.questions == {"k": ASK}


def test_a_task_that_shows_only_what_was_answered_waits_for_nobody() -> None:
    """D06: a server may show a key for a while after its answer; it is looked at in its own pace."""
    snapshot = Snapshot(status=RemoteStatus.INPUT_REQUIRED, questions={"k": ASK}, hint=2_000)
    seen = judged(snapshot, result_max=MAX, answered=frozenset({"k"}))
    assert (seen.status, seen.next_ms) == (TrackStatus.WORKING, 2_000)


@covers("D3")
@pytest.mark.parametrize("over", [0, 1])
def test_questions_over_the_limit_fail_the_task_and_are_not_stored(over: int) -> None:
    """Exactly 65,536 bytes pass."""
    empty = len(json.dumps({"k": {"method": "m", "params": {"message": ""}}}, separators=(",", ":")))
    asked = {"k": {"method": "m", "params": {"message": "x" * (PAYLOAD_MAX - empty + over)}}}
    seen = judge(RemoteStatus.INPUT_REQUIRED, questions=asked)
    assert (seen.status, seen.reason) == (
        (TrackStatus.FAILED, End.PROTOCOL) if over else (TrackStatus.INPUT_REQUIRED, None)
    )
    assert bool(seen.questions) == (not over)


@covers("D3")
def test_texts_are_cut() -> None:
    """At 4,000 characters, also where the error says them."""
    assert judge(RemoteStatus.WORKING, message="x" * 5_000).message == "x" * TEXT_MAX
    failed = judge(RemoteStatus.FAILED, error={"code": -1, "message": "y" * 5_000})
    assert (failed.status, failed.reason, failed.message) == (TrackStatus.FAILED, End.FAILED, "y" * TEXT_MAX)
    assert failed.error == {"code": -1, "message": "y" * TEXT_MAX}


def test_small_data_of_an_error_is_kept_and_large_data_is_not() -> None:
    """The code and the message are what people act on."""
    kept = judge(RemoteStatus.FAILED, error={"code": -1, "message": "no", "data": {"a": 1}})
    assert kept.error == {"code": -1, "message": "no", "data": {"a": 1}}
    dropped = judge(RemoteStatus.FAILED, error={"code": -1, "message": "no", "data": "x" * PAYLOAD_MAX})
    assert dropped.error == {"code": -1, "message": "no"}


def test_a_result_within_the_limit_is_stored_as_it_is() -> None:
    """Every field of it."""
    whole = {**result("fine"), "structuredContent": {"n": 1.0}, "_meta": {"x": []}}
    seen = judge(RemoteStatus.COMPLETED, result=whole)
    assert (seen.status, seen.reason, seen.result, seen.truncated) == (
        TrackStatus.COMPLETED,
        End.COMPLETED,
        whole,
        False,
    )


@covers("D3")
@pytest.mark.parametrize("text", ["x" * 5_000, "\N{GRINNING FACE}" * 5_000], ids=["ascii", "emoji"])
def test_a_result_over_the_limit_becomes_a_preview_that_says_so(text: str) -> None:
    """Whole JSON, never a torn one; the beginning of its text, and how large it was."""
    seen = judge(RemoteStatus.COMPLETED, result={**result(text), "structuredContent": {"big": text}})
    assert seen.truncated
    assert seen.result is not None
    assert seen.result.keys() == {"content", "isError"}
    beginning, note = (item["text"] for item in seen.result["content"])
    assert text.startswith(beginning) and beginning
    assert "preview" in note
    assert len(json.dumps(seen.result)) <= MAX + 300


@covers("D3")
def test_a_reference_to_an_artifact_over_the_limit_fails_the_task() -> None:
    """D3: it is not stored."""
    link = {"type": "resource_link", "name": "a", "uri": "x" * PAYLOAD_MAX}
    seen = judged(Snapshot(status=RemoteStatus.COMPLETED, result={"content": [link]}), result_max=10**9)
    assert (seen.status, seen.reason, seen.result) == (TrackStatus.FAILED, End.PROTOCOL, None)


@covers("D3")
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf], ids=str)
def test_numbers_that_json_has_not_are_protocol_errors(number: float) -> None:
    """In a result, in a question, in an error."""
    for seen in (
        judge(RemoteStatus.COMPLETED, result={"content": [], "structuredContent": {"n": number}}),
        judge(RemoteStatus.INPUT_REQUIRED, questions={"k": {"method": "m", "params": {"n": number}}}),
        judge(RemoteStatus.FAILED, error={"code": -1, "message": "no", "data": number}),
    ):
        assert (seen.status, seen.reason) == (TrackStatus.FAILED, End.PROTOCOL)


def test_nesting_without_end_is_a_protocol_error() -> None:
    """Nothing recurses into it."""
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"d": deep}
    assert judge(RemoteStatus.COMPLETED, result=deep).reason is End.PROTOCOL
    assert judge(RemoteStatus.INPUT_REQUIRED, questions={"k": deep}).reason is End.PROTOCOL


@pytest.mark.parametrize("status", [RemoteStatus.COMPLETED, RemoteStatus.FAILED], ids=str)
def test_an_end_without_its_payload_is_a_protocol_error(status: RemoteStatus) -> None:
    """Completed with nothing is no result."""
    assert judge(status).reason is End.PROTOCOL


def test_a_lone_surrogate_costs_one_character() -> None:
    """What UTF-8 cannot carry would fail the write, and with it the poll, for ever."""
    seen = judge(RemoteStatus.COMPLETED, result=result("a\ud800b"), message="\udfff!")
    assert seen.result == result("a\ufffdb")
    assert seen.message == "\ufffd!"


def test_a_forgotten_task_is_lost_and_after_a_cancel_it_is_cancelled() -> None:
    """D03: an answer about the task ends the tracking."""
    assert (lost(cancelled=False).status, lost(cancelled=False).reason) == (TrackStatus.FAILED, End.LOST)
    assert (lost(cancelled=True).status, lost(cancelled=True).reason) == (TrackStatus.CANCELLED, End.LOST)
