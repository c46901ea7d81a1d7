"""What a failed answer is taken for: only one about the task may end its tracking (D3, D03)."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Final

import pytest

from mcptasks.tracker.remote import (
    Driver,
    ProtocolBroken,
    RemoteGone,
    RemoteRefused,
    RemoteStatus,
    RemoteUnavailable,
)
from tests.requirements import covers
from tests.support import stub_faults as faults
from tests.support.remote import driving
from tests.support.stub_faults import Fault
from tests.support.stub_server import EXTENSION, KEY_META, StubServer
from tests.support.stub_steps import ABSENT, Step, asking, cancelled, completed, failed, working

pytestmark = pytest.mark.anyio

TASK: Final[dict[str, Any]] = {"resultType": "complete", "taskId": "remote-1", "status": "working"}


@pytest.fixture
def stub() -> Generator[StubServer]:
    with StubServer() as server:
        yield server


@pytest.fixture
async def driver(stub: StubServer) -> AsyncGenerator[Driver]:
    async with driving(stub, driver="tasks") as found:
        yield found


async def start(driver: Driver, key: str = "k") -> str:
    """The handle of a task that was just made."""
    handle = (await driver.submit("build", {"topic": "q3"}, key=key)).handle
    assert handle is not None
    return handle


NETWORK: Final[dict[str, Fault]] = {
    "500": faults.status(500),
    "502 with a page": faults.html(502),
    "503": faults.status(503, b"down"),
    "a page and 200": faults.html(200),
    "reset": faults.reset(),
    "cut off": faults.cut(),
    "invalid JSON": faults.invalid_json(),
    "no UTF-8": faults.body(b'{"jsonrpc": "2.0", "id": 1, "result": "\xff\xfe"}'),
    "empty": faults.body(b""),
    "429": faults.too_many("3"),
    "404 without JSON-RPC": faults.status(404, b"no such page"),
    "400 with a gateway's JSON": faults.body(b'{"detail": "bad gateway"}') and faults.status(400, b'{"detail": "x"}'),
    "401": faults.status(401),
    "403": faults.status(403),
    "redirect": faults.status(307, b"", location="http://127.0.0.1:1/"),
    "-32603": faults.error(-32603, status=500),
    "-32603 and 200": faults.error(-32603),
    "-32700": faults.error(-32700, status=400),
    "no answer on the stream": faults.body(b": ping\n\n", "text/event-stream"),
}


@covers("D3", "D03")
@pytest.mark.parametrize("fault", NETWORK.values(), ids=NETWORK)
async def test_a_failure_of_the_network_says_nothing_about_the_task(
    stub: StubServer, driver: Driver, fault: Fault
) -> None:
    """Each method, and then all is as before."""
    handle = await start(driver)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "tasks/get": lambda: driver.look(handle),
        "tasks/update": lambda: driver.answer(handle, {"k": {"action": "decline"}}),
        "tasks/cancel": lambda: driver.cancel(handle),
    }
    for method, call in calls.items():
        stub.fault(method, fault)
        with pytest.raises(RemoteUnavailable):
            await call()
    stub.fault("tools/call", fault)
    with pytest.raises(RemoteUnavailable):
        await driver.submit("build", {}, key="other")
    assert (await driver.look(handle)).status is RemoteStatus.WORKING


BROKEN: Final[dict[str, Fault]] = {
    "NaN": faults.raw_result('{"taskId": "remote-1", "status": "completed", "result": {"content": [], "x": NaN}}'),
    "Infinity": faults.raw_result('{"taskId": "remote-1", "status": "working", "pollIntervalMs": -Infinity}'),
    "1e999": faults.raw_result('{"taskId": "remote-1", "status": "working", "pollIntervalMs": 1e999}'),
    "an integer of 5,001 digits": faults.raw_result(
        '{"taskId": "remote-1", "status": "working", "x": 1' + "0" * 5_000 + "}"
    ),
    "endless nesting": faults.raw_result("[" * 100_000 + "]" * 100_000),
    "201 levels": faults.raw_result('{"taskId": "remote-1", "status": "working", "x": ' + "[" * 201 + "]" * 201 + "}"),
    "a list": faults.body(b"[]"),
    "a number": faults.body(b"7"),
    "neither result nor error": faults.body(b'{"jsonrpc": "2.0", "id": 1}'),
    "result is a list": faults.result([]),
    "result is null": faults.result(None),
    "another request's answer": faults.other_id(),
    "another task": faults.result(TASK | {"taskId": "remote-2"}),
    "another form of the same letters": faults.result(TASK | {"taskId": "remote-1\u0301"}),
    "no task": faults.result({"resultType": "complete"}),
    "the id is a number": faults.result(TASK | {"taskId": 1}),
    "no status": faults.result({"taskId": "remote-1"}),
    "a status nobody knows": faults.result(TASK | {"status": "paused"}),
    "a status that is no text": faults.result(TASK | {"status": ["working"]}),
    "completed without a result": faults.result(TASK | {"status": "completed"}),
    "the result is a text": faults.result(TASK | {"status": "completed", "result": "done"}),
    "the result has no content": faults.result(TASK | {"status": "completed", "result": {"content": "done"}}),
    "failed without an error": faults.result(TASK | {"status": "failed"}),
    "the error has no code": faults.result(TASK | {"status": "failed", "error": {"message": "boom"}}),
    "the error's code is true": faults.result(TASK | {"status": "failed", "error": {"code": True, "message": "b"}}),
    "questions are a list": faults.result(TASK | {"status": "input_required", "inputRequests": []}),
    "a question is a text": faults.result(TASK | {"status": "input_required", "inputRequests": {"k": "name?"}}),
    "a question has no method": faults.result(TASK | {"status": "input_required", "inputRequests": {"k": {}}}),
}


@covers("D3", "F01")
@pytest.mark.parametrize("fault", BROKEN.values(), ids=BROKEN)
async def test_an_answer_of_the_wrong_shape_is_a_broken_protocol(stub: StubServer, fault: Fault) -> None:
    """Well-formed nonsense about a task ends it."""
    async with driving(stub, driver="tasks", body_max=1024 * 1024) as driver:
        handle = await start(driver)
        stub.fault("tasks/get", fault)
        with pytest.raises(ProtocolBroken):
            await driver.look(handle)


@covers("D3", "F07")
@pytest.mark.parametrize("size", [1024, 2 * 1024 * 1024])
@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_over_the_limit_is_not_read(stub: StubServer, size: int, *, streams: bool) -> None:
    """However well-formed it is; in one body or as an event."""
    answer = {"jsonrpc": "2.0", "id": 2, "result": TASK | {"padding": "x" * size}}
    text = json.dumps(answer).encode()
    fault = faults.body(b"data: " + text + b"\n\n", "text/event-stream") if streams else faults.body(text)
    async with driving(stub, driver="tasks", body_max=1024 * 1024) as driver:
        handle = await start(driver)
        stub.fault("tasks/get", fault)
        if size < 1024 * 1024:
            assert (await driver.look(handle)).status is RemoteStatus.WORKING
        else:
            with pytest.raises(ProtocolBroken, match="more than 1,048,576 bytes"):
                await driver.look(handle)


@covers("D03")
async def test_an_unknown_task_is_gone(driver: Driver) -> None:
    """-32602 in look, answer and cancel."""
    for call in (driver.look("nobodys"), driver.answer("nobodys", {}), driver.cancel("nobodys")):
        with pytest.raises(RemoteGone):
            await call


async def test_a_refused_answer_is_not_taken_for_a_task_that_is_gone(stub: StubServer, driver: Driver) -> None:
    """-32602 of `tasks/update` has two meanings; the task is looked for."""
    handle = await start(driver)
    stub.fault("tasks/update", faults.error(-32602, "not what the question asks for", status=400))
    with pytest.raises(RemoteRefused) as caught:
        await driver.answer(handle, {"k": {"action": "accept"}})
    assert (caught.value.code, caught.value.message) == (-32602, "not what the question asks for")


@pytest.mark.parametrize("code", [-32602, -32601, -32600, -32021, -32050, 7])
async def test_a_refused_call_started_nothing(stub: StubServer, driver: Driver, code: int) -> None:
    """Bad arguments are no unknown task."""
    stub.fault("tools/call", faults.error(code, "no", {"why": 1}, status=400))
    with pytest.raises(RemoteRefused) as caught:
        await driver.submit("build", {}, key="k")
    assert (caught.value.code, caught.value.message, caught.value.data) == (code, "no", {"why": 1})


async def test_other_errors_about_a_task_are_refusals(stub: StubServer, driver: Driver) -> None:
    """They are about what was asked, not about the network."""
    handle = await start(driver)
    stub.fault("tasks/get", faults.error(-32601, "Method not found", status=404))
    with pytest.raises(RemoteRefused):
        await driver.look(handle)


@covers("D03")
@pytest.mark.parametrize("code", [429, 503])
async def test_retry_after_is_told_in_milliseconds(stub: StubServer, driver: Driver, code: int) -> None:
    """RFC 9110: seconds, or a date; anything else is nothing."""
    handle = await start(driver)
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)
    told: dict[str, int | None] = {}
    for value in ("3", "0", soon, past, "soon", "-5", "1e3", ""):
        stub.fault("tasks/get", faults.status(code, b"", retry_after=value))
        with pytest.raises(RemoteUnavailable) as caught:
            await driver.look(handle)
        told[value] = caught.value.retry_after_ms
    near = told.pop(soon)
    assert near is not None and 60_000 < near <= 100_000
    assert told == {"3": 3_000, "0": 0, past: 0, "soon": None, "-5": None, "1e3": None, "": None}


@covers("D01")
async def test_what_was_surely_not_carried_out_may_be_sent_again(stub: StubServer) -> None:
    """`sent` tells; a 502 or a cut-off answer may hide a task that was made."""
    sent: dict[str, bool] = {}
    async with driving(stub, driver="tasks") as driver:
        for name in ("429", "401", "403", "redirect", "502 with a page", "reset", "cut off", "invalid JSON"):
            stub.fault("tools/call", NETWORK[name])
            with pytest.raises(RemoteUnavailable) as caught:
                await driver.submit("build", {}, key=name)
            sent[name] = caught.value.sent
    gone = StubServer()
    gone.port = 1
    async with driving(gone, driver="tasks") as driver:
        with pytest.raises(RemoteUnavailable) as caught:
            await driver.submit("build", {}, key="k")
        sent["refused"] = caught.value.sent
    assert sent == {
        "429": False,
        "401": False,
        "403": False,
        "redirect": False,
        "refused": False,
        "502 with a page": True,
        "reset": True,
        "cut off": True,
        "invalid JSON": True,
    }


@covers("D3")
@pytest.mark.parametrize("fault", [faults.slow(30), faults.silent(30)], ids=["slow body", "silence"])
async def test_an_answer_that_takes_too_long_is_given_up(stub: StubServer, fault: Fault) -> None:
    """The time limit is for the whole answer, however busily it trickles."""
    async with driving(stub, driver="tasks", timeout="500ms") as driver:
        handle = await start(driver)
        stub.fault("tasks/get", fault)
        before = time.monotonic()
        with pytest.raises(RemoteUnavailable, match=r"did not answer within 0.5 s"):
            await driver.look(handle)
        assert time.monotonic() - before < 10
        assert (await driver.look(handle)).status is RemoteStatus.WORKING


@covers("F11")
@pytest.mark.parametrize(
    "handle",
    [
        "x",
        "n" * 255,
        "n" * 256,
        "n" * 4_096,
        "\u4efb\u52a1-\U0001f600",
        "a\u0301 \u00e1",
        "a:b/../*",
        "x\r\nX: y",
        "\u1234" * 4_096,
        "\ud83d",
    ],
    ids=["1", "255", "256", "4096", "unicode", "two forms", "odd", "line break", "4096 of unicode", "surrogate"],
)
async def test_a_handle_is_sent_back_as_it_came(stub: StubServer, driver: Driver, handle: str) -> None:
    """In the body; and in the header, encoded where it has to be."""
    stub.new_id = lambda: handle
    assert (await driver.submit("build", {}, key="k")).handle == handle
    await driver.look(handle)
    await driver.cancel(handle)
    assert [seen.params["taskId"] for seen in stub.asked("tasks/get") + stub.asked("tasks/cancel")] == [handle] * 2
    header = stub.asked("tasks/get")[0].headers.get("mcp-name")
    if header is not None and header.startswith("=?base64?"):
        header = base64.b64decode(header.removeprefix("=?base64?").removesuffix("?=")).decode()
    assert header == (handle if handle != "\ud83d" else None)


@covers("D1", "F11")
@pytest.mark.parametrize("handle", ["", "n" * 4_097, "\u1234" * 100_000], ids=["empty", "4097", "300 kB"])
async def test_a_handle_that_cannot_be_kept_is_told_for_its_cancel(
    stub: StubServer, driver: Driver, handle: str
) -> None:
    """A protocol error that carries it: the task exists, and can be cancelled by it."""
    stub.new_id = lambda: handle
    with pytest.raises(ProtocolBroken) as caught:
        await driver.submit("build", {}, key="k")
    assert caught.value.handle == handle
    await driver.cancel(handle)
    assert stub.tasks[handle].cancels == 1


@covers("D1")
@pytest.mark.parametrize("handle", [5, None, ["x"]])
async def test_a_handle_that_is_no_text_is_a_broken_protocol(stub: StubServer, driver: Driver, handle: Any) -> None:
    """There is nothing to cancel by."""
    stub.new_id = lambda: handle
    with pytest.raises(ProtocolBroken) as caught:
        await driver.submit("build", {}, key="k")
    assert caught.value.handle is None


@covers("D1")
async def test_a_new_task_without_a_status_can_be_cancelled(stub: StubServer, driver: Driver) -> None:
    """The answer is broken, the task is real."""
    stub.fault("tools/call", faults.result({"resultType": "task", "taskId": "remote-9"}))
    with pytest.raises(ProtocolBroken) as caught:
        await driver.submit("build", {}, key="k")
    assert caught.value.handle == "remote-9"


@covers("D04")
@pytest.mark.parametrize("hint", [ABSENT, None, 0, -1, -5, 500, 1e20, 10**12, "soon", True, [1]])
async def test_hints_are_handed_on_unjudged(stub: StubServer, driver: Driver, hint: Any) -> None:
    """Whatever it is, the task is read; the poller judges the hint."""
    stub.hint = ABSENT
    stub.script = [working(hint=hint)]
    found = (await driver.look(await start(driver))).hint
    assert found == (None if hint is ABSENT else hint) and isinstance(found, bool) == isinstance(hint, bool)


@covers("F05")
async def test_numbers_come_as_they_were_written(stub: StubServer, driver: Driver) -> None:
    """Integers of any size, floats in their own digits, empty things apart."""
    numbers = {"a": 9007199254740993, "b": 10**30, "c": 1e-7, "d": 1.0, "e": -0.0, "f": [], "g": {}, "h": -(2**63)}
    stub.script = [completed(result={"content": [], "structuredContent": numbers})]
    found = (await driver.look(await start(driver))).result
    assert found is not None and repr(found["structuredContent"]) == repr(numbers)


async def test_each_status_is_read_with_its_payload(stub: StubServer, driver: Driver) -> None:
    """SEP-2663, Getting Tasks."""
    steps: list[Step] = [working("half"), asking("k1", "k2"), completed("R"), failed(-32050, "boom", {"x": 1})]
    steps.append(cancelled("by you"))
    stub.script = lambda _tool, arguments: [steps[arguments["n"]]]
    shots = []
    for n in range(len(steps)):
        handle = (await driver.submit("build", {"n": n}, key=str(n))).handle
        assert handle is not None
        shots.append(await driver.look(handle))
    assert [shot.status.value for shot in shots] == [step.status for step in steps]
    assert shots[0].message == "half" and not shots[0].questions
    assert list(shots[1].questions) == ["k1", "k2"]
    assert shots[1].questions["k1"]["method"] == "elicitation/create"
    assert shots[1].questions["k1"]["params"]["message"] == "k1?"
    assert shots[2].result == {"content": [{"type": "text", "text": "R"}], "isError": False}
    assert shots[3].error == {"code": -32050, "message": "boom", "data": {"x": 1}}
    assert shots[4].message == "by you"


async def test_the_key_is_sent_in_all_three_places(stub: StubServer, driver: Driver) -> None:
    """P23: the field, `_meta`, the header; the same key is the same task."""
    first, second = await start(driver, "key-1"), await start(driver, "key-1")
    seen = stub.asked("tools/call")[0]
    assert seen.params["idempotencyKey"] == seen.params["_meta"][KEY_META] == seen.headers["idempotency-key"] == "key-1"
    assert first == second and await start(driver, "key-2") != first


async def test_each_request_says_what_it_is_about_and_what_we_can(stub: StubServer, driver: Driver) -> None:
    """Protocol 2026-07-28: no session, everything in every request; P02, P61."""
    await driver.look(await start(driver))
    call, get = stub.log
    assert (call.headers["mcp-method"], call.headers["mcp-name"]) == ("tools/call", "build")
    assert (get.headers["mcp-method"], get.headers["mcp-name"]) == ("tasks/get", "remote-1")
    for seen in (call, get):
        meta = seen.params["_meta"]
        assert seen.headers["mcp-protocol-version"] == meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        declared = meta["io.modelcontextprotocol/clientCapabilities"]
        assert declared == {"elicitation": {"form": {}, "url": {}}, "extensions": {EXTENSION: {}}}


async def test_arguments_go_into_headers_where_the_tool_wants_them_there(stub: StubServer, driver: Driver) -> None:
    """x-mcp-header (2026-07-28): learned from the list of tools when the server refuses, once, with -32020."""
    region = {"type": "string", "x-mcp-header": "Region"}
    stub.listed = [{"name": "build", "inputSchema": {"type": "object", "properties": {"region": region}}}]
    mismatch = faults.error(-32020, "Mcp-Param-Region is missing", status=400)
    stub.fault("tools/call", mismatch)
    assert (await driver.submit("build", {"region": "z\u00fcrich", "n": 1}, key="k")).handle is not None
    first, second = stub.asked("tools/call")
    assert "mcp-param-region" not in first.headers and first.params == second.params
    encoded = base64.b64encode("z\u00fcrich".encode()).decode()
    assert second.headers["mcp-param-region"] == f"=?base64?{encoded}?="
    assert second.headers["idempotency-key"] == "k"
    stub.listed = []
    stub.fault("tools/call", mismatch)
    with pytest.raises(RemoteRefused, match="is missing"):
        await driver.submit("build", {}, key="other")
    assert stub.counts["tools/call"] == 3


async def test_the_server_is_told_what_may_be_asked(stub: StubServer) -> None:
    """P44: only what is configured is declared."""
    async with driving(stub, driver="tasks", questions=["sampling", "roots"]) as driver:
        await start(driver)
    meta = stub.log[0].params["_meta"]
    declared = meta["io.modelcontextprotocol/clientCapabilities"]
    assert declared == {"sampling": {}, "roots": {}, "extensions": {EXTENSION: {}}}


async def test_a_call_that_is_answered_at_once_has_no_handle(stub: StubServer, driver: Driver) -> None:
    """There is nothing to track: the result is the end."""
    stub.plain["echo"] = lambda arguments: {"content": [{"type": "text", "text": arguments["x"]}], "isError": False}
    accepted = await driver.submit("echo", {"x": "hi"}, key="k")
    assert accepted.handle is None and accepted.snapshot.status is RemoteStatus.COMPLETED
    assert accepted.snapshot.result is not None and accepted.snapshot.result["content"][0]["text"] == "hi"


async def test_a_call_that_asks_before_there_is_a_task_is_refused(stub: StubServer, driver: Driver) -> None:
    """Multi-round-trip: nothing was started, and a tracker has nobody to ask at that time."""
    stub.fault("tools/call", faults.result({"resultType": "input_required", "inputRequests": {}, "requestState": "s"}))
    with pytest.raises(RemoteRefused, match="asks something before it makes a task"):
        await driver.submit("build", {}, key="k")


async def test_no_error_shows_what_the_server_sent(stub: StubServer) -> None:
    """Nothing secret in messages: neither bodies, nor headers, nor the URL."""
    async with driving(stub, headers={"Authorization": "Bearer SECRET"}, driver="tasks") as driver:
        handle = await start(driver)
        for fault in (*NETWORK.values(), faults.body(b'{"SECRET": 1'), faults.result({"SECRET": "SECRET"})):
            stub.fault("tasks/get", fault)
            with pytest.raises((RemoteUnavailable, ProtocolBroken)) as caught:
                await driver.look(handle)
            assert "SECRET" not in str(caught.value) and stub.url not in str(caught.value)
            assert caught.value.__cause__ is None or "SECRET" not in str(caught.value.__cause__)
