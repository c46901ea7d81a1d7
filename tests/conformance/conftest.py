"""One running system per (policy of the tools, number of server processes), each built once per session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance import suite
from tests.conformance.system import System, one_server, two_servers
from tests.support import npm

_START = {"one server": one_server, "two servers": two_servers}

#: `xdist_group` keeps a system's tests on one worker (`--dist loadgroup`); otherwise every worker would build its own.
_SYSTEMS = [
    pytest.param(
        (mode, servers), id=f"{mode} tools, {servers}", marks=pytest.mark.xdist_group(f"conformance-{mode}-{servers}")
    )
    for servers in _START
    for mode in ("optional", "required")
]


@pytest.fixture(scope="session")
def official_suite() -> None:
    """The official suite is installed as pinned."""
    npm.install(suite.HERE)


@pytest.fixture(scope="session", params=_SYSTEMS)
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system that has just made and finished a task."""
    mode, servers = request.param
    with _START[servers](mode, tmp_path_factory.mktemp("system")) as running:
        yield running
