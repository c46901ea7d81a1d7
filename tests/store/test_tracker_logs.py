"""MCPTASKS_LOG_FORMAT=json: whatever the tracker says of a task has the task's name in its field."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Generator

import pytest
import redis

from mcptasks.errors import StoreUnavailable
from mcptasks.model import label
from mcptasks.observe.logs import write_json
from mcptasks.settings import Settings
from mcptasks.tracker.consumers import Function
from mcptasks.tracker.errors import Refused
from mcptasks.tracker.model import Event, Tracked
from mcptasks.tracker.remote import RemoteRefused, RemoteStatus, Snapshot
from tests.support.tracker_desk import OneDriver, ScriptedDriver, desk
from tests.support.tracking import ASK, YES

pytestmark = pytest.mark.anyio


@pytest.fixture
def lines() -> Generator[io.StringIO]:
    """What the tracker's logger writes, from INFO on."""
    out = io.StringIO()
    handler, logger = logging.StreamHandler(out), logging.getLogger("mcptasks.tracker")
    write_json([handler])
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.INFO)
    yield out
    logger.setLevel(before)
    logger.removeHandler(handler)


async def test_every_line_about_a_task_names_it_in_its_field(
    settings: Settings, raw: redis.Redis, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its submit to its dead letter, also where what a failed submit began is made good behind its back."""

    async def refuse(event: Event, task: Tracked) -> None:
        raise Refused("HTTP 410")

    async def away(*_: object) -> None:
        raise StoreUnavailable("away")

    driver = ScriptedDriver()
    async with desk(settings, raw, OneDriver(driver)) as front:
        task_id = (await front.submit(consumers=("hook",))).task_id
        driver.says["look"] = [Snapshot(status=RemoteStatus.INPUT_REQUIRED, questions={"k": ASK})]
        await front.poll(task_id)
        await front.store.answer(task_id, {"k": YES})
        await front.store.cancel(task_id, "no")
        driver.says["cancel"] = driver.says["answer"] = [RemoteRefused(-32602, "no")] * 2
        await front.poll(task_id)
        await front.deliver("hook", Function(refuse))
        broken = (await front.submit()).task_id
        raw.hset(front.peek.keys.task(broken), "polls", "many")
        front.peek.make_due(broken)
        await front.store.claim("me", 10)
        with monkeypatch.context() as patch:
            patch.setattr(front.store, "track", away)
            driver.says["cancel"] = [RemoteRefused(-32602, "no")]
            with pytest.raises(StoreUnavailable):
                await front.submit(task_id="L" * 32)
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    about = [line for line in told if "ask " in line["message"]]
    assert len(about) >= 7
    assert {line["task_id"] for line in about} == {label(task_id), label(broken), label("L" * 32)}
    assert all(line["task_id"] in line["message"] for line in about)
    assert {line.get("tool", "") for line in about} == {"export", ""}
