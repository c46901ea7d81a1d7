"""The console beside 10,000 tasks: how long its pages take, and how soon an answer is seen by who looks at the inbox.

`python -m benchmarks.console [COUNT]` fills a Valkey of its own with COUNT tasks (half unfinished, a few of those
with a question), serves the console from a process of its own, and asks as a browser would. Exit 1 over a bound.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import httpx2

from mcptasks.cli.embedded import EmbeddedValkey
from mcptasks.model import Claim, Hint, Question, Reason, Status, Submission, label, new_task_id
from mcptasks.policy import Policy
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore

COUNT: Final = 10_000
BATCH: Final = 100
PROBES: Final = 60
ANSWERS: Final = 20
LIST_MAX_MS, SEEN_MAX_MS = 150, 1_000
TOKEN: Final = "a-token-of-the-benchmark"
_CSRF: Final = re.compile(r'name="csrf" value="([^"]+)"')


async def fill(store: TaskStore, count: int) -> list[str]:
    """There are so many tasks. Returns the ids of those that ask something."""
    asking: list[str] = []

    async def one(number: int) -> None:
        task_id, tool = new_task_id(), f"tool_{number % 20}"
        call = Submission(tool=tool, arguments={"number": number}, protocol_version="2026-07-28")
        await store.create(task_id, call, owner=f"owner{number % 50}", policy=Policy())
        if number % 4 == 0:
            return
        hint = Hint(task_id=task_id, run=1, tool=tool, queue="mcptasks")
        claim = await store.claim(hint, f"worker{number % 8}@box:1")
        assert isinstance(claim, Claim)
        if number % 4 == 1:
            await store.progress(claim, "Indexing files", number % 100, 100, 2.5)
        elif number % 400 == 3:
            params = {"mode": "form", "message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
            question = Question(key="sure", method="elicitation/create", params=params)
            await store.ask(claim, [(question, "d 0.1 Sure?")], guard=None, hold=False)
            asking.append(task_id)
        else:
            await store.finish(claim, Status.COMPLETED, Reason.COMPLETED, message="Done", payload='{"content":[]}')

    for start in range(0, count, BATCH):
        await asyncio.gather(*map(one, range(start, min(start + BATCH, count))))
    return asking


def free_port() -> int:
    """A port that nobody has just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def log_in(client: httpx2.AsyncClient) -> None:
    """The client is an operator's."""
    deadline = time.monotonic() + 60
    while True:
        try:
            page = await client.get("/login")
            break
        except httpx2.TransportError:
            assert time.monotonic() < deadline, "the console does not come up"
            await asyncio.sleep(0.1)
    form = {"csrf": csrf(page.text), "name": "olga", "token": TOKEN}
    assert (await client.post("/login", data=form)).status_code == 303


def csrf(page: str) -> str:
    """The token of the page's forms."""
    found = _CSRF.search(page)
    assert found is not None
    return found[1]


async def timed(client: httpx2.AsyncClient, path: str) -> list[float]:
    """How long the page took, each time, in ms."""
    took: list[float] = []
    for _ in range(PROBES):
        began = time.perf_counter()
        answer = await client.get(path)
        took.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200
    return sorted(took)


async def seen(client: httpx2.AsyncClient, looker: httpx2.AsyncClient, tasks: list[str]) -> list[float]:
    """How long after an answer was sent the inbox of another browser had changed, each time, in ms."""
    took: list[float] = []
    token = csrf((await client.get("/inbox")).text)
    async with looker.stream("GET", "/live/inbox") as stream:
        lines = stream.aiter_lines()

        async def lacks(name: str) -> None:
            text = ""
            async for line in lines:
                text += line
                if not line and "data:" in text:
                    if name not in text:
                        return
                    text = ""

        for task_id in tasks:
            name, began = label(task_id), time.perf_counter()
            form = {"csrf": token, "key": "sure", "action": "decline", "back": "inbox"}
            answered = asyncio.create_task(client.post(f"/tasks/{name}/answer", data=form))
            await lacks(name)
            took.append((time.perf_counter() - began) * 1000)
            assert (await answered).status_code == 303
            await asyncio.sleep(0.3)
    return sorted(took)


async def measure(settings: Settings, count: int) -> int:
    """The exit code, once all is measured and printed."""
    store = TaskStore(settings)
    began = time.monotonic()
    asking = await fill(store, count)
    await store.aclose()
    print(f"{count:,} tasks in the store after {time.monotonic() - began:.0f} s, {len(asking)} of them ask something")
    port = free_port()
    env = {
        **os.environ,
        "MCPTASKS_REDIS_URL": settings.redis_url,
        "MCPTASKS_PREFIX": settings.prefix,
        "MCPTASKS_CONSOLE_TOKEN": TOKEN,
    }
    command = [sys.executable, "-m", "mcptasks.cli.main", "console", "--port", str(port), "--log-level", "warning"]
    base = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, env=env) as process:  # noqa: ASYNC220 - it is there before anything is measured
        try:
            async with httpx2.AsyncClient(base_url=base) as client, httpx2.AsyncClient(base_url=base) as looker:
                await log_in(client)
                await log_in(looker)
                over = False
                for path in ("/tasks", "/tasks?status=all", "/tasks?status=parked", "/tasks?tool=tool_3", "/inbox"):
                    took = await timed(client, path)
                    median, worst = statistics.median(took), took[int(len(took) * 0.95)]
                    over = over or (path.startswith("/tasks") and median > LIST_MAX_MS)
                    print(f"{path:24} median {median:6.1f} ms, 95 of 100 within {worst:6.1f} ms")
                took = await seen(client, looker, asking[-ANSWERS:])
                median = statistics.median(took)
                print(f"an answer is seen elsewhere after a median of {median:.0f} ms, at most {took[-1]:.0f} ms")
                return int(over or median > SEEN_MAX_MS)
        finally:
            process.terminate()


def main() -> int:
    """Fills a Valkey, and measures."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    with tempfile.TemporaryDirectory() as folder, EmbeddedValkey(Path(folder)) as valkey:
        return asyncio.run(measure(Settings(redis_url=valkey.url, prefix="bench:"), count))


if __name__ == "__main__":
    sys.exit(main())
