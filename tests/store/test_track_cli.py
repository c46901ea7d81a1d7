"""`mcptasks track ...`: what it prints, what it stores, and its exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
from typer.testing import CliRunner, Result

from mcptasks.cli import operating
from mcptasks.cli.main import app
from mcptasks.errors import ConfigurationError, MCPTasksError, UnknownTask
from mcptasks.settings import Settings
from mcptasks.tracker.options import TrackOptions
from mcptasks.tracker.store.store import TrackStore
from tests.support.stub_server import StubServer
from tests.support.tracking import ASK, DONE, TrackPeek, claimed, polled, tracked

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _environment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCPTASKS_REDIS_URL", settings.redis_url)
    monkeypatch.setenv("MCPTASKS_PREFIX", settings.prefix)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def stub() -> Generator[StubServer]:
    """A task server."""
    with StubServer() as server:
        yield server


def stored(settings: Settings, work: Callable[[TrackStore], Awaitable[T]]) -> T:
    """What that does on the store, in a loop of its own."""

    async def run() -> T:
        store = TrackStore(settings, TrackOptions())
        try:
            return await work(store)
        finally:
            await store.aclose()

    return asyncio.run(run())


def call(*argv: str) -> Result:
    """The command's outcome."""
    return CliRunner().invoke(app, ["track", *argv])


def servers_file(stub: StubServer, folder: Path) -> str:
    """A file with this server, as "stub"."""
    servers = folder / "servers.json"
    servers.write_text(json.dumps({"mcpServers": {"stub": {"url": stub.url, "mcptasks": {"driver": "tasks"}}}}))
    return str(servers)


def said(*argv: str) -> Any:
    """The command's JSON."""
    done = call(*argv, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_task_is_submitted_listed_shown_and_cancelled(settings: Settings, stub: StubServer, tmp_path: Path) -> None:
    """From the command line alone; without a worker a cancel says so."""
    submit = (
        "submit",
        "stub",
        "export",
        '{"n": 1}',
        "--servers",
        servers_file(stub, tmp_path),
        "--key",
        "2026",
        "--notify",
        "hook",
    )
    task = said(*submit)
    assert (task["status"], task["server"], task["consumers"]) == ("working", "stub", ["hook"])
    assert said(*submit)["task_id"] == task["task_id"]
    assert stub.asked("tools/call")[0].params["arguments"] == {"n": 1}
    assert len(stub.asked("tools/call")) == 1
    page = said("ps", "--status", "working", "--server", "stub")
    assert [one["task_id"] for one in page["tasks"]] == [task["task_id"]]
    assert said("ps", "--status", "failed") == {"tasks": [], "cursor": None}
    assert said("show", task["task_id"][:8])["task_id"] == task["task_id"]
    assert "no active tracker" in call(*submit).stderr
    for argv in (("ps",), ("show", task["task_id"])):
        assert task["task_id"][:10] in call(*argv).stdout
    assert "no active tracker" in call("cancel", task["task_id"]).stdout
    assert said("show", task["task_id"])["cancel_requested"] is True


def test_submit_can_wait_for_the_end(settings: Settings, stub: StubServer, tmp_path: Path) -> None:
    """Exit code 0 for completed, 1 for a tool error too; here the server answers at once."""
    stub.plain["now"] = lambda arguments: DONE
    done = call("submit", "stub", "now", "--servers", servers_file(stub, tmp_path), "--wait", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["result"]["content"] == DONE["content"]
    stub.plain["now"] = lambda arguments: {**DONE, "isError": True}
    failed = call("submit", "stub", "now", "--servers", servers_file(stub, tmp_path), "--wait")
    assert (failed.exit_code, failed.stderr) == (1, "")


def test_a_question_is_answered(settings: Settings) -> None:
    """By its content, by a no, or by walking away; checked before it is stored."""
    task_id = stored(settings, lambda store: tracked(store, status="input_required", questions={"a": ASK, "b": ASK}))
    assert f"mcptasks track answer {task_id[:10]} a '{{...}}'" in call("show", task_id).stdout
    assert "Open: 'a', 'b'" in str(call("answer", task_id, "c", '{"ok": true}').exception)
    assert call("answer", task_id, "a", '{"ok": "maybe"}').exit_code == 1
    assert call("answer", task_id, "a", '{"ok": true}').exit_code == 0
    assert call("answer", task_id, "b", "--decline").exit_code == 0
    shown = said("show", task_id)
    assert (shown["questions"], sorted(shown["answers_to_deliver"])) == ({}, ["a", "b"])
    assert call("answer", task_id, "b", "--decline").exit_code == 1


def test_dead_letters_are_listed_and_replayed(settings: Settings, raw: redis.Redis) -> None:
    """Until there are none."""

    async def die(store: TrackStore) -> str:
        task_id = await tracked(store, consumers=("hook",))
        claim = await claimed(store, TrackPeek(raw, settings.prefix), task_id)
        await store.observe(task_id, claim.token, polled("completed", result=DONE))
        (delivery,) = (await store.take("hook", 1, 1_000)).deliveries
        await store.undelivered(delivery, delay_ms=1, permanent=True, why="HTTP 410")
        return task_id

    task_id = stored(settings, die)
    other_id = stored(settings, die)
    assert [letter["task_id"] for letter in said("dead")] == [other_id, task_id]
    assert call("replay", "--all", "--consumer", "mail").exit_code == 1
    assert "2 are being delivered again" in call("replay", "--all", "--consumer", "hook").stdout
    assert said("dead") == []

    async def refuse(store: TrackStore) -> None:
        TrackPeek(raw, settings.prefix).deliver_now("hook", task_id, other_id)
        for delivery in (await store.take("hook", 2, 1_000)).deliveries:
            if delivery.event.task_id == task_id:
                await store.undelivered(delivery, delay_ms=1, permanent=True, why="HTTP 410")

    stored(settings, refuse)
    (letter,) = said("dead")
    assert (letter["task_id"], letter["consumer"], letter["why"]) == (task_id, "hook", "HTTP 410")
    assert "HTTP 410" in call("dead").stdout
    assert "1 is being delivered again" in call("replay", task_id[:8]).stdout
    assert said("dead") == []
    assert isinstance(call("replay", task_id).exception, MCPTasksError)


def test_what_servers_say_cannot_write_to_the_terminal(settings: Settings) -> None:
    """Their words are shown, and no sequence in them is obeyed."""
    evil = "all is well\x1b]0;owned\x07\x1b[2J\x9b1m\r[bold]fine"
    task_id = stored(settings, lambda store: tracked(store, message=evil))
    for shown in (call("ps").stdout, call("show", task_id).stdout, call("show", task_id, "--json").stdout):
        assert "all is well" in shown and "[bold]fine" in shown
        assert not [char for char in shown if not char.isprintable() and char != "\n"]


def test_the_store_of_a_dev_in_this_folder_is_the_one_that_is_looked_at(
    settings: Settings, stub: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of every other command that looks, where nothing names a store."""
    monkeypatch.delenv("MCPTASKS_REDIS_URL")
    monkeypatch.setattr(operating, "running_on", lambda: settings.redis_url)
    submitted = call("submit", "stub", "export", "--servers", servers_file(stub, tmp_path), "--json")
    assert [task["task_id"] for task in said("ps")["tasks"]] == [json.loads(submitted.stdout)["task_id"]]


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (("submit", "stub", "export", "{"), ConfigurationError),
        (("submit", "stub", "export", "[]"), ConfigurationError),
        (("submit", "stub", "export"), ConfigurationError),
        (("answer", "x" * 32, "k"), ConfigurationError),
        (("answer", "x" * 32, "k", "{}", "--decline"), ConfigurationError),
        (("replay",), ConfigurationError),
        (("replay", "x" * 32, "--all"), ConfigurationError),
        (("show", "x" * 32), UnknownTask),
        (("cancel", "x" * 32), UnknownTask),
        (("show", "abc"), UnknownTask),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, tuple) else None,
)
def test_mistakes_are_told_by_kind(argv: tuple[str, ...], error: type[MCPTasksError]) -> None:
    """Usage is 2 and everything else 1, which the one `main` of all commands sees to."""
    assert type(call(*argv).exception) is error


def test_an_exit_code_of_usage_comes_from_typer_too() -> None:
    """An unknown status."""
    assert call("ps", "--status", "lost").exit_code == 2
