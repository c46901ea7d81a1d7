"""`mcptasks console` as a process of its own: it serves, streams, and ends at once when it is told to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import httpx2
import pytest

from mcptasks.model import label
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore
from tests.support.collector import collecting
from tests.support.command import Commands, environment
from tests.support.console import TOKEN, Browser
from tests.support.tasks import parked

pytestmark = pytest.mark.anyio

_SERVES: Final = re.compile(r"mcptasks console: serving (http://127\.0\.0\.1:\d+)")


@contextmanager
def process(settings: Settings, **more: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """The command, and the URL that it says."""
    argv = [sys.executable, "-m", "mcptasks.cli.main", "console", "--port", "0"]
    env = {**os.environ, **environment(settings), "MCPTASKS_CONSOLE_TOKEN": TOKEN, **more}
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            said = next((found[1] for line in running.stderr if (found := _SERVES.match(line))), None)
            assert said is not None
            yield running, said
        finally:
            running.kill()


async def test_it_serves_streams_and_ends_at_once_when_it_is_told_to(store: TaskStore, settings: Settings) -> None:
    """Also while somebody looks, for whom the page is drawn again and again."""
    await parked(store)
    with process(settings) as (console, url):
        async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
            # Its port is bound before it says so: who comes early waits.
            page = await client.get("/login")
            csrf = re.search(r'name="csrf" value="([^"]+)"', page.text)
            assert csrf is not None
            await client.post("/login", data={"csrf": csrf[1], "name": "olga", "token": TOKEN})
            async with client.stream("GET", "/live/inbox") as stream:
                lines = stream.aiter_lines()
                assert stream.headers["content-type"].startswith("text/event-stream")
                first = [await anext(lines) for _ in range(3)]
                assert first[0].startswith("data:")
                console.terminate()
                began = time.monotonic()
                assert console.wait(30) in (0, -15)
                assert time.monotonic() - began < 10


async def test_what_an_operator_does_is_a_span_and_leaves_the_process(store: TaskStore, settings: Settings) -> None:
    """With the beginning of the task's id alone, and by the console's own name; also what was refused."""
    task_id = (await parked(store)).task_id
    with collecting() as collector, process(settings, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url) as (console, url):
        async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
            operator = Browser(client, "")
            await operator.log_in()
            await operator.open(f"/tasks/{task_id}")
            assert (await operator.send(f"/tasks/{task_id}/extend", {"by": "7d"})).status_code == 200
            assert (await operator.send(f"/tasks/{task_id}/retry", {})).status_code == 409
        console.terminate()
        assert console.wait(30) in (0, -15)
        done = [(span.name, span.service, span.attributes, span.error) for span in collector.spans]
    named = {"mcptasks.task.id": label(task_id)}
    assert done == [
        ("operator extend", "mcptasks-console", named, False),
        ("operator retry", "mcptasks-console", named | {"error.type": "RetryRefused"}, True),
    ]
    assert not any(task_id.encode() in body for body in collector.bodies)


async def test_it_does_not_start_where_nobody_could_log_in(commands: Commands) -> None:
    """One line, exit code 2."""
    refused = await commands.run("console")
    assert (refused.code, "MCPTASKS_CONSOLE_TOKEN" in refused.said) == (2, True)
