"""The Procfile of this repository, run as its README says: web, worker, console and Flower (issue 2, part 1)."""

from __future__ import annotations

import base64
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from mcptasks.client import TasksClient, connect
from tests.fleet.system import ROOT, Fleet, free_port
from tests.requirements import covers
from tests.support.waiting import eventually, wait_until

pytestmark = pytest.mark.anyio

LOGIN: Final = "operator:fleet-test"
#: Four cold starts of Python at once.
START_S: Final = 120.0


@pytest.mark.slow
@covers("R9")
async def test_the_procfile_runs_the_sample_fleet_and_stops_without_an_orphan(fleet: Fleet, tmp_path: Path) -> None:
    """Issue 2: a deployment file that nobody runs is wrong the day it is needed."""
    port, flower, console = free_port(), free_port(), free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    honcho = fleet.start_other(
        "honcho",
        [sys.executable, "-m", "honcho", "--app-root", str(ROOT), "--env", os.devnull, "start", "--port", str(port)],
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        FLOWER_PORT=str(flower),
        FLOWER_BASIC_AUTH=LOGIN,
        CONSOLE_PORT=str(console),
        MCPTASKS_CONSOLE_TOKEN="a-token-of-operators",
    )
    family: list[psutil.Process] = []
    try:
        honcho.await_output(r"serving http", within_s=START_S)
        honcho.await_output(r"\sready\.", within_s=START_S)
        honcho.await_output(r"mcptasks console: serving http", within_s=START_S)
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "one.txt").write_text("one two three")
        async with connect(url) as connection:

            async def listed() -> bool:
                # Flower knows what happened since it was up, and it comes up when it likes.
                handle = await TasksClient.start(connection.client, "index_files", {"folder": str(tmp_path / "docs")})
                assert handle.task_id and not (await handle.result(60)).is_error
                return any(task["name"] == "index_files" for task in flowers(flower, "tasks").values())

            await eventually(listed, description="Flower lists the run under its tool's name", within_s=START_S)
        family = psutil.Process(honcho.pid).children(recursive=True)
        assert len(family) >= 4
        honcho.terminate()
        honcho.await_end()
        wait_until(lambda: not any(alive(process) for process in family), description="nothing it started lives")
    finally:
        for process in family or psutil.Process(honcho.pid).children(recursive=True):
            if alive(process):
                process.kill()


def flowers(port: int, what: str) -> dict[str, Any]:
    """What Flower's API answers; nothing while it is not up yet."""
    login = base64.b64encode(LOGIN.encode()).decode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/{what}", headers={"Authorization": f"Basic {login}"})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return json.loads(response.read())
    except (urllib.error.URLError, TimeoutError):
        return {}


def alive(process: psutil.Process) -> bool:
    """It runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
