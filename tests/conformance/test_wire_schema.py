"""Our schema accepts what the spec shows and refuses what it forbids; a validator that cannot fail proves nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.wire_schema import Kind, validate

TASK: dict[str, Any] = {
    "taskId": "786512e2-9e0d-44bd-8f29-789f320fe840",
    "createdAt": "2026-08-25T10:30:00Z",
    "lastUpdatedAt": "2026-08-25T10:40:00.125+00:00",
    "ttlMs": 60_000,
}
STAMP = {"_meta": {"io.modelcontextprotocol/serverInfo": {"name": "reports", "version": "1"}}}
QUESTION: dict[str, Any] = {
    "method": "elicitation/create",
    "params": {
        "message": "Delete it?",
        "requestedSchema": {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]},
    },
}
RESULT: dict[str, Any] = {"resultType": "complete", "content": [{"type": "text", "text": "done"}], "isError": False}
ERROR: dict[str, Any] = {"code": -32603, "message": "the job broke", "data": {"job": 1}}

CREATE: dict[str, Any] = {"resultType": "task", "status": "working", **TASK}
WORKING: dict[str, Any] = {"resultType": "complete", "status": "working", **TASK}
PARKED: dict[str, Any] = {**WORKING, "status": "input_required", "inputRequests": {"a": QUESTION}}
COMPLETED: dict[str, Any] = {**WORKING, "status": "completed", "result": RESULT}
FAILED: dict[str, Any] = {**WORKING, "status": "failed", "error": ERROR}
CANCELLED: dict[str, Any] = {**WORKING, "status": "cancelled"}
EMPTY: dict[str, Any] = {"resultType": "complete"}
TOLD = {"progress": 1.5, "total": 3, "message": "x", "ratePerSecond": 0.5, "reportedAt": "2026-08-25T10:30:00.000Z"}
LISTENED: dict[str, Any] = {"_meta": {"io.modelcontextprotocol/subscriptionId": 7}}
PUSH: dict[str, Any] = {"status": "working", **TASK, **LISTENED}
ACKNOWLEDGE: dict[str, Any] = {"notifications": {"taskIds": [TASK["taskId"]]}, **LISTENED}

ROOTS = {"method": "roots/list"}
URL = {"method": "elicitation/create", "params": {"mode": "url", "message": "Sign in", "url": "https://example.org/"}}
SAMPLING = {
    "method": "sampling/createMessage",
    "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}], "maxTokens": 10},
}


def without(document: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != key}


GOOD: list[tuple[Kind, dict[str, Any]]] = [
    ("create", CREATE),
    ("create", {**CREATE, **STAMP}),
    ("create", {**CREATE, "ttlMs": None, "pollIntervalMs": 1, "statusMessage": "under way"}),
    ("create", {**CREATE, "status": "completed"}),
    ("get", WORKING),
    ("get", {**WORKING, **STAMP, "statusMessage": "3 of 7", "pollIntervalMs": 5_000}),
    ("get", {**WORKING, "_meta": {**STAMP["_meta"], "mcptasks/progress": TOLD}}),
    ("get", {**WORKING, "_meta": {"mcptasks/progress": {"progress": 1, "reportedAt": TASK["createdAt"]}}}),
    ("get", PARKED),
    ("get", {**PARKED, "inputRequests": {}}),
    ("get", {**PARKED, "inputRequests": {"a": QUESTION, "b": ROOTS, "c": URL, "d": SAMPLING}}),
    ("get", COMPLETED),
    ("get", {**COMPLETED, "result": {**RESULT, "isError": True, "structuredContent": {"n": None}, "_meta": {"k": 1}}}),
    ("get", FAILED),
    ("get", {**FAILED, "error": {"code": -32021, "message": ""}}),
    ("get", CANCELLED),
    ("update", EMPTY),
    ("update", {**EMPTY, **STAMP}),
    ("cancel", EMPTY),
    ("push", PUSH),
    ("push", {**PUSH, "_meta": {**LISTENED["_meta"], "mcptasks/progress": TOLD}}),
    ("push", {**PUSH, "ttlMs": None, "statusMessage": "3 of 7", "pollIntervalMs": 5_000}),
    *(("push", {**without(state, "resultType"), **LISTENED}) for state in (PARKED, COMPLETED, FAILED, CANCELLED)),
    ("acknowledge", ACKNOWLEDGE),
    ("acknowledge", {**ACKNOWLEDGE, "notifications": {"taskIds": [], "toolsListChanged": True}}),
]

#: How messages of each kind travel.
NOTIFICATIONS = {"push": "notifications/tasks", "acknowledge": "notifications/subscriptions/acknowledged"}


def enveloped(kind: Kind, document: dict[str, Any]) -> dict[str, Any]:
    """The whole JSON-RPC message."""
    if kind in NOTIFICATIONS:
        return {"jsonrpc": "2.0", "method": NOTIFICATIONS[kind], "params": document}
    return {"jsonrpc": "2.0", "id": 1, "result": document}


#: The original schema (ext-tasks e434597) refuses each of these too.
BAD: list[tuple[Kind, dict[str, Any]]] = [
    *(("create", without(CREATE, key)) for key in CREATE),
    *(("get", without(WORKING, key)) for key in WORKING),
    ("create", {**CREATE, "resultType": "complete"}),
    ("create", {**CREATE, "status": "queued"}),
    ("create", {**CREATE, "ttlMs": "60000"}),
    ("create", {**CREATE, "ttlMs": 0.5}),
    ("create", {**CREATE, "ttlMs": 2**53}),
    ("create", {**CREATE, "ttlMs": True}),
    ("create", {**CREATE, "pollIntervalMs": None}),
    ("create", {**CREATE, "statusMessage": None}),
    ("create", {**CREATE, "taskId": 7}),
    ("create", {**CREATE, "createdAt": 1_780_000_000_000}),
    ("get", {**WORKING, "resultType": "task"}),
    ("get", {**WORKING, "status": "input_required"}),
    ("get", {**WORKING, "status": "completed"}),
    ("get", {**WORKING, "status": "failed"}),
    ("get", {**COMPLETED, "result": None}),
    ("get", {**FAILED, "error": {"message": "no code"}}),
    ("get", {**FAILED, "error": {"code": "-32603", "message": "code is text"}}),
    ("get", {**FAILED, "error": {"code": -32603}}),
    ("get", {**PARKED, "inputRequests": {"a": {"method": "tools/call", "params": {}}}}),
    ("get", {**PARKED, "inputRequests": {"a": {"method": "elicitation/create"}}}),
    ("get", {**PARKED, "inputRequests": {"a": {**QUESTION, "params": {"message": "no schema"}}}}),
    ("get", {**PARKED, "inputRequests": {"a": {**SAMPLING, "params": {"messages": []}}}}),
    ("get", {**PARKED, "inputRequests": [QUESTION]}),
    ("update", {}),
    ("update", {"resultType": "task"}),
    ("cancel", {"resultType": None}),
    *(("push", without(PUSH, key)) for key in ("status", *TASK)),
    ("push", {**PUSH, "status": "completed"}),
    ("push", {**PUSH, "ttlMs": 0.5}),
    ("push", {**PUSH, "statusMessage": None}),
    ("acknowledge", {**ACKNOWLEDGE, "notifications": {"taskIds": [7]}}),
    ("acknowledge", {**ACKNOWLEDGE, "notifications": {"taskIds": TASK["taskId"]}}),
]

#: The original leaves its objects open; these break its prose or our own rules (protocol.md P10-P14, P24).
STRICTER: list[tuple[Kind, dict[str, Any]]] = [
    ("create", {**CREATE, "task": TASK}),
    ("create", {**CREATE, "result": RESULT}),
    ("create", {**CREATE, "error": ERROR}),
    ("create", {**CREATE, "inputRequests": {"a": QUESTION}}),
    ("create", {**CREATE, "requestState": "v1.x"}),
    ("create", {**CREATE, "ttl": 60_000}),
    ("create", {**CREATE, "pollInterval": 5_000}),
    ("create", {**CREATE, "ttlMs": 60_000.0}),
    ("create", {**CREATE, "ttlMs": 0}),
    ("create", {**CREATE, "pollIntervalMs": -1}),
    ("create", {**CREATE, "statusMessage": ""}),
    ("create", {**CREATE, "taskId": "42"}),
    ("create", {**CREATE, "createdAt": "2026-08-25 10:30:00"}),
    ("create", {**CREATE, "lastUpdatedAt": "2026-08-25T10:30:00"}),
    ("get", {**WORKING, "result": RESULT}),
    ("get", {**WORKING, "inputRequests": {}}),
    ("get", {**WORKING, "_meta": {"mcptasks/progress": {}}}),
    ("get", {**WORKING, "_meta": {"mcptasks/progress": {**TOLD, "ratePerSecond": 0}}}),
    ("get", {**WORKING, "_meta": {"mcptasks/progress": {**TOLD, "total": None}}}),
    ("get", {**PARKED, "inputRequests": {"a": {**QUESTION, "id": 1}}}),
    ("get", {**PARKED, "result": RESULT}),
    ("get", {**PARKED, "requestState": "v1.x"}),
    ("get", {**COMPLETED, "error": ERROR}),
    ("get", {**COMPLETED, "result": {"content": []}}),
    ("get", {**COMPLETED, "result": {"resultType": "complete"}}),
    ("get", {**COMPLETED, "result": {**RESULT, "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "x"}}}}),
    ("get", {**FAILED, "result": RESULT}),
    ("get", {**FAILED, "error": {**ERROR, "stack": "..."}}),
    ("get", {**CANCELLED, "error": ERROR}),
    ("update", {**EMPTY, "taskId": TASK["taskId"]}),
    ("cancel", {**EMPTY, "status": "cancelled"}),
    ("push", {**PUSH, "resultType": "complete"}),
    ("push", {**PUSH, "result": RESULT}),
    ("push", {**PUSH, "status": "failed", "error": ERROR, "task": TASK}),
    ("push", without(PUSH, "_meta")),
    ("push", {**PUSH, "_meta": {}}),
    ("acknowledge", {**ACKNOWLEDGE, "notifications": {}}),
    ("acknowledge", {**ACKNOWLEDGE, "notifications": {"taskIds": [TASK["taskId"]] * 2}}),
    ("acknowledge", without(ACKNOWLEDGE, "_meta")),
]


@pytest.mark.parametrize(("kind", "document"), GOOD)
def test_what_the_spec_shows_is_accepted_in_every_form(kind: Kind, document: dict[str, Any]) -> None:
    """ext-tasks e434597, shapes of the four results (P10-P13), TaskStatusNotification and the acknowledgement (P70)."""
    assert document == validate(kind, document)
    assert document == validate(kind, json.dumps(document))
    assert document == validate(kind, json.dumps(enveloped(kind, document)).encode())


@pytest.mark.parametrize(("kind", "document"), [*BAD, *STRICTER])
def test_what_the_spec_forbids_is_refused(kind: Kind, document: dict[str, Any]) -> None:
    """ext-tasks e434597 and P10-P14, P70: required keys, types, nothing of another status."""
    with pytest.raises(AssertionError, match=f"^{kind} "):
        validate(kind, document)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.encode("utf-16"),
        lambda text: text[:-1],
        lambda text: text + text,
        lambda text: text.replace("60000", "NaN"),
        lambda text: text.replace('"ttlMs"', '"ttlMs": 1, "ttlMs"'),
        lambda text: f"[{text}]",
    ],
    ids=["not UTF-8", "cut short", "two values", "NaN", "a key twice", "an array"],
)
def test_bytes_that_are_not_one_json_object_are_refused(spoil: Callable[[str], bytes | str]) -> None:
    """Ours: the raw bytes are what is validated, not what a lenient parser made of them."""
    with pytest.raises(AssertionError, match=r"not one JSON value|not a JSON object"):
        validate("create", spoil(json.dumps(CREATE)))


@pytest.mark.parametrize("broken", [{"jsonrpc": "1.0"}, {"id": 1}, {"method": "notifications/message"}, {"params": []}])
def test_a_notification_needs_its_json_rpc_envelope(broken: dict[str, Any]) -> None:
    """JSON-RPC 2.0: version, method and parameters, and no id, or it would want an answer."""
    with pytest.raises(AssertionError, match=r"^notification "):
        validate("push", {**enveloped("push", PUSH), **broken})


@pytest.mark.parametrize("broken", [{"id": None}, {"jsonrpc": "1.0"}, {"error": ERROR}, {"result": [EMPTY]}])
def test_a_response_needs_its_json_rpc_envelope(broken: dict[str, Any]) -> None:
    """JSON-RPC 2.0: version, the request's id, a result and no error beside it."""
    with pytest.raises(AssertionError, match=r"^response "):
        validate("cancel", {"jsonrpc": "2.0", "id": 1, "result": EMPTY, **broken})
