"""Flower beside a fleet, set up as the README says: what it lists, and that nothing depends on it (case A13)."""

from __future__ import annotations

import base64
import json
import sys
import urllib.error
import urllib.request
from typing import Any, Final

import pytest

from mcptasks.client import TaskHandle
from mcptasks.model import label
from tests.fleet.conftest import Served, on_served
from tests.fleet.system import CELERY, Proc, client, free_port, new_key, outcome, start
from tests.requirements import covers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LOGIN: Final = "operator:fleet-test"
TASKS: Final = 200


class Flower:
    """A Flower process and its API."""

    def __init__(self, served: Served) -> None:
        self._port = free_port()
        argv = [sys.executable, "-m", "celery", "-A", CELERY, "flower", f"--port={self._port}"]
        self._process: Proc = served.fleet.start_other("flower", argv, FLOWER_BASIC_AUTH=LOGIN)
        wait_until(lambda: self.get("workers") is not None, description="Flower answers", within_s=60)

    def get(self, path: str) -> Any:
        """What its API says; None: it does not answer, or knows nothing of that name."""
        login = base64.b64encode(LOGIN.encode()).decode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/api/{path}", headers={"Authorization": f"Basic {login}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return json.loads(response.read())
        except (urllib.error.URLError, TimeoutError):
            return None

    def run_of(self, task: TaskHandle) -> dict[str, Any] | None:
        """The Celery message of the task's first run, by the id that follows from the task's."""
        return self.get(f"task/info/{label(task.task_id)}-1")

    def stop(self) -> None:
        """Flower is gone."""
        self._process.stop()


def heard(*workers: Proc) -> None:
    """Flower has told them that it listens; what they did before, it learns only of those started with -E."""
    for worker in workers:
        worker.await_output("enabled by remote")


@covers("A13")
@on_served
async def test_flower_finds_every_worker_and_a_tasks_run_by_its_id_and_nothing_needs_flower(served: Served) -> None:
    """A13: Flower first, then three workers of which one is busy; restarted, it lists them again."""
    fleet, release = served.fleet, served.fleet.folder / new_key()
    flower = Flower(served)
    workers = [fleet.start_worker("prefork", concurrency=2), fleet.start_worker("threads", concurrency=2)]
    fleet.ready(*workers)
    heard(*workers)
    async with client(served.url) as connection:
        busy = [await start(connection, "gate", key=new_key(), path=str(release)) for _ in range(4)]
        wait_until(lambda: {fleet.record(task).status for task in busy} == {"running"}, description="both are busy")
        heard(fleet.worker("threads", concurrency=4))
        tasks = [await start(connection, "ledger", key=new_key()) for _ in range(TASKS)]
        for task in tasks:
            await outcome(task)
        wait_until(
            lambda: len(flower.get("workers?refresh=1") or ()) == 3, description="Flower lists all three", within_s=60
        )
        found = wait_until(lambda: flower.run_of(tasks[-1]), description="Flower finds the run")
        assert (found["name"], found["state"], found["args"], found["kwargs"]) == ("ledger", "SUCCESS", "()", "{}")
        flower.stop()
        # The store is the truth: with Flower gone it tells the same as ever, and calls go on.
        assert {fleet.record(task).status for task in tasks} == {"completed"}
        assert await outcome(await start(connection, "ledger", key=new_key()))
        flower = Flower(served)
        wait_until(
            lambda: len(flower.get("workers?refresh=1") or ()) == 3, description="it lists them again", within_s=60
        )
        release.touch()
        for task in busy:
            await outcome(task)
        flower.stop()
    assert [key for key in fleet.keys_for_ever() if "pidbox" in key] == []
