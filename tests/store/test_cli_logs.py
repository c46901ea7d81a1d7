"""logs, the timeline in show, and retry: what happened to a task, and what it was to do once more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcptasks.model import Status, label
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from mcptasks.store.timeline import Remark
from tests.requirements import covers
from tests.support.command import Commands, environment
from tests.support.tasks import ANN, claimed, end, ended, parked, queued, read, running
from tests.support.terminal import terminal

pytestmark = pytest.mark.anyio


def said(text: str) -> Remark:
    """The tool's own entry."""
    return Remark(0, "note", json.dumps({"text": text}))


async def test_logs_tell_what_happened_in_order(store: TaskStore, commands: Commands) -> None:
    """By the beginning of the id; show has the latest of it."""
    claim = await parked(store, "q")
    await store.answer(claim.task_id, ANN, {"q": {"action": "decline"}})
    again = await claimed(store, claim.task_id, run=2)
    for n in (1, 2):
        await store.progress(again, f"Counting: {n}", n, None, None)
    await store.step(again, "charge#1", "1")
    await end(store, again)
    shown = (await commands.run("logs", claim.task_id[:6])).out.splitlines()
    order = [line.split(" ")[1].rstrip(":") for line in shown]
    assert [what for what in order if what in ("create", "ask", "answer", "claim", "step", "end")] == [
        *("create", "claim", "ask", "answer", "claim", "step", "end")
    ]
    said_of = {line.split(" ")[1].rstrip(":"): line.partition(": ")[2] for line in shown}
    assert (said_of["progress"], said_of["answer"]) == ("Counting: 2 (2 reports)", "by client: q")
    assert all(line.startswith("20") and line.split(" ")[0].endswith("Z") for line in shown)
    told = (await commands.run("logs", claim.task_id[:6], "--json")).json
    assert [entry["what"] for entry in told["entries"]] == order
    assert told["entries"][-1]["status"] == "completed"
    assert (await commands.run("show", claim.task_id, "--json")).json["timeline"] == told
    assert "charge#1" in (await commands.run("show", claim.task_id)).out


async def test_show_has_the_latest_of_a_long_timeline(store: TaskStore, commands: Commands) -> None:
    """And says where the rest is."""
    claim = await running(store)
    for n in range(20):
        await store.step(claim, f"s#{n}", "1")
    shown = (await commands.run("show", claim.task_id)).out
    assert "s#19" in shown and "s#9\n" not in shown
    assert f"mcptasks logs {label(claim.task_id)} shows all" in shown


async def test_what_a_tool_says_moves_no_terminal(store: TaskStore, commands: Commands) -> None:
    """Notes are anybody's words."""
    claim = await running(store)
    await store.note(claim, [said("\x1b[2J[red]hello\u202e")])
    for words in (("logs", claim.task_id), ("show", claim.task_id)):
        shown = (await commands.run(*words)).out
        assert "\x1b" not in shown and "\u202e" not in shown and "[red]hello" in shown


async def test_followed_logs_go_on_until_the_task_has_ended(store: TaskStore, settings: Settings) -> None:
    """In a terminal: each entry once, as it comes; then exit code 0."""
    claim = await running(store)
    with terminal("logs", claim.task_id[:8], "-f", "--interval", "0.1", env=environment(settings)) as screen:
        screen.await_text("create")
        await store.step(claim, "charge#1", "1")
        screen.await_text("charge#1")
        await store.note(claim, [said("almost there")])
        shown = screen.await_text("almost there")
        assert shown.count("charge#1") == shown.count("create") == 1
        await end(store, claim)
        screen.await_text("status completed")
        assert screen.end() == 0
        assert screen.screen().count("almost there") == 1


async def test_followed_logs_end_with_ctrl_c(store: TaskStore, settings: Settings) -> None:
    """No error, no stack trace; programs read one object a line."""
    task_id = await queued(store)
    with terminal("logs", task_id, "-f", "--json", env=environment(settings)) as screen:
        shown = screen.await_text('"what": "create"')
        entry: dict[str, Any] = json.loads(shown.replace("\n", ""))
        assert entry["tool"] == "report"
        screen.interrupt()
        assert screen.end() == 0
        assert "Traceback" not in screen.screen()


@covers("W8")
async def test_retry_makes_a_new_task_of_a_failed_one_alone(store: TaskStore, commands: Commands) -> None:
    """Its id is told; others are refused with code 1."""
    failed = await ended(store, Status.FAILED)
    done = await commands.run("retry", failed.task_id[:8])
    assert (done.code, done.out.startswith("task "), done.out.endswith(" does it again\n")) == (0, True, True)
    fresh = (await commands.run("retry", failed.task_id[:8], "--json")).json["id"]
    record = await read(store, fresh)
    assert (record.status, record.tool, record.owner) == (Status.QUEUED, "report", ANN)
    assert (await read(store, failed.task_id)).status is Status.FAILED
    refused = await commands.run("retry", fresh)
    assert (refused.code, "only a task that has failed can be retried" in refused.said) == (1, True)
