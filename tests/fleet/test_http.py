"""Durable calls over each kind of streamable HTTP that `mcptasks serve` has, on one fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from mcp.client import Client

from mcptasks.client import TaskCancelled, TaskHandle, TasksClient
from tests.fleet.conftest import Running, on_running
from tests.fleet.system import accepted, client, new_key, outcome, questions, start, text
from tests.requirements import covers
from tests.support.patient import Patient

pytestmark = [pytest.mark.anyio, on_running]

EVERY_KIND: Final = pytest.mark.parametrize("how", ["http", "stateless", "json"])


async def cancelled(handle: TaskHandle) -> str:
    """The task was cancelled, and says so; its status before that."""
    before = (await handle.get()).status
    await handle.cancel()
    with pytest.raises(TaskCancelled):
        await handle.result(30)
    return before


@covers("P12", "P20", "P32", "P40", "P50", "P52", "B08")
@EVERY_KIND
async def test_a_task_lives_its_whole_life(with_threads: Running, doors: Mapping[str, str], how: str) -> None:
    """Issue 4: called, polled, asked, answered, completed; and cancelled while it works and while it waits."""
    key, ledger = new_key(), with_threads.fleet.ledger
    async with client(doors[how]) as connection:
        handle = await start(connection, "ask1", key=key, x=7)
        asked = await questions(handle)
        assert [question["params"]["message"] for question in asked.values()] == [f"{key}?"]
        await handle.update({name: accepted("yes") for name in asked})
        assert await outcome(handle) == "7 yes"
        done = await handle.get()
        assert (done.status, done.input_requests, done.error) == ("completed", None, None)
        assert ledger.events(key) == ["run", "run", "answered"]

        waits = await start(connection, "ask1", key=new_key(), x=7)
        await questions(waits)
        assert await cancelled(waits) == "input_required"

        working = new_key()
        works = await start(connection, "ledger_slow", key=working, seconds=60)
        await asyncio.to_thread(ledger.await_event, working, "begin")
        assert await cancelled(works) == "working"
        assert ledger.events(working) == ["begin", "stopped"]


@covers("P70", "P72")
@EVERY_KIND
async def test_a_listener_is_told_of_the_end(doors: Mapping[str, str], how: str, tmp_path: Path) -> None:
    """Issue 4: `subscriptions/listen` is a stream on each of them; a wait that relies on it asks no more."""
    key, path, patient = new_key(), tmp_path / "open", Patient()
    async with (
        client(doors["http"]) as maker,
        Client(doors[how], extensions=[TasksClient(pause=patient)]) as listener,
    ):
        made = await start(maker, "gate", key=key, path=str(path))
        wait: asyncio.Task[Any] = asyncio.create_task(TasksClient.attach(listener, made.task_id).result(60))
        async with asyncio.timeout(30):
            await patient.relies.wait()
        path.touch()
        assert text(await wait) == f"passed {key}"
