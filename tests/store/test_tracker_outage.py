"""A webhook's receiver that is away for a while, over real HTTP and by the clock."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import redis

from mcptasks.settings import Settings
from mcptasks.tracker import intervals
from mcptasks.tracker.deliverer import Deliverer
from mcptasks.tracker.remote import RemoteStatus, Snapshot
from mcptasks.tracker.webhook import Webhook
from tests.requirements import covers
from tests.support.tracker_desk import OneDriver, ScriptedDriver, desk
from tests.support.tracking import DONE
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

TASKS = 20
DOWN_S = 120.0


class Receiver(ThreadingHTTPServer):
    """Has its port, refuses connections until it is up, and then keeps the ids of the events that it is told."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()
        super().__init__(("127.0.0.1", 0), _Inbox, bind_and_activate=False)
        self.server_bind()

    @contextmanager
    def up(self) -> Generator[None]:
        """It listens."""
        self.server_activate()
        thread = threading.Thread(target=self.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()


class _Inbox(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        self.rfile.read(int(self.headers["content-length"]))
        self.server.told[self.headers["mcptasks-event-id"]] += 1
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@covers("D6", "D09")
@pytest.mark.parametrize(
    "faster", [pytest.param(100, id="a hundred times faster"), pytest.param(1, id="real time", marks=pytest.mark.slow)]
)
async def test_a_receiver_that_is_down_for_two_minutes_gets_everything_once_it_is_back(
    settings: Settings, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, faster: int
) -> None:
    """The attempts reach over the outage: no dead letter, every end once, and nothing is owed any more."""
    monkeypatch.setattr(intervals, "DELIVERY_MS", tuple(ms // faster for ms in intervals.DELIVERY_MS))
    driver = ScriptedDriver()
    with Receiver() as receiver:
        hook = Webhook(f"http://127.0.0.1:{receiver.server_port}/in", secret="a secret of ours", allow_private=True)
        async with desk(settings, raw, OneDriver(driver), look_ms=20) as front:
            task_ids = [(await front.submit(consumers=("hook",))).task_id for _ in range(TASKS)]
            driver.says["look"] = [Snapshot(status=RemoteStatus.COMPLETED, result=DONE)] * TASKS
            ends = {f"{task.task_id}:{task.revision}" for task in await front.poll(*task_ids)}
            delivering = asyncio.create_task(Deliverer("hook", hook, front.store, front.options).run())
            try:
                await asyncio.sleep(DOWN_S / faster)  # the outage itself
                failed = [front.peek.fields(task_id).get("t:hook") for task_id in task_ids]
                assert None not in failed and receiver.told == {}

                async def nothing_is_owed() -> bool:
                    return front.peek.raw.zcard(front.peek.keys.outbox("hook")) == 0

                with receiver.up():
                    await eventually(nothing_is_owed, description="nothing is owed", within_s=150)
            finally:
                delivering.cancel()
                await asyncio.gather(delivering, return_exceptions=True)
            assert receiver.told == dict.fromkeys(ends, 1)
            assert await front.store.dead() == []
