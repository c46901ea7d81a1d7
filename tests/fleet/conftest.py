"""Fleets of real processes for the tests of this ring."""

from __future__ import annotations

import signal
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.fleet.system import TARGET, Fleet, Proc

#: uvicorn leaves in order and then dies of the signal it was told to end with.
ENDED: Final = (0, -signal.SIGTERM)


#: Tests of one group stay on one test process, so that what they share is started once (`--dist loadgroup`).
on_served: Final = pytest.mark.xdist_group("one server for all")
on_running: Final = pytest.mark.xdist_group("one fleet of each pool for all")


@dataclass(frozen=True)
class Served:
    """A server and its store."""

    fleet: Fleet
    url: str


@dataclass(frozen=True)
class Running:
    """A fleet that many tests share: they leave its processes alone."""

    fleet: Fleet
    url: str
    worker: Proc


@pytest.fixture
def fleet(tmp_path: Path) -> Generator[Fleet]:
    """A store of the test's own, nothing started on it yet; the test may kill what it likes."""
    with Fleet(tmp_path) as mine:
        yield mine
        assert mine.keys_for_ever() == []


@pytest.fixture(scope="session")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    with Fleet(tmp_path_factory.mktemp("served")) as shared:
        server = shared.start_server()
        yield Served(shared, shared.ready(server))
        assert server.stop() in ENDED
        assert shared.keys_for_ever() == []


@pytest.fixture
def served(_served: Served) -> Generator[Served]:
    """A server without workers. The test starts its own and may kill those; server and store it leaves alone."""
    mark = _served.fleet.started
    yield _served
    _served.fleet.kill_since(mark)
    _served.fleet.raw.flushall()


@pytest.fixture(scope="session")
def with_threads(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    """A server and a worker with the threads pool."""
    yield from _running(tmp_path_factory.mktemp("threads"), "threads")


@pytest.fixture(scope="session")
def with_prefork(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    """A server and a worker with the prefork pool."""
    yield from _running(tmp_path_factory.mktemp("prefork"), "prefork")


@pytest.fixture(params=["threads", "prefork"])
def running(request: pytest.FixtureRequest) -> Running:
    """A server and a worker, once with each pool."""
    shared: Running = request.getfixturevalue(f"with_{request.param}")
    return shared


@pytest.fixture(scope="session")
def doors(with_threads: Running) -> Generator[Mapping[str, str]]:
    """The URLs of one fleet's servers, by what their streamable HTTP is like; the first is the default."""
    flags = {"stateless": "--stateless", "json": "--json-response"}
    servers = {how: with_threads.fleet.start("serve", TARGET, "--port", "0", flag) for how, flag in flags.items()}
    yield {"http": with_threads.url, **{how: with_threads.fleet.ready(server) for how, server in servers.items()}}
    for server in servers.values():
        assert server.stop() in ENDED


def _running(folder: Path, pool: str) -> Generator[Running]:
    # Nobody dies here, so leases can be long: a stall of a busy machine must not look like a death.
    with Fleet(folder, MCPTASKS_LEASE_MS="15000") as shared:
        server, worker = shared.start_server(), shared.start("worker", TARGET, "--pool", pool, "--concurrency", "4")
        url = shared.ready(worker, server)
        yield Running(shared, url, worker)
        assert worker.stop() == 0
        assert server.stop() in ENDED
        assert shared.keys_for_ever() == []
