"""Much data through real processes, in little memory."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
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
    # os.walk: a folder may go while it is looked at.
    names = (Path(folder) / name for folder, _, names in os.walk(fleet.artifacts) for name in names)
    return [path for path in names if path.name != ".gitignore"]


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


@pytest.mark.slow
@covers("F07")
async def test_results_of_every_size_are_the_result_or_an_error_that_names_size_and_limit(fleet: Fleet) -> None:
    """1, 10 and 50 MiB come back as they were, 300 MiB are too many, as are arguments of 10; other tasks go on."""
    url, _, _ = begin(fleet)
    async with client(url) as connection, client(url) as other:
        small = await start(other, "quick")
        for size in (1, 10, 50, 300):
            handle = await start(connection, "return_text", size=size * MIB)
            fetched = asyncio.ensure_future(handle.result(120))
            polls: list[float] = []
            while not fetched.done():
                began = time.monotonic()
                await small.get()
                polls.append(time.monotonic() - began)
            [block] = (await fetched).content
            assert isinstance(block, TextContent)
            if size <= 50:
                assert block.text == "0123456789abcdef" * (size * MIB // 16)
            else:
                assert (await fetched).is_error
                assert "has 314,572,879 bytes; the limit is 67,108,864 bytes (MCPTASKS_RESULT_MAX)" in block.text
            print(f"{size} MiB: {len(polls)} polls of a small task beside it took {max(polls):.3f} s at most")
            assert max(polls) < 1.0
        with pytest.raises(MCPError, match="MCPTASKS_ARGUMENTS_MAX"):
            await start(other, "measure", text="x" * 2 * MIB)
        # The SDK takes no request of that size (HTTP 413), whatever stands in it.
        with pytest.raises(MCPError):
            await start(other, "measure", text="x" * 10 * MIB)


@pytest.mark.slow
@covers("F07", "R7")
async def test_200_large_results_leave_the_stores_memory_and_its_messages_small(fleet: Fleet) -> None:
    """5 MiB each, gone after their time: what is large never was in the store, and the files go too."""
    url, _, worker = begin(fleet)
    async with client(url) as connection:
        await (await start(connection, "return_briefly", size=5 * MIB)).wait(60)
        before = int(fleet.raw.info("memory")["used_memory"])
        worker.freeze()
        handles = [await start(connection, "return_briefly", size=5 * MIB) for _ in range(200)]
        assert max(len(message) for message in fleet.messages()) < 4 * 1024
        worker.thaw()
        for handle in handles:
            assert (await handle.wait(120)).status == "completed"
        assert int(fleet.raw.info("memory")["used_memory"]) - before < 20 * MIB

        async def gone() -> bool:
            return not files(fleet) and not fleet.task_keys()

        await eventually(gone, description="all is gone", within_s=120)
    assert int(fleet.raw.info("memory")["used_memory"]) - before < 2 * MIB
