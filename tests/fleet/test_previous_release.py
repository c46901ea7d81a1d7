"""The previous release beside this code on one store (W9): a fleet is upgraded one process at a time, and back again.

The previous release is the last tag. While there is none it is the last commit: then the two differ only in what is
not committed yet, and the test shows that it can drive a fleet of two trees. `tests/protocol/test_recorded.py` compares
with the past in any case.
"""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest

from mcptasks.client import Connection, TaskHandle, TasksClient
from mcptasks.model import SCHEMA_VERSION, label
from tests.fleet.conftest import ENDED
from tests.fleet.system import ROOT, Fleet, answer, client, new_key, outcome, questions, start, text
from tests.requirements import covers

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TOOL: Final = "charge_ask_charge"


def git(*argv: str) -> bytes | None:
    """What git says; None: it cannot."""
    done = subprocess.run(["git", "-C", str(ROOT), *argv], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The previous release's tree."""
    tag = git("describe", "--tags", "--abbrev=0")
    archive = git("archive", "HEAD" if tag is None else tag.decode().strip())
    if archive is None:
        pytest.skip("this is no git checkout, so there is no previous release to be had")
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
        tree.extractall(folder, filter="data")
    return folder


def schema_of(tree: Path) -> int:
    """The version of the records that this tree's code writes."""
    found = re.search(r"^SCHEMA_VERSION: Final = (\d+)$", (tree / "mcptasks/model.py").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


async def parked(connection: Connection) -> tuple[str, TaskHandle]:
    """A task that has charged once and asks, and its key in the ledger."""
    key = new_key()
    handle = await start(connection, TOOL, key=key, die_after="")
    await questions(handle)
    return key, handle


@covers("W9", "N8")
async def test_tasks_go_on_whichever_release_has_begun_them_and_has_them_next(fleet: Fleet, previous: Path) -> None:
    """W9: forward always; back as long as the records' version is the same, else the older refuses them untouched."""
    old: dict[str, Any] = {"PYTHONPATH": str(previous)}
    old_server, new_server, old_worker = fleet.start_server(**old), fleet.start_server(), fleet.start_worker(**old)
    old_url, new_url = fleet.ready(old_server), fleet.ready(new_server)
    fleet.ready(old_worker)
    async with client(old_url) as through_old, client(new_url) as through_new:
        begun_by_old = [await parked(through_old), await parked(through_old)]
        assert old_worker.stop() == 0
        new_worker = fleet.worker()
        for key, handle in begun_by_old:
            mine = TasksClient.attach(through_new.client, handle.task_id)
            await answer(mine, "yes")
            assert await outcome(mine) == "a yes b" == await outcome(handle)
            assert fleet.ledger.events(key) == ["run", "charge a", "run", "charge b"]

        key, handle = await parked(through_new)
        assert new_worker.stop() == 0
        old_worker = fleet.worker(**old)
        await answer(handle, "yes")
        if schema_of(previous) < SCHEMA_VERSION:
            old_worker.await_output(rf"Task {re.escape(label(handle.task_id))}: .*NEWER \(upgrade this worker")
            assert fleet.record(handle).status == "queued"
            fleet.worker()
        # The older worker goes on taking the message, and its sweep has to change hands first: about a minute.
        assert text(await handle.result(240)) == "a yes b"
        assert fleet.ledger.events(key) == ["run", "charge a", "run", "charge b"]
    for server in (old_server, new_server):
        assert server.stop() in ENDED
