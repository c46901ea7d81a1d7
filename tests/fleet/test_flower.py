"""Flower beside a fleet, set up as the README says: what it lists, and that nothing depends on it (case A13)."""

from __future__ import annotations

import base64
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from mcptasks.client import TaskHandle
from mcptasks.model import label
from tests.fleet.conftest import Served, on_served
from tests.fleet.system import CELERY, Proc, answer, client, free_port, new_key, outcome, questions, start
from tests.requirements import covers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LOGIN: Final = "operator:fleet-test"
TASKS: Final = 200


class Flower:
    """A Flower process and its API."""

    def __init__(self, served: Served, **env: str) -> None:
        self._port = free_port()
        argv = [sys.executable, "-m", "celery", "-A", CELERY, "flower", f"--port={self._port}"]
        self._process: Proc = served.fleet.start_other("flower", argv, FLOWER_BASIC_AUTH=LOGIN, **env)
        wait_until(lambda: self.get("workers") is not None, description="Flower answers", within_s=60)

    def get(self, path: str) -> Any:
        """What its API says; None: it does not answer, or knows nothing of that name."""
        try:
            return json.loads(self.page(f"api/{path}"))
        except (urllib.error.URLError, TimeoutError):
            return None

    def page(self, path: str, *, login: str | None = LOGIN, post: bool = False) -> str:
        """The page as it comes.

        Raises:
            HTTPError: its answer is a refusal.
        """
        headers = {} if login is None else {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
        url = f"http://127.0.0.1:{self._port}/{path}"
        request = urllib.request.Request(url, b"" if post else None, headers=headers)
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.read().decode()

    def refusal(self, path: str, **how: Any) -> int:
        """The code of its refusal."""
        with pytest.raises(urllib.error.HTTPError) as refused:
            self.page(path, **how)
        refused.value.close()
        return refused.value.code

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


#: All that Flower 2.2 can show, but for the pages of one worker and one task.
PAGES: Final = (
    *("", "workers", "tasks", "broker", "metrics", "healthcheck"),
    *("api/tasks", "api/task/types", "api/queues/length", "api/workers"),
)


@on_served
async def test_flower_shows_no_argument_answer_or_whole_id_and_nothing_of_it_is_in_the_broker(served: Served) -> None:
    """Issue 7: a running, three queued, a parked, an answered and an ended task, read wherever Flower shows them."""
    fleet, argument, said = served.fleet, new_key(), f"answer-{new_key()}"
    release = fleet.folder / new_key()
    flower = Flower(served, FLOWER_READ_ONLY="true")
    worker = fleet.worker(concurrency=1)
    heard(worker)
    name = f"{worker.name.removeprefix('worker-')}@test"
    with eavesdropping(served) as overheard:
        async with client(served.url) as connection:
            ended = await start(connection, "ledger", key=argument)
            assert argument in await outcome(ended)
            asked, parked = [await start(connection, "ask1", key=argument, x=7) for _ in range(2)]
            await answer(asked, said)
            assert said in await outcome(asked)
            await questions(parked)
            running = await start(connection, "gate", key=argument, path=str(release))
            fleet.ledger.await_event(argument, "begin")
            queued = [await start(connection, "ledger", key=argument) for _ in range(3)]
            wait_until(lambda: len(fleet.messages()) == 3, description="the queue has three messages")

            lengths = flower.get("queues/length")
            assert lengths == {"active_queues": [{"name": "mcptasks", "messages": 3}]}, "below the prefix, on Valkey 9"
            first = wait_until(lambda: flower.run_of(parked), description="Flower knows the parked run")
            assert (first["name"], first["state"]) == ("ask1", "RETRY")
            assert first["exception"] == "parked: waits for a person"
            second = wait_until(lambda: flower.get(f"task/info/{label(asked.task_id)}-2"), description="the second run")
            assert (second["name"], second["state"], second["retries"]) == ("ask1", "SUCCESS", 1)
            active = wait_until(
                lambda: flower.get(f"workers?refresh=1&workername={name}")[name].get("active"), description="its work"
            )
            assert [one["id"] for one in active] == [f"{label(running.task_id)}-1"]

            runs = [f"{label(task.task_id)}-1" for task in (ended, asked, parked, running)]
            shown = {path: flower.page(path) for path in (*PAGES, f"worker/{name}", *(f"task/{run}" for run in runs))}
            assert f"{label(running.task_id)}-1" in shown[f"worker/{name}"], "the page shows what is being worked on"
            tasks = [ended, asked, parked, running, *queued]
            secrets = [argument, said, *(task.task_id for task in tasks)]
            assert [(path, secret) for path, text in shown.items() for secret in secrets if secret in text] == []
            carried = [plain(message) for message in (*fleet.messages(), *overheard())]
            assert [text for text in carried if argument in text or said in text] == []
            assert any("task-retried" in text for text in carried), "the events went by, too"
            release.touch()
            for task in (running, *queued):
                await outcome(task)
            await parked.cancel()

    counted = {
        (sample.labels["task"], sample.labels["type"]): sample.value
        for family in text_string_to_metric_families(flower.page("metrics", login=None))
        for sample in family.samples
        if sample.name == "flower_events_total"
    }
    assert counted["ask1", "task-retried"] == 2
    assert counted["ask1", "task-succeeded"] == 1
    assert flower.page("healthcheck", login=None) == "OK"
    closed = [path for path in (*PAGES, f"worker/{name}") if path not in ("metrics", "healthcheck")]
    assert {path: flower.refusal(path, login=None) for path in closed} == dict.fromkeys(closed, 401)
    assert {flower.refusal(path, login="operator:wrong") for path in closed} == {401}
    # Read-only: the fleet is drained, and tasks are cancelled, where the store hears of it.
    assert flower.refusal(f"api/worker/shutdown/{name}", post=True) == 403
    assert flower.refusal("api/task/async-apply/mcptasks.execute", post=True) == 403
    flower.stop()


@contextmanager
def eavesdropping(served: Served) -> Generator[Callable[[], list[str]]]:
    """Gives what was published on the broker since the block began, Celery's events among it."""
    overheard: list[str] = []
    with redis.Redis.from_url(served.fleet.store.url, decode_responses=True) as raw, raw.pubsub() as ear:
        ear.psubscribe("*")

        def listen() -> list[str]:
            while (message := ear.get_message(timeout=0.2)) is not None:
                overheard.append(str(message["data"]))
            return overheard

        yield listen


def plain(message: str) -> str:
    """The message with its body, which kombu hides in base64."""
    body = re.search(r'"body": "([A-Za-z0-9+/=]+)"', message)
    return message + base64.b64decode(body[1]).decode() if body else message
