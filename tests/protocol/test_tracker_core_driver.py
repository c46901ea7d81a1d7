"""Servers of protocol 2025-11-25, whose tasks are in its core; and the choice between the two protocols."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

import pytest

from mcptasks.tracker.remote import (
    Driver,
    ProtocolBroken,
    PushUnavailable,
    RemoteGone,
    RemoteRefused,
    RemoteStatus,
    RemoteUnavailable,
    Snapshot,
)
from tests.requirements import covers
from tests.support import stub_faults as faults
from tests.support.remote import driving
from tests.support.stub_server import KEY_META, LEGACY, StubServer
from tests.support.stub_steps import Step, asking, cancelled, completed, failed, working
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def stub() -> Generator[StubServer]:
    with StubServer(LEGACY) as server:
        yield server


@pytest.fixture(params=["core-2025-11-25", "auto"])
async def driver(stub: StubServer, request: pytest.FixtureRequest) -> AsyncGenerator[Driver]:
    async with driving(stub, driver=request.param) as found:
        yield found


async def start(driver: Driver, key: str = "k") -> str:
    """The handle of a task that was just made."""
    handle = (await driver.submit("build", {"topic": "q3"}, key=key)).handle
    assert handle is not None
    return handle


def remote_id(handle: str) -> str:
    """The task's id at the server; the handle says the session too."""
    return handle.split(" ", 1)[1]


async def test_a_task_is_made_and_followed_to_its_result(stub: StubServer, driver: Driver) -> None:
    """`tools/call` with `task`, `tasks/get`, `tasks/result`; in one session."""
    stub.script = [working("half", hint=700), completed("R")]
    handle = await start(driver)
    first, last = await driver.look(handle), await driver.look(handle)
    assert (first.status, first.message, first.hint) == (RemoteStatus.WORKING, "half", 700)
    assert last.status is RemoteStatus.COMPLETED and last.result is not None
    assert last.result["content"] == [{"type": "text", "text": "R"}]
    call = stub.asked("tools/call")[0]
    assert call.params["task"] == {} and call.params["_meta"] == {KEY_META: "k"}
    assert call.params["idempotencyKey"] == call.headers["idempotency-key"] == "k"
    assert len({seen.headers["mcp-session-id"] for seen in stub.asked("tasks/get")}) == len(stub.sessions) == 1


async def test_only_a_tool_that_says_so_is_called_as_a_task(stub: StubServer, driver: Driver) -> None:
    """2025-11-25: `execution.taskSupport` absent means forbidden."""
    stub.plain["echo"] = lambda _: {"content": [], "isError": False}
    accepted = await driver.submit("echo", {}, key="k")
    assert accepted.handle is None and accepted.snapshot.status is RemoteStatus.COMPLETED
    assert "task" not in stub.asked("tools/call")[0].params


async def test_a_server_without_tasks_answers_at_once(driver: Driver, stub: StubServer) -> None:
    """There is nothing to track."""
    stub.offers_tasks = False
    accepted = await driver.submit("build", {}, key="k")
    assert accepted.handle is None
    assert accepted.snapshot.result is not None and accepted.snapshot.result["content"][0]["text"] == "at once"


async def test_a_tool_error_is_a_completed_task(stub: StubServer, driver: Driver) -> None:
    """2025-11-25 calls it failed; a protocol error is failed here and there, also one that looks like the server's."""
    ends: list[Step] = [
        Step(status="failed", payload={"result": {"content": [], "isError": True}}),
        failed(-32603, "boom", {"x": 1}),
        failed(-32602, "bad"),
        Step(status="failed", message="lost", payload={"result": {"content": []}}),
        cancelled("by you"),
    ]
    stub.script = lambda _tool, arguments: [ends[arguments["n"]]]
    shots: list[Snapshot] = []
    for n in range(len(ends)):
        handle = (await driver.submit("build", {"n": n}, key=str(n))).handle
        assert handle is not None
        shots.append(await driver.look(handle))
    assert shots[0].status is RemoteStatus.COMPLETED and shots[0].result is not None and shots[0].result["isError"]
    assert shots[1].status is RemoteStatus.FAILED
    assert shots[1].error == {"code": -32603, "message": "boom", "data": {"x": 1}}
    assert shots[2].status is RemoteStatus.FAILED and shots[2].error == {"code": -32602, "message": "bad"}
    assert shots[3].status is RemoteStatus.FAILED and shots[3].error is not None and shots[3].error["message"] == "lost"
    assert shots[4].status is RemoteStatus.CANCELLED and shots[4].message == "by you"


async def test_questions_come_and_answers_go_over_the_stream_of_the_result(stub: StubServer, driver: Driver) -> None:
    """All that are open, under keys that stay; then the task goes on."""
    stub.script = [asking("q1", "q2"), completed("R")]
    handle = await start(driver)
    first = await driver.look(handle)

    async def both() -> Snapshot | None:
        shot = await driver.look(handle)
        return shot if len(shot.questions) == 2 else None

    shot = await eventually(both, description="both questions are there")
    assert shot.status is RemoteStatus.INPUT_REQUIRED and first.questions.keys() <= shot.questions.keys()
    texts = {key: question["params"]["message"] for key, question in shot.questions.items()}
    assert sorted(texts.values()) == ["q1?", "q2?"]
    assert all("_meta" not in question["params"] for question in shot.questions.values())
    await driver.answer(handle, {key: {"action": "accept", "content": {"reply": text}} for key, text in texts.items()})

    async def ended() -> Snapshot | None:
        now = await driver.look(handle)
        return now if now.status.terminal else None

    assert (await eventually(ended, description="the task ends")).status is RemoteStatus.COMPLETED
    answers = stub.tasks[remote_id(handle)].answers
    assert answers == {k: {"action": "accept", "content": {"reply": f"{k}?"}} for k in ("q1", "q2")}


async def test_a_question_that_another_process_heard_cannot_be_answered_here(stub: StubServer, driver: Driver) -> None:
    """The answer is kept for later: the other process has the stream, and the server asked there."""
    stub.script = [asking("q1"), completed()]
    handle = await start(driver)
    with pytest.raises(RemoteUnavailable, match="answered only where it was heard") as caught:
        await driver.answer(handle, {"q-0123456789abcdef": {"action": "decline"}})
    assert not caught.value.sent and not stub.tasks[remote_id(handle)].answers


@covers("D03")
async def test_a_lost_session_is_opened_again_once(stub: StubServer, driver: Driver) -> None:
    """A restarted server: nothing is noticed; one that loses each session is unavailable."""
    handle = await start(driver)
    stub.sessions.clear()
    assert (await driver.look(handle)).status is RemoteStatus.WORKING
    assert stub.counts["initialize"] == 2
    stub.always("tasks/get", faults.session_lost())
    with pytest.raises(RemoteUnavailable, match="lost its session") as caught:
        await driver.look(handle)
    assert not caught.value.sent and stub.counts["tasks/get"] == 5
    stub.always("tasks/get", None)
    await driver.look(handle)


@covers("D03")
@pytest.mark.parametrize("kind", ["core-2025-11-25", "auto"])
async def test_a_task_that_belongs_to_a_session_is_followed_by_any_process(stub: StubServer, kind: str) -> None:
    """As the official SDK's servers bind them: the handle says the session; a session that is over costs one try."""
    stub.binds_sessions = True
    stub.script = [working()]
    async with driving(stub, driver=kind) as maker:
        handle = await start(maker)
    async with driving(stub, driver=kind) as poller:
        assert (await poller.look(handle)).status is RemoteStatus.WORKING
        await poller.cancel(handle)
        assert stub.tasks[remote_id(handle)].cancels == 1
        stub.sessions.clear()
        with pytest.raises(RemoteGone):
            await poller.look(handle)
        stub.binds_sessions = False  # a server that has kept its tasks, and no sessions
        assert (await poller.look(handle)).status is RemoteStatus.CANCELLED


async def test_an_unknown_task_is_gone(driver: Driver) -> None:
    """-32602."""
    with pytest.raises(RemoteGone):
        await driver.look(" nobodys")
    with pytest.raises(RemoteGone):
        await driver.cancel(" nobodys")


async def test_a_cancel_is_sent(stub: StubServer, driver: Driver) -> None:
    """`tasks/cancel`."""
    handle = await start(driver)
    await driver.cancel(handle)
    assert stub.tasks[remote_id(handle)].cancels == 1 and (await driver.look(handle)).status is RemoteStatus.CANCELLED


async def test_nothing_is_told_without_being_asked(driver: Driver) -> None:
    """2025-11-25 has no push of tasks."""
    with pytest.raises(PushUnavailable):
        await anext(driver.listen(["x"]))


@pytest.mark.parametrize("result", [{"task": 7}, {"task": {}}, {"content": "x"}])
async def test_a_new_task_of_the_wrong_shape_is_a_broken_protocol(
    stub: StubServer, driver: Driver, result: object
) -> None:
    """Nothing to track and nothing to show."""
    stub.fault("tools/call", faults.result(result))
    with pytest.raises(ProtocolBroken):
        await driver.submit("build", {}, key="k")


async def test_the_greeting_can_fail_without_doubt_about_the_call(stub: StubServer, driver: Driver) -> None:
    """The call was not sent yet, so it may be sent again."""
    for method in ("initialize", "tools/list"):
        stub.fault(method, faults.html())
        with pytest.raises(RemoteUnavailable) as caught:
            await driver.submit("build", {}, key="k")
        assert not caught.value.sent
    assert stub.counts["tools/call"] == 0


async def test_auto_speaks_as_the_server_does() -> None:
    """And as it does later, after a restart as another one."""
    with StubServer() as stub:
        async with driving(stub, driver="auto") as driver:
            handle = await start(driver)
            assert stub.counts == {"server/discover": 1, "tools/call": 1}
            assert (await driver.look(handle)).status is RemoteStatus.WORKING


async def test_a_server_that_is_down_is_not_taken_for_an_old_one(stub: StubServer) -> None:
    """A 502 in the place of a greeting says nothing of the version."""
    async with driving(stub, driver="auto") as driver:
        for fault in (faults.html(), faults.reset(), faults.status(401), faults.too_many("1")):
            stub.fault("server/discover", fault)
            with pytest.raises(RemoteUnavailable):
                await driver.look(" x")
        assert stub.counts["initialize"] == 0
        stub.fault("server/discover", faults.status(400, b"no session"))  # an old server, before it has JSON-RPC to say
        with pytest.raises(RemoteGone):
            await driver.look(" x")
        assert stub.counts["initialize"] == 1


async def test_a_version_that_is_not_known_is_a_broken_protocol(stub: StubServer, driver: Driver) -> None:
    """Nothing can be said to such a server."""
    stub.fault("initialize", faults.result({"protocolVersion": "2031-01-01", "capabilities": {}}))
    with pytest.raises(ProtocolBroken):
        await driver.look(" x")


async def test_a_refused_call_started_nothing(stub: StubServer, driver: Driver) -> None:
    """As with today's protocol."""
    stub.fault("tools/call", faults.error(-32602, "bad arguments"))
    with pytest.raises(RemoteRefused, match="bad arguments"):
        await driver.submit("build", {}, key="k")
