"""The fixtures of the recovery tests: a pytest plugin of the modules that name it in `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.fleet.conftest import ENDED, Served
from tests.fleet.recovery_system import RecoveryFleet


@pytest.fixture
def shaken(tmp_path: Path) -> Generator[RecoveryFleet]:
    """A store of the test's own, nothing started on it yet; the test may kill what it likes."""
    with RecoveryFleet(tmp_path) as mine:
        yield mine
        assert mine.keys_for_ever() == []


@pytest.fixture(scope="session")
def _recovering(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    with RecoveryFleet(tmp_path_factory.mktemp("recovering")) as shared:
        server = shared.start_server()
        yield Served(shared, shared.ready(server))
        assert server.stop() in ENDED
        assert shared.keys_for_ever() == []


@pytest.fixture
def recovering(_recovering: Served) -> Generator[Served]:
    """A server without workers. The test starts its own and may kill those; server and store it leaves alone."""
    mark = _recovering.fleet.started
    yield _recovering
    _recovering.fleet.kill_since(mark)
    _recovering.fleet.raw.flushall()
