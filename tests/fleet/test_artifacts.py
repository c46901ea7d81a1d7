"""Much data through real processes, in little memory."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import TextContent

from mcptasks.cli.worker import worker_argv
from mcptasks.settings import MIB
from tests.fleet.artifact_tools import blocks
from tests.fleet.system import Fleet, Proc, client, start
from tests.requirements import covers
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

SERVER: Final = "tests.fleet.artifact_tools:mcp"
CELERY: Final = "tests.fleet.artifact_tools:celery"
RESULT_MAX: Final = {"MCPTASKS_RESULT_MAX": str(64 * MIB)}


def begin(fleet: Fleet, pool: str = "threads") -> tuple[str, Proc, Proc]:
    """A server and a worker are ready; the URL, and both."""
    server = fleet.start("serve", SERVER, "--port", "0", **RESULT_MAX)
    argv = worker_argv(CELERY, pool=pool, concurrency=2, name="w@test", log_level="INFO")
    worker = fleet.start_other("worker", [*argv, "--without-mingle"], **RESULT_MAX)
    return fleet.ready(worker, server), server, worker


class Growth:
    """How much the memory of some processes grew, each on its own, at its peak."""

    def __init__(self, *pids: int) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self._before = [process.memory_info().rss for process in self._processes]
        self.peaks = [0] * len(pids)
        self._over = threading.Event()

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            for number, process in enumerate(self._processes):
                grown = process.memory_info().rss - self._before[number]
                self.peaks[number] = max(self.peaks[number], grown)

    @contextmanager
    def watched(self) -> Generator[None]:
        """Inside the block it is looked at, a hundred times a second."""
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


def files(fleet: Fleet) -> list[Path]:
    """All artifacts on disk."""
    return [path for path in fleet.artifacts.rglob("*") if path.is_file() and path.name != ".gitignore"]


@pytest.mark.slow
@covers("W7", "F07")
async def test_a_200_mb_artifact_and_a_20_mb_result_pass_through_in_40_mb(fleet: Fleet) -> None:
    """Through a worker, its store and a server, to a client that gets every byte; the record stays small."""
    size, length = 200_000_000, 20_000_000
    url, server, worker = begin(fleet)
    async with client(url) as connection:
        for warm_up in ("hand_out", "return_text"):
            handle = await start(connection, warm_up, size=3_000_000)
            for link in await handle.artifacts():
                assert sum([len(part) async for part in handle.read(link)]) == 3_000_000

        growth = Growth(worker.pid, server.pid)
        with growth.watched():
            handle = await start(connection, "hand_out", size=size)
            [link] = await handle.artifacts()
            digest, want = hashlib.sha256(), hashlib.sha256()
            async for part in handle.read(link):
                digest.update(part)
            for block in blocks(size):
                want.update(block)
            assert digest.hexdigest() == want.hexdigest()

            handle = await start(connection, "return_text", size=length)
            [text] = (await handle.result()).content
            assert isinstance(text, TextContent) and text.text == "0123456789abcdef" * (length // 16)
        record = fleet.raw.hgetall(fleet.keys.task(handle.task_id))
        assert len("".join(f"{name}{value}" for name, value in record.items())) < 8 * 1024
        print("peaks of worker and server:", [f"{peak / 1e6:.1f} MB" for peak in growth.peaks])
        assert max(growth.peaks) < 40_000_000


@covers("W7", "R7")
async def test_files_are_gone_soon_after_their_task(fleet: Fleet) -> None:
    """The fleet's sweeper removes them; a reader gets the answer of a resource that never was."""
    url, _, _ = begin(fleet)
    async with client(url) as connection:
        handle = await start(connection, "hand_out_briefly")
        [link] = await handle.artifacts()
        assert b"".join([part async for part in handle.read(link)]) == b"soon gone"
        assert len(files(fleet)) == 1

        async def gone() -> bool:
            return not files(fleet)

        await eventually(gone, description="the file is gone")
        with pytest.raises(MCPError, match="Unknown resource"):
            [part async for part in handle.read(link)]
