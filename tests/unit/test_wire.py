"""The Tasks extension on the wire: JSON that every parser reads, and exactly the members of each status (SEP-2663)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcptasks import wire
from mcptasks.errors import BadPayload
from mcptasks.model import Question, Record, Status
from mcptasks.progress import Progress
from mcptasks.strict_json import MAX_DEPTH, clean, dumps
from tests.requirements import covers

# ------------------------------------------------------------------------------------------------ JSON

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=20,
)
SURROGATES = st.text(st.characters(categories=["Cs", "L"]))


def nested(depth: int) -> Any:
    """A value in so many lists and objects."""
    value: Any = 1
    for n in range(depth):
        value = [value] if n % 2 else {"a": value}
    return value


@covers("F05")
@given(JSON)
def test_json_comes_back_as_it_was(value: Any) -> None:
    """F05: types, digits and the sign of nought."""
    text = dumps(value, "It")
    assert text.isascii()
    assert repr(json.loads(text)) == repr(value)


@covers("F03")
@given(SURROGATES)
def test_lone_surrogates_have_a_spelling(value: str) -> None:
    """F03: what UTF-8 cannot carry, an escape can."""
    text = dumps(value, "It")
    assert text.isascii()
    # A high and a low half side by side are one character to every JSON parser, Python's own included.
    assert json.loads(text) == value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


@covers("F01", "F09")
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "NaN and Infinity do not exist in JSON"),
        ({"a": [float("inf")]}, "NaN and Infinity do not exist in JSON"),
        ([-float("inf")], "NaN and Infinity do not exist in JSON"),
        (10**5000, "4300 digits"),
        ({1, 2}, "Object of type set is not JSON serializable"),
        ({"a": object()}, "Object of type object is not JSON serializable"),
        ({(1, 2): 3}, "keys must be str"),
    ],
    ids=["NaN", "Infinity", "-Infinity", "5000 digits", "set", "object", "tuple key"],
)
def test_what_is_not_json_is_refused_by_name(value: Any, why: str) -> None:
    """F01, F09: never a bare NaN on any byte stream; the message says what, not which value."""
    with pytest.raises(BadPayload, match=f"The result is not JSON: .*{why}"):
        dumps(value, "The result")


def test_nesting_has_a_limit_that_no_depth_can_crash() -> None:
    """Issue 2: 5,000-deep JSON gets a clear error; Python's own parser gives up near 1,000."""
    assert json.loads(dumps(nested(MAX_DEPTH), "It")) == nested(MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 5_000, 100_000):
        with pytest.raises(BadPayload, match="It nests deeper than 200 levels"):
            dumps(nested(depth), "It")


def test_a_list_that_holds_itself_is_refused() -> None:
    """It nests for ever."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(BadPayload, match="deeper than 200 levels"):
        dumps(loop, "It")


@covers("F03")
@given(st.recursive(SURROGATES | st.integers(), lambda c: st.lists(c) | st.dictionaries(SURROGATES, c), max_leaves=10))
def test_a_clean_value_is_valid_utf_8_and_otherwise_the_same(value: Any) -> None:
    """F03: one bad character costs one character."""
    text = json.dumps(clean(value), ensure_ascii=False)
    assert text.encode()
    expected = json.dumps(value, ensure_ascii=False)
    assert text == "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in expected) or len(
        clean(value)
    ) < len(value), "keys that became equal"


# ------------------------------------------------------------------------------------------------ shapes

RECORD = Record(
    task_id="t1",
    tool="report",
    owner="ann",
    status=Status.RUNNING,
    created_ms=1_785_000_000_000,
    updated_ms=1_785_000_000_250,
    ttl_ms=60_000,
    poll_ms=1_000,
    revision=3,
    token=1,
    attempt=1,
    worker="w1",
    cancel_requested=True,
)
TASK = {
    "taskId": "t1",
    "createdAt": "2026-07-25T17:20:00.000Z",
    "lastUpdatedAt": "2026-07-25T17:20:00.250Z",
    "ttlMs": 60_000,
    "pollIntervalMs": 1_000,
}
ASKS = {"questions": {"k": {"n": 1}}}


@covers("P10", "P11")
def test_a_created_task_is_flat_and_carries_no_payload() -> None:
    """SEP-2663, CreateTaskResult. Owner, worker and tokens are nobody's business."""
    assert wire.created(RECORD) == {"resultType": "task", "status": "working", **TASK}


@covers("P12", "P14", "C05")
@pytest.mark.parametrize(
    ("changed", "status", "payload"),
    [
        ({"status": Status.QUEUED, "questions": {}}, "working", {}),
        ({"status": Status.RUNNING, "questions": {}}, "working", {}),
        ({"status": Status.RETRYING, "questions": {}}, "working", {}),
        ({"status": Status.SLEEPING, "questions": {}}, "working", {}),
        ({"status": Status.PARKED, **ASKS}, "input_required", {"inputRequests": ASKS["questions"]}),
        # A timer set it going while the person still thinks.
        ({"status": Status.QUEUED, **ASKS}, "input_required", {"inputRequests": ASKS["questions"]}),
        ({"status": Status.RUNNING, **ASKS}, "input_required", {"inputRequests": ASKS["questions"]}),
        ({"status": Status.COMPLETED, "result": {"content": []}}, "completed", {"result": {"content": []}}),
        ({"status": Status.FAILED, "error": {"code": 1}}, "failed", {"error": {"code": 1}}),
        ({"status": Status.CANCELLED}, "cancelled", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_task_has_exactly_the_payload_of_its_status(
    changed: dict[str, Any], status: str, payload: dict[str, Any]
) -> None:
    """SEP-2663, GetTaskResult; what another status left in the record does not show."""
    leftovers: dict[str, Any] = {"questions": {"old": {}}, "result": {"old": 1}, "error": {"old": 1}}
    record = replace(RECORD, **(leftovers | changed))
    assert wire.detailed(record, record.questions) == {"resultType": "complete", "status": status, **TASK, **payload}


@covers("P11", "P33")
def test_an_unlimited_task_says_null_and_an_absent_message_says_nothing() -> None:
    """SEP-2663: ttlMs is required and may be null; optional members are absent, never null."""
    unlimited = wire.detailed(replace(RECORD, ttl_ms=None), {})
    assert unlimited["ttlMs"] is None
    assert "statusMessage" not in unlimited
    assert "statusMessage" not in wire.detailed(replace(RECORD, status_message=""), {})
    assert wire.created(replace(RECORD, status_message="Half"))["statusMessage"] == "Half"


PROGRESS = Progress(40, 120, "Indexing", rate=0.5, at_ms=1_785_000_000_250)
TOLD = {"progress": 40, "total": 120, "message": "Indexing", "reportedAt": "2026-07-25T17:20:00.250Z"}


@covers("R4", "P11")
@pytest.mark.parametrize(
    ("changed", "message", "told"),
    [
        ({}, "Indexing: 40 of 120 (33 %), about 3 min left", TOLD | {"ratePerSecond": 0.5}),
        ({"progress": replace(PROGRESS, rate=None)}, "Indexing: 40 of 120 (33 %)", TOLD),
        # Who waits for a person, or has ended, is not about to get anywhere.
        ({"status": Status.PARKED}, "Indexing: 40 of 120 (33 %)", TOLD),
        ({"status": Status.COMPLETED}, "Indexing: 40 of 120 (33 %)", TOLD),
        (ASKS, "Indexing: 40 of 120 (33 %)", TOLD),
        ({"progress": Progress(3)}, "Indexing: 40 of 120 (33 %)", {"progress": 3}),
        ({"progress": None}, "Indexing: 40 of 120 (33 %)", None),
    ],
    ids=["running", "too early to tell", "parked", "ended", "asks while it runs", "a count", "none"],
)
def test_progress_is_told_in_words_and_in_numbers(
    changed: dict[str, Any], message: str, told: dict[str, Any] | None
) -> None:
    """SEP-2663 has `statusMessage`; the numbers stand in `_meta`, under a key of our own."""
    record = replace(RECORD, **({"progress": PROGRESS, "status_message": PROGRESS.text} | changed))
    for shape in (wire.created(record), wire.detailed(record, record.questions)):
        assert shape["statusMessage"] == message
        assert shape.get("_meta") == (None if told is None else {"mcptasks/progress": told})
    pushed = wire.pushed(record, record.questions, 7)["_meta"]
    assert pushed.get("mcptasks/progress") == told and pushed["io.modelcontextprotocol/subscriptionId"] == 7
    read = wire.DetailedTask.model_validate(wire.detailed(record, record.questions), by_name=False)
    progress = record.progress
    assert read.progress == (progress and replace(progress, rate=(told or {}).get("ratePerSecond")))


@pytest.mark.parametrize(
    "meta",
    [
        None,
        {},
        {"mcptasks/progress": None},
        {"mcptasks/progress": [1]},
        {"mcptasks/progress": {}},
        {"mcptasks/progress": {"progress": "1"}},
        {"mcptasks/progress": {"progress": True}},
        {"mcptasks/progress": {"progress": float("nan")}},
        {"mcptasks/progress": {"progress": 10**400}},
    ],
    ids=str,
)
def test_what_another_server_calls_progress_costs_nobody_the_task(meta: dict[str, Any] | None) -> None:
    """A client reads whatever it is sent."""
    read = wire.DetailedTask.model_validate(wire.detailed(RECORD, {}) | {"_meta": meta}, by_name=False)
    assert read.progress is None


def test_of_what_another_server_tells_the_usable_part_is_used() -> None:
    """An odd total or time does not spoil the number beside it."""
    told = {"progress": 1, "total": "9", "message": 3, "ratePerSecond": float("inf"), "reportedAt": "noon"}
    meta = {"_meta": {"mcptasks/progress": told}}
    read = wire.DetailedTask.model_validate(wire.detailed(RECORD, {}) | meta, by_name=False)
    assert read.progress == Progress(1)


def test_every_status_has_its_word_on_the_wire() -> None:
    """A new one must not be forgotten here."""
    assert {wire.detailed(replace(RECORD, status=status), {})["status"] for status in Status} == {
        "working",
        "input_required",
        "completed",
        "failed",
        "cancelled",
    }


@covers("P13")
def test_an_acknowledgement_is_empty_and_complete() -> None:
    """SEP-2663: no task fields."""
    assert wire.complete() == {"resultType": "complete"}


def test_a_question_goes_out_as_it_was_asked() -> None:
    """Also when it has no parameters."""
    assert Question(key="k", method="roots/list", params={}).request == {
        "method": "roots/list",
        "params": {},
    }


# ------------------------------------------------------------------------------------------------ the client's side


@pytest.mark.parametrize("shape", [wire.created(RECORD), wire.detailed(RECORD, {})], ids=["create", "get"])
def test_the_client_reads_what_the_server_sends(shape: dict[str, Any]) -> None:
    """Both ends of one wire."""
    model = wire.CreateTaskResult if shape["resultType"] == "task" else wire.DetailedTask
    read = model.model_validate(shape, by_name=False)
    assert (read.task_id, read.status, read.ttl_ms, read.poll_interval_ms) == ("t1", "working", 60_000, 1_000)


@pytest.mark.parametrize(
    ("request_type", "params", "sent"),
    [
        (wire.GetTask, wire.TaskIdParams(task_id="t1"), {"taskId": "t1"}),
        (wire.CancelTask, wire.TaskIdParams(task_id="t1"), {"taskId": "t1"}),
        (
            wire.UpdateTask,
            wire.UpdateParams(task_id="t1", input_responses={"k": {"action": "accept"}}),
            {"taskId": "t1", "inputResponses": {"k": {"action": "accept"}}},
        ),
    ],
    ids=["tasks/get", "tasks/cancel", "tasks/update"],
)
def test_a_request_has_the_wires_names_and_mirrors_its_task_in_the_header(
    request_type: Any, params: Any, sent: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """SEP-2663; the SDK's client sends `Mcp-Name` from `name_param`."""
    dumped = request_type(params=params).model_dump(by_alias=True, mode="json", exclude_none=True)
    assert dumped == {"method": request.node.callspec.id, "params": sent}
    assert request_type.name_param == "taskId"
