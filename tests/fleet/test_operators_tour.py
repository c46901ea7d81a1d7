"""The operators' tour: from a page that rang to a fleet that is well again, with the commands alone, in real terminals.

Every screen is kept in `tour.txt` beside the fleet's logs, as a person would have seen it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

from mcptasks.cli.worker import worker_argv
from mcptasks.client import Connection, TaskHandle
from mcptasks.model import Status, label
from tests.fleet.system import Fleet, Proc, client, outcome, start
from tests.support.terminal import Terminal, terminal
from tests.support.waiting import eventually, wait_until

pytestmark = pytest.mark.anyio

CELERY: Final = "tests.fleet.tour_tools:celery"
#: Twenty tasks of all kinds.
CALLS: Final[list[tuple[str, dict[str, Any]]]] = [
    *[("count_words", {"text": "a b c"}) for _ in range(5)],
    *[("crunch", {"pages": 10}) for _ in range(2)],
    ("crunch", {"pages": 100_000}),
    *[("refund", {"order": f"A-{n}", "amount": 40 + n}) for n in range(3)],
    *[("bill", {"customer": f"customer {n}"}) for n in range(2)],
    *[("sync", {"source": "crm.example"}) for _ in range(2)],
    *[("remind", {"name": "Ann"}) for _ in range(2)],
    *[("render", {"scene": f"scene {n}"}) for n in range(2)],
    ("export", {"rows": 3}),
]
#: Which, until somebody does something, stay as they are.
STANDING: Final = {
    Status.COMPLETED: 8,
    Status.RUNNING: 1,
    Status.PARKED: 3,
    Status.FAILED: 2,
    Status.RETRYING: 2,
    Status.SLEEPING: 2,
    Status.QUEUED: 2,
}


class TourFleet(Fleet):
    """The fleet of the tour; its workers serve one queue each."""

    def serve(self) -> Proc:
        """A server is starting."""
        return self.start("serve", "tests.fleet.tour_tools:mcp", "--port", "0")

    def work(self, queue: str) -> Proc:
        """A worker of that queue is starting."""
        name = f"w{self.started}"
        argv = worker_argv(CELERY, pool="threads", concurrency=8, name=f"{name}@test", log_level="INFO")
        return self.start_other(f"worker-{name}", [*argv, "--without-mingle", "--queues", queue])


class Desk:
    """An operator's terminal, and what stood on it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.tour = fleet.folder / "tour.txt"

    def run(self, *words: str, code: int = 0) -> str:
        """The command's screen, once it has ended with that code."""
        with terminal(*words, env=self.environment) as screen:
            assert screen.end() == code, screen.screen()
            return self.keep(screen, words)

    def keep(self, screen: Terminal, words: tuple[str, ...]) -> str:
        """The screen, which is in the tour's book now, too."""
        shown = screen.screen()
        with self.tour.open("a") as book:
            book.write(f"$ mcptasks {' '.join(words)}\n{shown}\n\n")
        return shown

    @property
    def environment(self) -> dict[str, str]:
        """What tells the commands which fleet it is, and who acts."""
        names = ("MCPTASKS_REDIS_URL", "MCPTASKS_PREFIX", "MCPTASKS_ARTIFACTS_URL")
        mine = self._fleet.environment()
        return {name: mine[name] for name in names} | {"MCPTASKS_OPERATOR": "kim", "PYTHONPATH": mine["PYTHONPATH"]}


@pytest.fixture
def tour(tmp_path: Path) -> Generator[TourFleet]:
    """Nothing runs yet."""
    with TourFleet(tmp_path, TOUR_BILLING=str(tmp_path / "billing is up")) as fleet:
        yield fleet
        assert fleet.keys_for_ever() == []


@pytest.mark.slow
async def test_the_operators_tour(tour: TourFleet) -> None:
    """Issue 7: find the stuck one, read why, answer the approval, retry a failed one, drain, restart."""
    server, worker = tour.serve(), tour.work("mcptasks")
    url = tour.ready(worker, server)
    desk = Desk(tour)
    async with client(url) as connection:
        handles = await asyncio.gather(*(start(connection, tool, **arguments) for tool, arguments in CALLS))
        assert len(handles) == 20
        named = {tool: [handles[n] for n, (name, _) in enumerate(CALLS) if name == tool] for tool, _ in CALLS}
        await eventually(lambda: _standing(tour, handles), description=f"they are {STANDING}", within_s=60)

        see_the_fleet(desk)
        find_the_stuck_one(desk, tour, named["render"])
        answer_the_approvals(desk, named["refund"])
        retry_the_failed_one(desk, tour, named["bill"][0])
        read_of_the_others(desk, named)
        await _ended(named["render"], named["refund"])
        assert await outcome(named["refund"][0]) == "refunded 40 EUR: said Kim"
        assert await outcome(named["refund"][1]) == "not refunded"
        drain(desk)
    for proc in (server, worker):
        proc.terminate()
        proc.await_end()
    again = tour.serve()
    url = tour.ready(tour.work("mcptasks"), again)
    await open_again(desk, url)


def see_the_fleet(desk: Desk) -> None:
    """What rang: tasks wait."""
    shown = desk.run("top", "--once", "--interval", "0.2")
    for status, count in STANDING.items():
        assert f"{status} {count}" in shown
    assert "w1@test" in shown
    shown = desk.run("ps")
    assert shown.count("render") == 2 and "count_words" not in shown


def find_the_stuck_one(desk: Desk, tour: TourFleet, stuck: list[TaskHandle]) -> None:
    """Its own page says why, and what to do; that helps."""
    assert desk.run("ps", "--status", "queued").count("render") == 2
    shown = desk.run("show", label(stuck[0].task_id))
    assert "waits for" in shown and "a worker that serves queue 'gpu': none of 1 does" in shown
    tour.ready(tour.work("gpu"))
    wait_until(lambda: "render" not in desk.run("ps", "--status", "queued"), description="nothing is stuck any more")


def answer_the_approvals(desk: Desk, asking: list[TaskHandle]) -> None:
    """By the form, and by options; the third waits on."""
    shown = desk.run("show", label(asking[0].task_id))
    assert "Refund 40 EUR for order A-0?" in shown and "order A-0 checked" in shown
    words = ("answer", label(asking[0].task_id))
    with terminal(*words, env=desk.environment) as screen:
        form = (("cancel?", "accept"), ("Send the money", "y"), ("For the books", "said Kim"), ("again?", "send"))
        for asked, said in form:
            screen.await_text(asked)
            screen.type(said)
        assert screen.end() == 0, screen.screen()
        assert "answered" in desk.keep(screen, words)
    assert "answered" in desk.run("answer", label(asking[1].task_id), "--decline")


def retry_the_failed_one(desk: Desk, tour: TourFleet, failed: TaskHandle) -> None:
    """Once what it failed of is mended."""
    assert desk.run("ps", "--status", "failed").count("bill  failed") == 2
    assert "-32001: The billing system does not answer" in desk.run("show", label(failed.task_id))
    Path(tour.environment()["TOUR_BILLING"]).touch()
    fresh = desk.run("retry", label(failed.task_id)).split()[1]
    wait_until(lambda: "completed" in desk.run("show", fresh), description="the new one has ended")
    assert f"retried: as {fresh}" in desk.run("logs", label(failed.task_id))


def read_of_the_others(desk: Desk, named: dict[str, list[TaskHandle]]) -> None:
    """What each waits for stands on its own page."""
    shown = desk.run("show", label(named["sync"][0].task_id))
    assert "retrying" in shown and "retry: number 1, in 1h: crm.example refused the connection" in shown
    assert "cancelled" in desk.run("cancel", label(named["sync"][0].task_id), "--reason", "crm is gone for good")
    assert "by operator kim" in desk.run("show", label(named["sync"][0].task_id))
    assert "sleeping" in desk.run("show", label(named["remind"][0].task_id))
    assert "rows.csv" in desk.run("show", label(named["export"][0].task_id))
    assert "page" in desk.run("logs", label(named["crunch"][2].task_id))


def drain(desk: Desk) -> None:
    """What would never end is named, and is stopped when that is said."""
    shown = desk.run("drain", "--timeout", "1s", "--reason", "deploy of 12:00", code=1)
    assert "5 tasks have not ended" in shown
    assert "drained" in desk.run("drain", "--cancel", "--reason", "deploy of 12:00")
    assert "deploy of 12:00" in desk.run("admission", "status")


async def open_again(desk: Desk, url: str) -> None:
    """The new fleet takes calls once it is told to."""
    desk.run("admission", "open")
    async with client(url) as connection:
        assert await outcome(await _called(connection)) == "3"
    assert "ended" in desk.run("top", "--once", "--interval", "0.2")


async def _called(connection: Connection) -> TaskHandle:
    return await start(connection, "count_words", text="a b c")


async def _standing(tour: TourFleet, handles: list[TaskHandle]) -> bool:
    found = Counter(tour.record(handle).status for handle in handles)
    return found == STANDING


async def _ended(*groups: list[TaskHandle]) -> None:
    for handle in (groups[0][0], groups[0][1], groups[1][0], groups[1][1]):
        await handle.result()
