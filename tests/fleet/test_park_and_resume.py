"""A task waits for a person without a worker, and goes on whatever happened (B03, B08, C08, C09, E05, E10)."""

from __future__ import annotations

import re
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from mcptasks.client import Connection, TaskFailed, TaskHandle, TasksClient
from mcptasks.model import Status
from tests.fleet.conftest import Running, Served, on_running, on_served
from tests.fleet.system import Fleet, accepted, answer, client, new_key, outcome, questions, start
from tests.requirements import covers
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


# ------------------------------------------------------------------------------------------------ B03: one unit


@on_running
@covers("B03")
async def test_a_tasks_keys_never_part_and_a_resume_has_the_clients_arguments(running: Running) -> None:
    """B03: keys with lives of their own ran out one after the other, and the next leg ran the tool with `{}`."""
    key, fleet = new_key(), running.fleet
    async with client(running.url) as connection:
        handle = await start(connection, "ask1", key=key, x=7)
        await questions(handle)
        assert len(_expiries(fleet, handle)) == 4, "record, call, journal, timeline"
        assert len(set(_expiries(fleet, handle).values())) == 1
        await answer(handle, "yes")
        assert await outcome(handle) == "7 yes"
        assert len(set(_expiries(fleet, handle).values())) == 1
    assert [line["x"] for line in fleet.ledger.of(key) if line["event"] == "run"] == [7, 7]


@on_running
@covers("B03")
async def test_a_task_whose_call_was_lost_fails_and_says_so(running: Running) -> None:
    """B03: with a part missing there is nothing to run; the tool is never called with what nobody sent."""
    key, fleet = new_key(), running.fleet
    async with client(running.url) as connection:
        handle = await start(connection, "ask1", key=key, x=7)
        await questions(handle)
        fleet.raw.delete(fleet.keys.call(handle.task_id))
        await answer(handle, "yes")
        with pytest.raises(TaskFailed, match="the stored call is missing or unreadable") as failed:
            await handle.result(60)
    assert failed.value.code == INTERNAL_ERROR
    assert fleet.ledger.events(key) == ["run"]


@on_running
@covers("B03")
async def test_a_task_whose_record_was_lost_is_gone_as_a_whole(running: Running) -> None:
    """B03: what is left of it must not answer, resume or stay."""
    key, fleet = new_key(), running.fleet
    async with client(running.url) as connection:
        handle = await start(connection, "ask1", key=key, x=7)
        open_keys = list(await questions(handle))
        fleet.raw.delete(fleet.keys.task(handle.task_id))
        for request in (handle.get(), handle.cancel(), handle.update({open_keys[0]: accepted("yes")})):
            with pytest.raises(MCPError) as gone:
                await request
            assert gone.value.error.code == INVALID_PARAMS
    assert fleet.ledger.events(key) == ["run"]


def _expiries(fleet: Fleet, handle: TaskHandle) -> dict[str, int]:
    names = [key for key in fleet.task_keys() if handle.task_id in key]
    return {name: int(str(fleet.raw.execute_command("PEXPIRETIME", name))) for name in names}


# ------------------------------------------------------------------------------------------------ B08: no request left


@covers("B08", "R8", "N9")
async def test_what_a_tool_knew_of_its_request_it_knows_after_server_and_request_are_gone(fleet: Fleet) -> None:
    """B08: the request's scope was disposed before the job ran; token and session were None in the worker."""
    key = new_key()
    first, second = fleet.start_server(FLEET_AUTH="1"), fleet.start_server(FLEET_AUTH="1")
    async with client(fleet.ready(first), token="alice", x_team="blue", x_secret="hidden") as connection:
        handle = await start(connection, "surroundings", key=key)
        alone = await start(connection, "needs_a_session", key=new_key())
    first.kill()
    fleet.start_worker(FLEET_AUTH="1")
    async with client(fleet.ready(second), token="alice") as connection:
        attached = TasksClient.attach(connection.client, handle.task_id)
        assert (await attached.wait(60, until=["input_required"])).status_message == "looked around: 1 of 2 (50 %)"
        await answer(attached, "here")
        result = await attached.result(60)
        assert result.structured_content == {
            "caller": "alice",
            "token": "",
            "headers": {"x-team": "blue"},
            "opened_by_me": True,
            "answer": "here",
        }
        with pytest.raises(TaskFailed, match="cannot send 'ping/pong' to its client"):
            await TasksClient.attach(connection.client, alone.task_id).result(60)


# ------------------------------------------------------------------------------------------------ C08: keys


@on_served
@covers("C08", "P40", "P41")
async def test_a_late_answer_never_answers_a_later_question_also_across_a_restart(served: Served) -> None:
    """C08: asking again under one key cleared its history, so a late duplicate of the first answer satisfied the next.

    One tool uses a question text twice, the other a key of its own; on the wire nothing is used twice.
    """
    worker = served.fleet.worker()
    async with client(served.url) as connection:
        asked: list[tuple[TaskHandle, str, str]] = []
        for tool in ("ask_same_twice", "ask_by_returning"):
            handle = await start(connection, tool, key=new_key())
            [first] = list(await questions(handle))
            guessed = re.sub("1$", "2", first) if tool == "ask_same_twice" else first.replace("r1-", "r2-")
            await _stray(connection, handle, {guessed: accepted("too early")})
            await handle.update({first: accepted("one")})
            [second] = list(await questions(handle))
            assert second != first
            asked.append((handle, first, second))
        worker.kill()
        for handle, first, _ in asked:
            await _stray(connection, handle, {first: accepted("late"), "nobody-asked-this": accepted("stray")})
        served.fleet.worker()
        for handle, first, second in asked:
            assert list((await handle.get()).input_requests or {}) == [second]
            await handle.update({second: accepted("two"), first: accepted("late")})
            assert await outcome(handle) == "one two"


async def _stray(connection: Connection, handle: TaskHandle, answers: dict[str, Any]) -> None:
    """Another caller of the same owner answers; a handle would take for answered what it sent itself."""
    await TasksClient.attach(connection.client, handle.task_id).update(answers)


# ------------------------------------------------------------------------------------------------ C09: partial answers


@covers("R3", "P41", "W1")
async def test_half_an_answer_survives_a_restart_of_everything_and_the_rest_completes_it(fleet: Fleet) -> None:
    """C09: the store recorded which keys were answered but not the values, and nothing restarted the handler."""
    key = new_key()
    worker, server = fleet.start_worker(), fleet.start_server()
    async with client(fleet.ready(worker, server)) as connection:
        handle = await start(connection, "fan2", key=key)
        by_text = {asked["params"]["message"]: name for name, asked in (await questions(handle)).items()}
        await handle.update({by_text["one?"]: accepted("1")})
        half = await handle.get()
        assert (half.status, list(half.input_requests or {})) == ("input_required", [by_text["two?"]])
    worker.kill()
    server.kill()
    worker, server = fleet.start_worker(), fleet.start_server()
    async with client(fleet.ready(worker, server)) as connection:
        handle = TasksClient.attach(connection.client, handle.task_id)
        again = await handle.get()
        assert (again.status, list(again.input_requests or {})) == ("input_required", [by_text["two?"]])
        await handle.update({by_text["two?"]: accepted("2")})
        assert await outcome(handle) == "1 2"
    assert fleet.ledger.events(key) == ["run", "run"]


# ------------------------------------------------------------------------------------------------ E05: lost wake-ups

ROUNDS = 100
AT_ONCE = 4


@on_running
@covers("E05")
async def test_an_answer_at_the_instant_a_question_is_visible_always_resumes(running: Running) -> None:
    """E05: an event sent right after the wait was announced was dropped, and the flow sat until its time-out."""

    async def one(handle: TaskHandle) -> None:
        async def visible() -> dict[str, object]:
            return (await handle.get()).input_requests or {}

        asked = await eventually(visible, description="the question is visible")
        await handle.update({key: accepted("at once") for key in asked})
        assert await outcome(handle) == "1 at once"

    async def some(count: int) -> None:
        async with client(running.url) as connection:
            for _ in range(count):
                await one(await start(connection, "ask1", key=new_key(), x=1))

    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(some, ROUNDS // AT_ONCE)


# ------------------------------------------------------------------------------------------------ E10: asked once


@on_served
@covers("N7", "N8", "E01", "E10")
async def test_a_task_whose_worker_dies_around_its_question_asks_once_and_charges_once(served: Served) -> None:
    """E10 and E01: the retry showed the same dialog again, and side effects above the question doubled."""
    fleet = served.fleet
    fleet.worker("prefork", concurrency=3)
    async with client(served.url) as connection:
        tasks = {
            die_after: (key, await start(connection, "charge_ask_charge", key=key, die_after=die_after))
            for die_after in ("a", "answer", "b", "never")
            for key in [new_key()]
        }
        asked = {die_after: await answer(handle, "yes") for die_after, (_, handle) in tasks.items()}
        for die_after, (key, handle) in tasks.items():
            assert await outcome(handle) == "a yes b"
            events = fleet.ledger.events(key)
            assert (events.count("charge a"), events.count("charge b")) == (1, 1), die_after
            assert events.count("died") == (die_after != "never")
            assert len(asked[die_after]) == 1
            journal = fleet.raw.hkeys(fleet.keys.journal(handle.task_id))
            assert sum(str(field).startswith("k:") for field in journal) == 1, "no second question was ever asked"


@on_served
@covers("W3", "E10")
async def test_an_answer_stored_while_no_worker_is_up_is_used_by_the_next_one(served: Served) -> None:
    """E10 and A03: answered, but neither its worker nor its message is left; the record alone knows."""
    key, fleet = new_key(), served.fleet
    worker = fleet.worker()
    async with client(served.url) as connection:
        handle = await start(connection, "ask1", key=key, x=5)
        await questions(handle)
        worker.kill()
        fleet.drop_messages()
        await answer(handle, "yes")
        fleet.await_status(handle, Status.QUEUED)
        fleet.drop_messages()
        fleet.worker()
        assert await outcome(handle) == "5 yes"
    assert fleet.ledger.count(key, "answered") == 1


# ------------------------------------------------------------------------------------------------ hold


@on_running
async def test_an_answer_within_the_hold_goes_on_live_without_a_second_run(running: Running) -> None:
    """DESIGN 5: held, the run stands where it asked; nothing above the question happens again."""
    key, fleet = new_key(), running.fleet
    async with client(running.url) as connection:
        handle = await start(connection, "ask1_held", key=key)
        await answer(handle, "live")
        assert await outcome(handle) == "live"
    assert fleet.ledger.events(key) == ["run", "answered"]
    record = fleet.record(handle)
    assert (record.token, record.attempt) == (1, 1)


@on_running
async def test_holds_add_up_and_past_their_sum_the_task_parks(running: Running) -> None:
    """Ours: the hard limit of a run has room for one hold; questions answered one by one must not run into it."""
    key, fleet = new_key(), running.fleet
    async with client(running.url) as connection:
        handle = await start(connection, "ask_held_often", key=key)
        for _ in range(3):
            open_before = list(await questions(handle))
            await anyio.sleep(0.4)  # the thing under test: each is answered well within the hold, all of them not
            await handle.update({key: accepted("yes") for key in open_before})
        assert await outcome(handle) == "yes yes yes"
    assert fleet.record(handle).token > 1
