"""The client's duties (issue 2 part 6; protocol.md for what servers may send), against a scripted task server."""

from __future__ import annotations

import copy
import pickle
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
import pytest
import uvicorn
from mcp.client import Client, ClientRequestContext
from mcp.client.session import ElicitationFnT
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    TextContent,
)

from mcptasks.client import TaskCancelled, TaskFailed, TaskHandle, TaskRefused, TasksClient, TaskUnreachable, connect
from mcptasks.client.polling import Bell, ceiling_ms, pause
from mcptasks.wire import DetailedTask
from tests.protocol.stub_server import (
    LABEL,
    TASK_ID,
    Shot,
    StubTasks,
    asking,
    cancelled,
    completed,
    failed,
    question,
    serve,
    working,
)
from tests.requirements import covers

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
async def _nothing_hangs() -> AsyncGenerator[None]:
    """A wait that never ends fails its test by name instead of stopping the run."""
    with anyio.fail_after(60):
        yield


class Pauses:
    """Writes down each pause instead of making it; 0 where the bell had rung and there was none to make."""

    def __init__(self) -> None:
        self.ms: list[int] = []

    async def __call__(self, delay_ms: int, bell: Bell, heard: int) -> None:
        self.ms.append(0 if bell.rings > heard else delay_ms)
        await anyio.lowlevel.checkpoint()


class Person:
    """An elicitation callback that answers every question with its own text, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        return ElicitResult(action="accept", content={"reply": params.message.upper()})


class Undecided:
    """An elicitation callback that never answers; says when it was asked and how often it was told to stop."""

    def __init__(self) -> None:
        self.asked, self.stopped = anyio.Event(), 0

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.stopped += 1
        raise AssertionError("unreachable")


@asynccontextmanager
async def connected(
    stub: StubTasks, elicitation: ElicitationFnT | None = None, **options: Any
) -> AsyncGenerator[Client]:
    options.setdefault("pause", Pauses())
    async with Client(serve(stub), extensions=[TasksClient(**options)], elicitation_callback=elicitation) as client:
        yield client


def text(result: CallToolResult) -> str:
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


def when_answered(key: str, shot: Shot) -> Callable[[StubTasks], Awaitable[Shot]]:
    """A step that comes only after the answer to `key` has reached the server."""

    async def step(stub: StubTasks) -> Shot:
        while key not in stub.answers:
            await anyio.lowlevel.checkpoint()
        return shot

    return step


def when(event: anyio.Event, shot: Shot) -> Callable[[StubTasks], Awaitable[Shot]]:
    """A step that comes only after the event."""

    async def step(stub: StubTasks) -> Shot:
        await event.wait()
        return shot

    return step


# ------------------------------------------------------------------------------------------------ call_tool


async def test_a_call_that_became_a_task_returns_the_tools_result() -> None:
    """Issue 2, part 6: `call_tool` just works."""
    stub = StubTasks(working(), working(at=1), completed("report"))
    async with connected(stub) as client:
        assert text(await client.call_tool("durable", {"x": 1})) == "report"
    assert stub.count("tools/call") == 1
    assert stub.count("tasks/get") == 3


async def test_a_tool_error_is_a_result_and_is_not_raised() -> None:
    """P31: `isError` is a completed task."""
    shot = completed("no such file")
    shot["result"]["isError"] = True
    async with connected(StubTasks(shot)) as client:
        result = await client.call_tool("durable")
    assert result.is_error
    assert text(result) == "no such file"


async def test_a_failed_task_raises_the_tasks_own_error() -> None:
    """P31: the JSON-RPC error's code, message and data reach the caller."""
    async with connected(StubTasks(failed(-32050, "quota", {"left": 0}))) as client:
        with pytest.raises(TaskFailed) as caught:
            await client.call_tool("durable")
    error = caught.value
    assert isinstance(error, MCPError)
    assert (error.code, error.message, error.data, error.task_id) == (-32050, "quota", {"left": 0}, TASK_ID)


async def test_a_cancelled_task_raises_and_says_why_without_the_full_id() -> None:
    """House rule: messages name a task by its label."""
    async with connected(StubTasks(cancelled("stopped by operator"))) as client:
        with pytest.raises(TaskCancelled) as caught:
            await client.call_tool("durable")
    assert str(caught.value) == f"Task {LABEL} was cancelled: stopped by operator"
    assert caught.value.task_id == TASK_ID


@pytest.mark.parametrize("shot", [working() | {"status": "completed"}, working() | {"status": "failed"}])
async def test_an_end_without_its_payload_is_an_error_with_the_tasks_name(shot: Shot) -> None:
    """P12 is the server's duty; a server that forgets it must not leave the caller with a pydantic dump."""
    async with connected(StubTasks(shot)) as client:
        with pytest.raises(TaskFailed, match=f"Task {LABEL} is (completed|failed), but") as caught:
            await client.call_tool("durable")
    assert caught.value.code == INTERNAL_ERROR


async def test_a_result_that_breaks_the_output_schema_is_refused_in_both_ways_of_calling() -> None:
    """A handle's result is checked as `Client.call_tool` checks it."""
    async with connected(StubTasks(completed())) as client:
        with pytest.raises(RuntimeError, match="output schema"):
            await client.call_tool("typed")
        handle = await TasksClient.start(client, "typed")
        with pytest.raises(RuntimeError, match="output schema"):
            await handle.result()


async def test_task_errors_survive_copying_and_pickling() -> None:
    """Errors travel between processes (Celery, concurrent.futures)."""
    error = TaskFailed(-32050, "quota", {"left": 0}, task_id=TASK_ID)
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (twin.code, twin.message, twin.data, twin.task_id) == (-32050, "quota", {"left": 0}, TASK_ID)


# ------------------------------------------------------------------------------------------------ questions


async def test_a_question_that_is_still_shown_after_its_answer_is_asked_and_sent_once() -> None:
    """Tasks extension, Input: clients dedupe by key across polls."""
    person = Person()
    stub = StubTasks(asking("k"), when_answered("k", asking("k")), asking("k"), asking("k", at=2), completed())
    async with connected(stub, person) as client:
        await client.call_tool("durable")
    assert person.asked == ["k?"]
    assert stub.count("tasks/update") == 1
    assert stub.answers["k"] == {"action": "accept", "content": {"reply": "K?"}}


async def test_the_same_text_under_a_new_key_is_a_new_question() -> None:
    """Keys, not texts, identify questions (P40)."""
    again = asking("k2")
    again["inputRequests"]["k2"] = question("k1?")
    person = Person()
    stub = StubTasks(asking("k1"), when_answered("k1", again), when_answered("k2", completed()))
    async with connected(stub, person) as client:
        await client.call_tool("durable")
    assert person.asked == ["k1?", "k1?"]


async def test_open_questions_are_asked_side_by_side_and_each_answer_goes_out_as_it_comes() -> None:
    """P41: a subset of the answers is accepted, so the first answer need not wait for the second person."""
    slow = anyio.Event()

    async def people(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        if params.message == "slow?":
            await slow.wait()
        return ElicitResult(action="accept", content={"reply": params.message})

    async def quick_is_in(stub: StubTasks) -> Shot:
        while "quick" not in stub.answers:
            await anyio.lowlevel.checkpoint()
        assert "slow" not in stub.answers
        slow.set()
        return asking("slow", at=2)

    stub = StubTasks(asking("slow", "quick"), quick_is_in, when_answered("slow", completed()))
    async with connected(stub, people) as client:
        await client.call_tool("durable")
    sent = [list(params["inputResponses"]) for method, params in stub.log if method == "tasks/update"]
    assert sent == [["quick"], ["slow"]]


async def test_a_question_nobody_answers_is_a_clear_error_every_time_and_leaves_the_task_alone() -> None:
    """C14: a client that cannot answer says so; it neither hangs nor cancels."""
    stub = StubTasks(asking("k"))
    async with connected(stub) as client:
        with pytest.raises(TaskRefused, match=f"Task {LABEL} asks .*Elicitation not supported") as caught:
            await client.call_tool("durable")
        handle = TasksClient.attach(client, caught.value.task_id)
        for _ in range(2):
            with pytest.raises(TaskRefused):
                await handle.result()
    assert stub.count("tasks/update") == stub.count("tasks/cancel") == 0


@covers("C14")
async def test_a_question_that_is_not_shown_to_this_client_is_a_clear_error() -> None:
    """C14: it would wait for ever; but an answer may be accepted a moment before the task's status shows it."""
    stub = StubTasks(asking("k"), when_answered("k", asking()), working(at=2), asking(at=3), asking(at=3))
    async with connected(stub, Person()) as client:
        with pytest.raises(TaskRefused, match=f"Task {LABEL} asks .* does not declare.*It keeps waiting") as caught:
            await client.call_tool("durable")
    assert caught.value.code == -32021
    assert stub.count("tasks/cancel") == 0


async def test_a_question_of_an_unknown_kind_is_refused_without_its_text() -> None:
    """House rule: nothing of a question in messages."""
    shot = asking("k")
    shot["inputRequests"]["k"] = {"method": "future/question", "params": {"message": "sesame"}}
    async with connected(StubTasks(shot), Person()) as client:
        with pytest.raises(TaskRefused, match="no elicitation, sampling or roots") as caught:
            await client.call_tool("durable")
    assert caught.value.code == METHOD_NOT_FOUND
    assert "sesame" not in str(caught.value)


async def test_a_callback_is_told_to_stop_when_the_task_ends_and_nothing_is_sent() -> None:
    """D06: a late answer to a cancelled task is not sent."""
    undecided = Undecided()
    stub = StubTasks(asking("k"), when(undecided.asked, cancelled()))
    async with connected(stub, undecided) as client:
        with pytest.raises(TaskCancelled):
            await client.call_tool("durable")
    assert undecided.stopped == 1
    assert stub.count("tasks/update") == 0


async def test_a_callback_is_told_to_stop_when_somebody_else_answered() -> None:
    """P12: `inputRequests` lists all open questions, so one that is gone is settled."""
    undecided = Undecided()

    async def moved_on(stub: StubTasks) -> Shot:
        while not undecided.stopped:
            await anyio.lowlevel.checkpoint()
        return completed()

    stub = StubTasks(asking("k"), when(undecided.asked, working(at=2)), moved_on)
    async with connected(stub, undecided) as client:
        assert text(await client.call_tool("durable")) == "done"
    assert stub.count("tasks/update") == 0


async def test_an_answer_on_its_way_is_not_stopped_when_its_question_vanishes_because_of_it() -> None:
    """The server may show the effect of an answer before it has acknowledged it."""
    update_came, next_poll_came = anyio.Event(), anyio.Event()

    async def slow_to_acknowledge(stub: StubTasks) -> Shot:
        update_came.set()
        await next_poll_came.wait()
        return {"resultType": "complete"}

    async def acknowledged(stub: StubTasks) -> Shot:
        next_poll_came.set()
        while "k" not in stub.answers:
            await anyio.lowlevel.checkpoint()
        return completed()

    script = [asking("k"), when(update_came, working(at=2)), acknowledged]
    async with connected(StubTasks(*script, updates=[slow_to_acknowledge]), Person()) as client:
        assert text(await client.call_tool("durable")) == "done"


async def test_a_callbacks_own_error_reaches_the_caller_bare() -> None:
    """Users write `except ValueError`, not `except*`."""

    async def broken(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        raise ValueError("the form does not open")

    async with connected(StubTasks(asking("k")), broken) as client:
        with pytest.raises(ValueError, match="does not open"):
            await client.call_tool("durable")


async def test_an_answer_the_server_refuses_is_raised_and_the_question_can_be_asked_again() -> None:
    """P42: -32602, and the question stays open."""
    person = Person()
    stub = StubTasks(
        asking("k"), when_answered("k", asking("k")), asking("k"), completed(), updates=[MCPError(-32602, "no string")]
    )
    async with connected(stub, person) as client:
        handle = await TasksClient.start(client, "durable")
        with pytest.raises(MCPError, match="no string"):
            await handle.result()
        assert person.asked == ["k?"]
        stub.play(asking("k"), when_answered("k", completed()))
        await handle.result()
    assert person.asked == ["k?", "k?"]


async def test_a_lost_answer_is_sent_again_without_asking_again() -> None:
    """A person is not asked twice for a lost message."""
    person = Person()
    lost = [MCPError(INTERNAL_ERROR, "store away"), MCPError(CONNECTION_CLOSED, "reset")]
    stub = StubTasks(asking("k"), when_answered("k", completed()), updates=lost)
    async with connected(stub, person) as client:
        await client.call_tool("durable")
    assert person.asked == ["k?"]
    assert stub.count("tasks/update") == 3


async def test_an_answer_that_could_not_be_delivered_at_all_is_kept_for_the_next_wait() -> None:
    """As above, after eight failures."""
    person, lost = Person(), [MCPError(INTERNAL_ERROR, "store away")] * 8
    stub = StubTasks(asking("k"), updates=lost)
    async with connected(stub, person) as client:
        handle = await TasksClient.start(client, "durable")
        with pytest.raises(TaskUnreachable, match="store away"):
            await handle.result()
        stub.play(asking("k"), when_answered("k", completed()))
        await handle.result()
    assert person.asked == ["k?"]
    assert stub.count("tasks/update") == 9


# ------------------------------------------------------------------------------------------------ start, attach


async def test_start_returns_at_once_with_the_task_and_its_key_on_the_wire() -> None:
    """P23: the idempotency key travels in `_meta`."""
    stub = StubTasks(completed())
    async with connected(stub) as client:
        handle = await TasksClient.start(
            client, "durable", {"x": 3}, idempotency_key="order-7", meta={"com.example/tag": "t"}
        )
        assert handle.task_id == TASK_ID
        assert stub.count("tasks/get") == 0
        [(_, params)] = stub.log
        assert params["arguments"] == {"x": 3}
        assert params["_meta"]["mcptasks/idempotencyKey"] == "order-7"
        assert params["_meta"]["com.example/tag"] == "t"
        assert text(await handle.result()) == "done"
        assert await handle.result() is await handle.result()
        assert (await handle.wait()).terminal
    assert stub.count("tasks/get") == 1


async def test_a_call_answered_at_once_gives_a_handle_that_is_already_completed() -> None:
    """One return type, whether or not the server made a task."""
    stub = StubTasks(working())
    async with connected(stub) as client:
        handle = await TasksClient.start(client, "plain", {"x": 2})
        assert handle.task_id == ""
        assert repr(handle) == "<TaskHandle without a task completed>"
        assert text(await handle.result()) == "plain 2"
        assert (await handle.get()).status == (await handle.wait()).status == "completed"
        assert [task.status async for task in handle.changes()] == ["completed"]
        await handle.update({"k": {"action": "decline"}})
        await handle.cancel()
    assert [method for method, _ in stub.log] == ["tools/call"]


async def test_start_settles_the_questions_that_come_before_the_task() -> None:
    """P21: input rounds on the request itself, then the task."""
    person, stub = Person(), StubTasks(completed())
    async with connected(stub, person) as client:
        handle = await TasksClient.start(client, "guarded")
    assert (person.asked, handle.task_id) == (["before?"], TASK_ID)
    assert stub.count("tools/call") == 2


async def test_a_call_made_by_a_callback_of_start_is_an_ordinary_call() -> None:
    """Only the call that `start` makes becomes a handle, not those made while it waits."""
    nested: list[str] = []

    async def asks_the_server(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        nested.append(text(await clients[0].call_tool("durable")))
        return ElicitResult(action="decline")

    stub, clients = StubTasks(completed("inner")), list[Client]()
    async with connected(stub, asks_the_server) as client:
        clients.append(client)
        handle = await TasksClient.start(client, "guarded")
        assert nested == ["inner"]
        assert isinstance(handle, TaskHandle)
        assert text(await client.call_tool("durable")) == "inner"


async def test_a_task_is_found_again_by_its_id_after_a_restart_of_the_client() -> None:
    """Issue 2, part 6: re-attach by id."""
    stub = StubTasks(working(), completed())
    async with connected(stub) as client:
        task_id = (await TasksClient.start(client, "durable")).task_id
    async with connected(stub) as client:
        assert text(await TasksClient.attach(client, task_id).result()) == "done"
    assert {params["taskId"] for method, params in stub.log if method == "tasks/get"} == {TASK_ID}


async def test_a_client_without_the_extension_and_an_empty_id_are_refused_with_the_way_out() -> None:
    """House rule: errors say what to do."""
    async with Client(serve(StubTasks(working()))) as client:
        with pytest.raises(ValueError, match="extensions="):
            await TasksClient.start(client, "plain", {"x": 1})
    async with connected(StubTasks(working())) as client:
        with pytest.raises(ValueError, match="id is empty"):
            TasksClient.attach(client, "")


async def test_an_older_server_answers_at_once_and_start_copes() -> None:
    """P06: clients of older versions never see a task."""
    async with Client(serve(StubTasks(working())), mode="legacy", extensions=[TasksClient()]) as client:
        handle = await TasksClient.start(client, "plain", {"x": 1})
        assert text(await handle.result()) == "plain 1"


async def test_a_handles_repr_shows_the_label_only() -> None:
    """P81: without authentication the id is a bearer secret."""
    async with connected(StubTasks(working())) as client:
        handle = await TasksClient.start(client, "durable")
    assert LABEL in repr(handle)
    assert TASK_ID not in repr(handle)


# ------------------------------------------------------------------------------------------------ watching


async def test_wait_watches_to_the_end_and_answers_nothing() -> None:
    """`wait` is for those who answer elsewhere."""
    person, stub = Person(), StubTasks(asking("k"), working(at=2), failed(-32050, "quota"))
    async with connected(stub, person) as client:
        task = await (await TasksClient.start(client, "durable")).wait()
    assert (task.status, task.error) == ("failed", {"code": -32050, "message": "quota"})
    assert person.asked == []


async def test_wait_for_input_returns_each_question_once() -> None:
    """wait, update, wait: also where the server still shows the answered key beside a new one."""
    stub = StubTasks(working(), asking("k1"), asking("k1"), asking("k1", "k2", at=3), asking("k2"), completed())
    async with connected(stub) as client:
        handle = await TasksClient.start(client, "durable")
        first = await handle.wait(until={"input_required"})
        await handle.update({"k1": ElicitResult(action="accept", content={"reply": "a"})})
        second = await handle.wait(until={"input_required"})
        await handle.update({"k2": {"action": "decline"}})
        last = await handle.wait(until={"input_required"})
    assert list(first.input_requests or {}) == ["k1"]
    assert list(second.input_requests or {}) == ["k1", "k2"]
    assert last.status == "completed"
    assert stub.answers["k1"]["content"] == {"reply": "a"}
    assert stub.answers["k2"] == {"action": "decline"}


async def test_an_answer_given_by_hand_is_not_asked_of_the_callback() -> None:
    """One key, one answer, whichever way it goes out."""
    person, stub = Person(), StubTasks(asking("k"), asking("k"), completed())
    async with connected(stub, person) as client:
        handle = await TasksClient.start(client, "durable")
        await handle.wait(until={"input_required"})
        await handle.update({"k": {"action": "decline"}})
        await handle.result()
    assert person.asked == []


async def test_changes_yields_each_change_once_and_ends_with_the_task() -> None:
    """Issue 2, part 6: iteration over status changes."""
    one = working(at=1, message="1 of 3")
    stub = StubTasks(working(), working(), one, one, working(at=1, message="2 of 3"), asking("k", at=2), completed())
    async with connected(stub) as client:
        handle = await TasksClient.start(client, "durable")
        seen = [(task.status, task.status_message) async for task in handle.changes()]
    assert seen == [
        ("working", None),
        ("working", "1 of 3"),
        ("working", "2 of 3"),
        ("input_required", None),
        ("completed", None),
    ]


async def test_on_status_sees_each_change_of_a_transparent_call_once() -> None:
    """`call_tool` gives nothing but its result; this is how a caller follows it."""
    seen: list[str | None] = []

    async def on_status(task: DetailedTask) -> None:
        seen.append(task.status_message or task.status)

    one = working(at=1, message="1 of 3")
    async with connected(StubTasks(working(), one, one, completed()), on_status=on_status) as client:
        await client.call_tool("durable")
    assert seen == ["working", "1 of 3", "completed"]


async def test_what_on_status_raises_ends_the_wait_bare() -> None:
    """Documented in `TasksClient`: the wait ends, not the task."""

    async def on_status(task: DetailedTask) -> None:
        raise LookupError("no such bar")

    stub = StubTasks(working(), completed())
    async with connected(stub, on_status=on_status) as client:
        with pytest.raises(LookupError, match="no such bar"):
            await client.call_tool("durable")
    assert stub.count("tasks/cancel") == 0


async def test_a_time_out_stops_the_waiting_only_and_names_the_task() -> None:
    """Issue 2, part 6: wait with time-out; the task goes on."""
    stub = StubTasks(working())
    async with connected(stub) as client:
        handle = await TasksClient.start(client, "durable")
        for wait in (handle.result, handle.wait):
            with pytest.raises(TimeoutError, match=f"Task {LABEL} is still .* after 0.05 s. It goes on") as caught:
                await wait(timeout=0.05)
            assert TASK_ID not in str(caught.value)
        stub.play(completed())
        assert text(await handle.result(timeout=30)) == "done"
    assert stub.count("tasks/cancel") == 0


async def test_a_question_open_at_a_time_out_is_asked_again_by_the_next_wait() -> None:
    """It was never answered, so remembering its key would hang the next wait."""
    undecided, stub = Undecided(), StubTasks(asking("k"))
    async with connected(stub, undecided) as client:
        handle = await TasksClient.start(client, "durable")
        for _ in range(2):
            with anyio.CancelScope() as scope:

                async def give_up(scope: anyio.CancelScope = scope) -> None:
                    await undecided.asked.wait()
                    scope.cancel()

                async with anyio.create_task_group() as group:
                    group.start_soon(give_up)
                    await handle.result()
            undecided.asked = anyio.Event()
    assert undecided.stopped == 2
    assert stub.count("tasks/update") == 0


# ------------------------------------------------------------------------------------------------ back-off


async def test_only_a_task_made_just_now_gets_a_pause_before_the_first_poll() -> None:
    """A poll right behind the create finds nothing; one on an older task may find its end."""
    pauses, stub = Pauses(), StubTasks(working())
    async with connected(stub, pause=pauses) as client:
        handle = await TasksClient.start(client, "durable")
        await handle.get()
        stub.play(completed())
        await handle.result()
        await TasksClient.attach(client, handle.task_id).result()
        assert pauses.ms == []
        await client.call_tool("durable")
    assert pauses.ms == [10]


async def test_pauses_double_from_10_ms_up_to_the_servers_hint() -> None:
    """Issue 2, part 6: starts fast, `pollIntervalMs` is the ceiling; P34: it may change on the way."""
    pauses = Pauses()
    script = [working(hint=100)] * 6 + [working(hint=50)] * 2 + [working(hint=400)] * 3 + [completed()]
    async with connected(StubTasks(*script), pause=pauses) as client:
        await client.call_tool("durable")
    assert pauses.ms == [10, 20, 40, 80, 100, 100, 100, 50, 50, 100, 200, 400]


@pytest.mark.parametrize("hint", [None, 0, -5, 10**12, 1e308, 1.5, "abc", "500", True, [1]])
async def test_a_junk_hint_counts_as_one_second(hint: Any) -> None:
    """D04: absent, zero, negative, absurd or no integer, on the create result and on every poll."""
    pauses = Pauses()
    script = [working(hint=hint)] * 10 + [completed()]
    async with connected(StubTasks(*script, hint=hint), pause=pauses) as client:
        await client.call_tool("durable")
    assert pauses.ms == [10, 20, 40, 80, 160, 320, 640, 1_000, 1_000, 1_000, 1_000]


@pytest.mark.parametrize(
    ("hint", "ceiling"),
    [(1, 10), (10, 10), (700, 700), (3_600_000, 3_600_000), (86_400_000, 3_600_000), (86_400_001, 1_000)],
)
async def test_the_ceiling_keeps_between_10_ms_and_one_hour(hint: int, ceiling: int) -> None:
    """D04: a local floor and a cap harm neither side."""
    assert ceiling_ms(hint) == ceiling


async def test_the_back_off_restarts_fast_after_an_answer() -> None:
    """The resumed run is seen at once, although the server's hint is long while a person is asked (P34)."""
    pauses = Pauses()
    stub = StubTasks(*[working()] * 5, asking("k"), when_answered("k", working(at=2)), working(at=3), completed())
    async with connected(stub, Person(), pause=pauses) as client:
        await client.call_tool("durable")
    assert pauses.ms[:6] == [10, 20, 40, 80, 160, 320]
    assert pauses.ms[-2:] == [0, 10]


async def test_a_cancel_through_the_handle_wakes_a_wait_on_it() -> None:
    """The seam a push notification will use: a pause ends when the bell rings."""
    asleep = anyio.Event()

    async def only_the_bell(delay_ms: int, bell: Bell, heard: int) -> None:
        asleep.set()
        await bell.wait(heard)

    stub = StubTasks(cancelled())
    async with connected(stub, pause=only_the_bell) as client:
        handle = await TasksClient.start(client, "durable")
        ended: list[DetailedTask] = []

        async def wait() -> None:
            ended.append(await handle.wait())

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await asleep.wait()
            assert stub.count("tasks/get") == 0
            await handle.cancel()
    assert [task.status for task in ended] == ["cancelled"]
    assert stub.count("tasks/cancel") == 1


async def test_a_real_pause_ends_by_its_time_or_by_the_bell() -> None:
    """The pause that users get: the first call ends although nobody rings, the second long before its hour."""
    bell = Bell()
    await pause(1, bell, bell.rings)
    async with anyio.create_task_group() as group:
        group.start_soon(pause, 3_600_000, bell, bell.rings)
        await anyio.lowlevel.checkpoint()
        bell.ring()


async def test_a_ring_between_a_poll_and_its_pause_is_not_lost() -> None:
    """The race of every wake-up: rings are counted."""
    bell = Bell()
    heard = bell.rings
    bell.ring()
    await bell.wait(heard)


# ------------------------------------------------------------------------------------------------ failures


async def test_failed_polls_do_not_end_the_wait() -> None:
    """D03: one bad poll must not end the tracking."""
    pauses = Pauses()
    stub = StubTasks(
        MCPError(INTERNAL_ERROR, "store away"),
        MCPError(CONNECTION_CLOSED, "reset"),
        MCPError(REQUEST_TIMEOUT, "slow"),
        MCPError(PARSE_ERROR, "<html>"),
        {"resultType": "complete", "unexpected": True},
        working(),
        completed(),
    )
    async with connected(stub, pause=pauses) as client:
        assert text(await client.call_tool("durable")) == "done"
    assert pauses.ms == [10, 250, 500, 1_000, 2_000, 4_000, 20]


async def test_eight_failures_in_a_row_end_the_wait_with_the_last_error() -> None:
    """The documented bound; seven and seven with a success between are no eight in a row."""
    away = MCPError(INTERNAL_ERROR, "store away", {"retry": True})
    stub = StubTasks(*[away] * 7, working(), *[away] * 7, completed())
    async with connected(stub) as client:
        assert text(await client.call_tool("durable")) == "done"
    stub = StubTasks(*[away] * 8, completed())
    async with connected(stub) as client:
        with pytest.raises(TaskUnreachable, match=f"task {LABEL}: 8 requests .* store away.* goes on") as caught:
            await client.call_tool("durable")
        assert (caught.value.code, caught.value.data, caught.value.task_id) == (
            INTERNAL_ERROR,
            {"retry": True},
            TASK_ID,
        )
        assert stub.count("tasks/get") == 8
        assert text(await TasksClient.attach(client, caught.value.task_id).result()) == "done"


async def test_answers_that_cannot_be_read_end_without_showing_what_they_were() -> None:
    """House rule: nothing of a payload in messages or tracebacks."""
    shot = working() | {"status": "sesame"}
    async with connected(StubTasks(shot)) as client:
        with pytest.raises(TaskUnreachable, match="cannot be read") as caught:
            await client.call_tool("durable")
    error = caught.value
    assert error.code == PARSE_ERROR
    assert "sesame" not in str(error)
    assert error.__cause__ is None
    assert error.__suppress_context__


@pytest.mark.parametrize("code", [INVALID_PARAMS, -32021, METHOD_NOT_FOUND])
async def test_an_error_that_waiting_cannot_mend_ends_the_wait_at_once(code: int) -> None:
    """P60: an unknown task is -32602; so with a missing capability and a server without tasks."""
    stub = StubTasks(MCPError(code, "no"), completed())
    async with connected(stub) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("durable")
    assert caught.value.code == code
    assert stub.count("tasks/get") == 1


async def test_a_poll_that_hangs_is_given_up_and_made_again() -> None:
    """D03: read time-out. The bound is each request's, not the task's."""
    stub = StubTasks(when(anyio.Event(), working()), completed())
    async with connected(stub, read_timeout_seconds=0.05) as client:
        assert text(await client.call_tool("durable")) == "done"
    assert stub.count("tasks/get") >= 2


async def test_single_requests_raise_what_the_server_answers() -> None:
    """`get`, `update` and `cancel` do not retry: their caller decides."""
    stub = StubTasks(MCPError(INTERNAL_ERROR, "store away"), completed(), updates=[MCPError(INTERNAL_ERROR, "too")])
    async with connected(stub) as client:
        handle = TasksClient.attach(client, TASK_ID)
        with pytest.raises(MCPError, match="store away"):
            await handle.get()
        with pytest.raises(MCPError, match="too"):
            await handle.update({"k": {"action": "decline"}})
        assert (await handle.get()).status == "completed"


# ------------------------------------------------------------------------------------------------ over HTTP


class Line:
    """A TCP line to a server, in the test's hands."""

    def __init__(self, server_port: int) -> None:
        self._server_port, self._open = server_port, set[anyio.abc.SocketStream]()
        self._down = self._bites = False
        self.port, self.refused = 0, anyio.Event()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
            self.port = listener.extra(anyio.abc.SocketAttribute.local_port)
            task_status.started()
            await listener.serve(self._carry)

    async def cut(self) -> None:
        """What is connected breaks, and whoever connects is hung up on (`refused`), until `mend`."""
        self._down = True
        for stream in tuple(self._open):
            await anyio.aclose_forcefully(stream)

    def bite(self) -> None:
        """The line breaks before the last byte of the next JSON body, until `mend`."""
        self._bites = True

    def mend(self) -> None:
        self._down = self._bites = False

    async def _carry(self, caller: anyio.abc.SocketStream) -> None:
        async with caller:
            if self._down:
                self.refused.set()
                return
            async with await anyio.connect_tcp("127.0.0.1", self._server_port) as server:
                self._open.add(caller)
                try:
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._pump, caller, server, False, group.cancel_scope)
                        group.start_soon(self._pump, server, caller, True, group.cancel_scope)
                finally:
                    self._open.discard(caller)

    async def _pump(
        self, source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream, back: bool, scope: anyio.CancelScope
    ) -> None:
        try:
            async for chunk in source:
                bitten = back and self._bites and chunk.endswith(b"}")
                await sink.send(chunk[:-1] if bitten else chunk)
                if bitten:
                    break
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the line was cut, or one end hung up
        scope.cancel()


@asynccontextmanager
async def serving(stub: StubTasks, *, json_response: bool) -> AsyncGenerator[Line]:
    """The stub behind real HTTP, reached over a `Line`."""
    app = serve(stub).streamable_http_app(json_response=json_response)
    sock = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        line = Line(sock.getsockname()[1])
        async with anyio.create_task_group() as group:
            await group.start(line.run)
            yield line
            group.cancel_scope.cancel()
    finally:
        server.should_exit = True
        await anyio.to_thread.run_sync(thread.join)
        sock.close()


@pytest.mark.parametrize("json_response", [True, False])
async def test_a_wait_over_http_survives_that_the_server_is_gone_for_a_while(json_response: bool) -> None:
    """Issue 2, part 6, and D03. mcp 2.3 alone ends the whole client on the first refused connection."""
    stub = StubTasks(working(hint=20))
    async with serving(stub, json_response=json_response) as line:
        headers = {"authorization": "Bearer sesame"}
        async with connect(f"http://127.0.0.1:{line.port}/mcp", headers=headers) as connection:
            handle = await connection.tasks.start(connection.client, "durable")
            await handle.wait(until={"working"})
            assert stub.headers["authorization"] == "Bearer sesame"
            assert stub.headers["mcp-name"] == TASK_ID
            results: list[CallToolResult] = []

            async def wait() -> None:
                results.append(await handle.result())

            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await line.cut()
                await line.refused.wait()
                stub.play(completed("late"))
                line.mend()
            assert text(results[0]) == "late"


async def test_a_broken_connection_fails_its_own_request_with_an_error_that_says_so() -> None:
    """The client stays usable: the caller may send the same call again with its idempotency key."""
    stub = StubTasks(completed())
    async with (
        serving(stub, json_response=True) as line,
        connect(f"http://127.0.0.1:{line.port}/mcp") as connection,
    ):
        await line.cut()
        with pytest.raises(MCPError, match="no connection to the server") as caught:
            await connection.client.call_tool("durable")
        assert caught.value.code == CONNECTION_CLOSED
        line.mend()
        line.bite()
        with pytest.raises(MCPError, match="no connection to the server"):
            await connection.client.call_tool("durable")
        line.mend()
        assert text(await connection.client.call_tool("durable")) == "done"
    assert stub.count("tools/call") == 2  # the bitten answer's call had reached the server


async def test_connecting_to_nobody_is_one_plain_error_that_names_the_url_without_secrets() -> None:
    """House rules: errors are for people, and carry no credentials."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    with pytest.raises(ConnectionError, match=rf"No MCP server answers at http://127.0.0.1:{port}/mcp:") as caught:
        async with connect(f"http://me:sesame@127.0.0.1:{port}/mcp?key=sesame"):
            raise AssertionError("unreachable")
    assert "sesame" not in str(caught.value)


async def test_connecting_to_something_that_is_no_mcp_server_says_so() -> None:
    """As above, where HTTP answers."""
    async with serving(StubTasks(working()), json_response=True) as line:
        with pytest.raises(MCPError, match=rf"The server at http://127.0.0.1:{line.port}/nope refused the connection"):
            async with connect(f"http://127.0.0.1:{line.port}/nope"):
                raise AssertionError("unreachable")


async def test_an_error_in_the_body_of_connect_arrives_bare() -> None:
    """The SDK's own client would wrap it in two ExceptionGroups."""
    async with serving(StubTasks(failed(-32050, "quota")), json_response=True) as line:
        with pytest.raises(TaskFailed, match="quota"):
            async with connect(f"http://127.0.0.1:{line.port}/mcp") as connection:
                await connection.client.call_tool("durable")
