"""The sample fleet's own server, unmodified and bound, in `mcptasks.testing`: its durable tools as tasks."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from mcptasks import testing
from mcptasks.client import TaskHandle, TasksClient
from workers.server import mcp, tasks

pytestmark = pytest.mark.anyio

APPROVE = {"action": "accept", "content": {"approve": True, "note": "fine"}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tools work."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("MCPTASKS_SAMPLES_LEDGER", str(tmp_path / "ledger.jsonl"))
    return tmp_path


async def outcome(handle: TaskHandle) -> dict[str, Any]:
    """The tool's structured result."""
    result = await handle.result()
    assert not result.is_error and result.structured_content is not None
    return result.structured_content


async def test_an_order_whose_worker_dies_at_the_charge_is_reserved_once_and_charged_again(folder: Path) -> None:
    """What an author wants to know of a tool that pays: here the charge is not idempotent, and the ledger shows it."""
    async with testing.run(mcp, tasks) as world, world.client() as client:
        handle = await TasksClient.start(client, "order_supplies", {"items": [{"article": "ink", "quantity": 2}]})
        await world.advance("3d")
        world.crash_at_step("charge")
        await world.answer(handle, APPROVE)
        await world.advance("1m")
        order = await outcome(handle)
    assert (order["status"], order["total_cents"]) == ("charged", 5_980)
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == ["reserve", "charge", "charge"]
    assert {line["reservation"] for line in lines} == {order["reservation"]}


async def test_a_release_is_deployed_after_the_weekend(folder: Path) -> None:
    """Planned on Friday, approved on Monday."""
    async with testing.run(mcp, tasks) as world, world.client() as client:
        handle = await TasksClient.start(client, "deploy_release", {"version": "1.4.0"})
        await world.advance("3d")
        await world.answer(handle, APPROVE)
        assert (await outcome(handle))["deployed"] is True
    assert "1.4.0" in (folder / "mcptasks-samples/live/VERSION").read_text()


async def test_tools_that_ask_nothing_are_done_as_soon_as_the_world_is_idle(folder: Path) -> None:
    """They work on real files in threads."""
    (folder / "in").mkdir()
    (folder / "in/a.txt").write_text("some words")
    async with testing.run(mcp, tasks) as world, world.client() as client:
        files = await TasksClient.start(client, "index_files", {"folder": str(folder / "in")})
        report = await TasksClient.start(client, "csv_report", {"csv_text": "a,b\n1,2\n3,4\n"})
        await world.idle()
        assert await world.operations.active() == []
        assert (await outcome(files))["files"] == 1
        assert "integer" in (await outcome(report))["result"]
