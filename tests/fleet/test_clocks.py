"""Processes in other zones and with wrong clocks: what a client reads, and when a task ends, is the store's time."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from mcptasks.cli.worker import worker_argv
from mcptasks.client import TaskFailed
from mcptasks.model import Reason
from mcptasks.wire import DetailedTask
from tests.fleet.system import Fleet, answer, client, start, text
from tests.requirements import covers

pytestmark = pytest.mark.anyio

TARGET: Final = "tests.fleet.skewed_tools:mcp"
CELERY: Final = "tests.fleet.skewed_tools:celery"

#: RFC 3339 `date-time`; its grammar knows no moment without an offset.
RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def moment(said: str) -> datetime:
    """The moment that a strict reader takes it for."""
    assert RFC3339.fullmatch(said), said
    return datetime.fromisoformat(said)


@covers("F10", "R7", "P33")
@pytest.mark.parametrize(
    ("clock", "here"),
    [
        pytest.param("90", "-0500", id="ahead"),
        # New York sets its clocks back two seconds after the worker has begun.
        pytest.param("2026-11-01T05:59:58+00:00", "-0[45]00", id="at the end of summer time, a month ago"),
    ],
)
async def test_times_are_the_stores_whatever_clocks_and_zones_there_are(fleet: Fleet, clock: str, here: str) -> None:
    """F10: a naive time was read in the wrong zone, a skewed one ended tasks too early; times ran backwards."""
    server = fleet.start("serve", TARGET, "--port", "0", TZ="Asia/Kolkata", FLEET_CLOCK="-90")
    argv = worker_argv(CELERY, pool="threads", concurrency=2, name="w@test", log_level="INFO")
    worker = fleet.start_other("worker", argv, TZ="America/New_York", FLEET_CLOCK=clock)
    url = fleet.ready(worker, server)
    seen = list[DetailedTask]()
    async with client(url) as connection:
        before = datetime.now(UTC)
        busy = await start(connection, "busy")
        brief = await start(connection, "outlive")
        async for task in busy.changes():
            seen.append(task)
            if task.status == "input_required":
                await answer(busy, "yes")
        assert re.search(rf"T\d\d:\d\d:\d\d{here}$", text(await busy.result(60))), "the worker's clock is no other"
        with pytest.raises(TaskFailed, match="expired"):
            await brief.result(60)
        after = datetime.now(UTC)
    created, updated = [moment(task.created_at) for task in seen], [moment(task.last_updated_at) for task in seen]
    assert set(created) == {created[0]} and {task.status for task in seen} > {"working", "input_required"}
    assert [created[0], *updated] == sorted([created[0], *updated])
    #: The store is on this machine; nothing of what a client reads is of another clock.
    slack = timedelta(seconds=5)
    assert before - slack < created[0] <= updated[-1] < after + slack
    assert all(
        told is None or told.at_ms is None or abs(told.at_ms / 1000 - time.time()) < 60
        for told in (task.progress for task in seen)
    )
    # It is kept for a minute from its end on, by the store's clock.
    left_ms = fleet.raw.pttl(fleet.keys.task(busy.task_id))
    assert 60_000 - 1000 * (datetime.now(UTC) - updated[-1]).total_seconds() == pytest.approx(left_ms, abs=2_000)
    overdue = fleet.record(brief)
    assert (overdue.reason, overdue.ttl_ms) == (Reason.EXPIRED, 3_000)
    assert 3_000 <= overdue.updated_ms - overdue.created_ms < 30_000, "never early"
