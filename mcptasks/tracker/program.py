"""A child process that is spoken to in lines, of which none takes more memory than it may.

The SDK's stdio client is not used: it keeps a line that never ends, and a message that it cannot write ends all others.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import anyio
from anyio.abc import Process
from mcp.client.stdio import StdioServerParameters, get_default_environment
from mcp.os.posix.utilities import terminate_posix_process_tree

#: The steps of its end, as the protocol has them: its input is closed; then SIGTERM; then SIGKILL.
_LEAVE_S: Final = 2.0
_TERM_S: Final = 2.0
_LOOK_S: Final = 0.01
#: Of a line that is too long, where a JSON-RPC response has its id: in front, or at its end.
_EDGE: Final = 256
_FRONT: Final = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,')
_END: Final = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*\}\s*$')


@dataclass(frozen=True, slots=True)
class TooLong:
    """A line that was not kept."""

    #: The request that it answers, as far as its edges tell.
    request_id: int | None


class Lines:
    """Cuts what comes into lines, and keeps at most `line_max` bytes of one that has not ended."""

    def __init__(self, line_max: int) -> None:
        self._line_max = line_max
        self._line = bytearray()
        #: Of a line that is not kept, its beginning.
        self._front: bytes | None = None

    def feed(self, chunk: bytes) -> Iterator[bytes | TooLong]:
        """The lines that end in this chunk."""
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            self._add(part)
            yield self._end()
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._line += part
        if len(self._line) > self._line_max:
            self._front = bytes(self._line[:_EDGE]) if self._front is None else self._front
            del self._line[:-_EDGE]

    def _end(self) -> bytes | TooLong:
        line, front = bytes(self._line), self._front
        self._line.clear()
        self._front = None
        if front is None:
            return line
        found = _FRONT.match(front) or _END.search(line[-_EDGE:])
        return TooLong(None if found is None else int(found[1]))


@asynccontextmanager
async def running(parameters: StdioServerParameters, errlog: Any) -> AsyncGenerator[Process]:
    """Inside the block the program runs; after it, it has ended, with all that it has started.

    Raises:
        OSError, ValueError: it cannot be started.
    """
    process = await anyio.open_process(
        [parameters.command, *parameters.args],
        env=get_default_environment() | (parameters.env or {}),
        stderr=errlog,
        cwd=parameters.cwd,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def lines(process: Process, line_max: int) -> AsyncGenerator[bytes | TooLong]:
    """Yields the lines that the program writes, until it closes its output."""
    assert process.stdout is not None
    found = Lines(line_max)
    with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError):
        while True:
            for line in found.feed(await process.stdout.receive()):
                yield line


async def write(process: Process, line: bytes) -> bool:
    """The program can read the line; False: it takes no more."""
    assert process.stdin is not None
    try:
        await process.stdin.send(line + b"\n")
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        return False
    return True


async def _end(process: Process) -> None:
    try:
        assert process.stdin is not None
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await process.stdin.aclose()
        if await _left(process, _LEAVE_S):
            return
        if sys.platform == "win32":
            process.terminate()
        else:
            await terminate_posix_process_tree(process, _TERM_S)
        await _left(process, _TERM_S)
    finally:  # the loop itself may go down meanwhile, and wait for nobody
        if process.returncode is None and sys.platform != "win32":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


async def _left(process: Process, within_s: float) -> bool:
    # Not `process.wait()`: it also waits for all who have inherited the pipes.
    deadline = anyio.current_time() + within_s
    while process.returncode is None and anyio.current_time() < deadline:  # noqa: ASYNC110 - nothing else tells of it
        await anyio.sleep(_LOOK_S)
    return process.returncode is not None
