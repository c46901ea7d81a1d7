"""Ordinary async tools in each pool, and what nobody may see of a task's contents (case A15, DESIGN invariant 10)."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from mcptasks.client import TaskCancelled
from mcptasks.fleet.app import make_app
from tests.fleet.conftest import Running, Served, on_running, on_served
from tests.fleet.system import TARGET, Fleet, answer, client, new_key, outcome, questions, start, text
from tests.requirements import covers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

#: What must not be seen where it does not belong.
ARGUMENT, ANSWER = "SECRET-ARGUMENT-7f3a", "SECRET-ANSWER-91cc"

#: A worker that sends all the events it can, from its first moment.
WITH_EVENTS = ("worker", TARGET, "--pool", "threads", "--concurrency", "4", "--", "--task-events")


@covers("A15")
@on_served
@pytest.mark.parametrize("pool", ["threads", "prefork"])
async def test_a_client_made_at_import_serves_every_call_of_a_process(served: Served, pool: str) -> None:
    """A15: each task got a fresh event loop, while a module-level client kept the sockets of the old one.

    Three calls in a row, a fourth that is cancelled in mid-protocol, a fifth; one slot, so that all share a process.
    """
    key, fleet = new_key(), served.fleet
    worker = fleet.worker(pool, concurrency=1)
    async with client(served.url) as connection:

        async def count() -> int:
            result = await (await start(connection, "count_up", key=key)).result(60)
            return int(text(result))

        assert [await count() for _ in range(3)] == [1, 2, 3]
        fourth = await start(connection, "wait_for_push", key=key)
        fleet.ledger.await_event(key, "begin")
        await fourth.cancel()
        with pytest.raises(TaskCancelled):
            await fourth.result(60)
        assert await count() == 4
    assert len({line["pid"] for line in fleet.ledger.of(key)}) == 1
    assert worker.stop() == 0
    assert "different loop" not in worker.output and "loop is closed" not in worker.output


@covers("A15")
@on_served
@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
async def test_a_task_left_behind_changes_nothing_and_stops_with_its_worker(served: Served, pool: str) -> None:
    """A15: what a tool leaves running on the shared loop goes on, as in the live server; it cannot write any more."""
    key, after, fleet = new_key(), new_key(), served.fleet
    worker = fleet.worker(pool, concurrency=1)
    async with client(served.url) as connection:
        handle = await start(connection, "leaves_a_task_behind", key=key)
        assert await outcome(handle) == "returned"
        before = fleet.raw.hgetall(fleet.keys.task(handle.task_id))
        seen = fleet.ledger.count(key, "left behind")
        fleet.ledger.await_event(key, "left behind", times=seen + 5)
        other = await start(connection, "ledger", key=after)
        assert await outcome(other) == f"ran {after}"
        assert fleet.record(other).status_message is None
        assert fleet.raw.hgetall(fleet.keys.task(handle.task_id)) == before
    assert worker.stop() == 0


@on_served
async def test_a_process_enters_the_lifespan_once_and_leaves_it_at_its_end(served: Served) -> None:
    """DESIGN 5: tools rely on what it opened; per call that would leak, before a fork it would be shared."""
    fleet, since = served.fleet, len(served.fleet.ledger.of("lifespan"))
    worker = fleet.worker("prefork", concurrency=2)
    async with client(served.url) as connection:
        for handle in [await start(connection, "ledger", key=new_key()) for _ in range(6)]:
            await outcome(handle)
    children = worker.children()
    assert worker.stop() == 0
    lines = fleet.ledger.of("lifespan")[since:]
    for child in children:
        assert [line["event"] for line in lines if line["pid"] == child] == ["entered", "left"]
    assert worker.pid not in {line["pid"] for line in lines}


@on_running
async def test_tools_of_a_threads_worker_overlap(with_threads: Running) -> None:
    """DESIGN 9: the threads pool is for tools that wait; four of them take the time of one."""
    key, fleet = new_key(), with_threads.fleet
    async with client(with_threads.url) as connection:
        handles = [await start(connection, "loop_sync", key=f"{key}{n}") for n in range(4)]
        for n in range(4):
            fleet.ledger.await_event(f"{key}{n}", "tick")  # none of them ends by itself
        for handle in handles:
            await handle.cancel()


# ------------------------------------------------------------------------------------------------ contents


@on_served
@pytest.mark.slow
@covers("P81")
async def test_arguments_answers_and_results_stay_out_of_messages_logs_and_events(served: Served) -> None:
    """Invariant 10: brokers, logs and monitors are read by many more people than the store."""
    fleet = served.fleet
    with events(fleet) as seen:
        async with client(served.url) as connection:
            handle = await start(connection, "ask1", key=ARGUMENT, x=1)
            wait_until(fleet.messages, description="the first message is in the queue")
            messages = fleet.messages()
            first = fleet.start(*WITH_EVENTS)
            await questions(handle)
            wait_until(lambda: "task-retried" in types(seen), description="monitors know that it is parked")
            first.kill()
            await answer(handle, ANSWER)
            wait_until(fleet.messages, description="the message of the second run is in the queue")
            messages += fleet.messages()
            second = fleet.start(*WITH_EVENTS)
            assert await outcome(handle) == f"1 {ANSWER}"
            wait_until(lambda: "task-succeeded" in types(seen), description="monitors know the end")
        assert second.stop() == 0
    bodies = [base64.b64decode(json.loads(message)["body"]).decode() for message in messages]
    assert all(json.loads(body)[1]["task_id"] == handle.task_id for body in bodies), "the id and no more"
    for place, said in {
        "messages": " ".join(messages + bodies),
        "events": json.dumps(seen, default=str),
        "the workers' logs": first.output + second.output,
        "the server's log": "".join(log.read_text() for log in fleet.folder.glob("serve-*.log")),
    }.items():
        assert ARGUMENT not in said and ANSWER not in said, place
        if place != "messages":
            assert handle.task_id not in said, f"{place}: without authentication the id is the secret"
            assert handle.task_id[:10] in said or place == "the server's log", "but an operator finds it by its label"


def types(seen: list[dict[str, Any]]) -> set[str]:
    """The kinds of events."""
    return {event["type"] for event in seen}


@contextmanager
def events(fleet: Fleet) -> Generator[list[dict[str, Any]]]:
    """Every event that a monitor such as Flower gets inside the block."""
    app = make_app(fleet.settings)
    seen: list[dict[str, Any]] = []
    stop = threading.Event()

    def listen() -> None:
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": seen.append})
            while not stop.is_set():
                try:
                    receiver.capture(limit=None, timeout=0.5, wakeup=False)
                except TimeoutError:
                    continue

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
        app.close()
