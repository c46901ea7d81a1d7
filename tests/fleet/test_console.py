"""`mcptasks dev --console`: the console beside a real fleet, with a token of its own, gone with the rest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx2
import pytest

from mcptasks.client import TasksClient, connect
from mcptasks.model import label
from tests.fleet.system import ROOT
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

_SERVES: Final = re.compile(r"mcptasks dev: serving (http://\S+)")
_CONSOLE: Final = re.compile(r"mcptasks dev: console on (http://\S+), log in with the token (\S+)")
_CSRF: Final = re.compile(r'name="csrf" value="([^"]+)"')


@contextmanager
def dev(data: Path) -> Generator[tuple[str, str, str]]:
    """The URLs of its server and its console, and the console's token; it ends in order with the block."""
    argv = [sys.executable, "-m", "mcptasks.cli.main", "dev", "workers.server:mcp", "--console", "--port", "0"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MCPTASKS_")}
    command = [*argv, "--workdir", str(ROOT), "--data", str(data)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            url = page = token = ""
            for line in process.stdout:
                if found := _CONSOLE.search(line):
                    page, token = found.groups()
                if found := _SERVES.search(line):
                    url = found[1]
                    break
            yield url, page, token
            process.terminate()
            process.stdout.read()
            assert process.wait(60) in (0, -15, 130, 143)
        finally:
            process.kill()


async def test_a_fleets_task_is_seen_to_end_in_the_console_of_dev(tmp_path: Path) -> None:
    """Its address and its token of today are on stderr."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "one.txt").write_text("one two three")
    with dev(tmp_path / "data") as (url, page, token):
        async with connect(url) as connection, httpx2.AsyncClient(base_url=page, follow_redirects=True) as browser:
            handle = await TasksClient.start(connection.client, "index_files", {"folder": str(tmp_path / "docs")})
            assert handle.task_id and not (await handle.result(60)).is_error
            csrf = _CSRF.search((await browser.get("/login")).text)
            assert csrf is not None
            await browser.post("/login", data={"csrf": csrf[1], "name": "olga", "token": token})

            async def seen() -> bool:
                text = (await browser.get(f"/tasks/{label(handle.task_id or '')}")).text
                return "index_files" in text and "status completed" in text

            await eventually(seen, description="the console shows that it has completed")
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{page}/healthz")
