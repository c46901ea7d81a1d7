"""A server that prints wherever it can: while it is imported, in its tools, by Python, by C and by a child process.

Where Celery runs it, its import waits for the file that `NOISY_GATE` names: a worker that takes its time to start.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from mcp.server.mcpserver import MCPServer

from mcptasks import Tasks

_LIBC = ctypes.CDLL(None)


def make_noise(what: str) -> None:
    """It was printed in every way that ends up on the process's standard output."""
    print(what, "by print", flush=True)
    sys.stdout.write(f"{what} by sys.stdout\n")
    os.write(1, f"{what} by fd 1\n".encode())
    _LIBC.puts(f"{what} by C".encode())
    _LIBC.fflush(None)
    subprocess.run(["echo", what, "by a child"], check=True)


make_noise("import")

gate = os.environ.get("NOISY_GATE")
while gate and "celery" in sys.argv[0] and not Path(gate).exists():
    time.sleep(0.01)


@asynccontextmanager
async def lifespan(server: MCPServer[None]) -> AsyncGenerator[None]:
    """Fails where the test says so."""
    if os.environ.get("NOISY_LIFESPAN"):
        raise RuntimeError("no database today")
    yield


tasks = Tasks()
mcp = MCPServer("noisy", extensions=[tasks], lifespan=lifespan)


@mcp.tool()
@tasks.durable()
async def shout(times: int = 1) -> str:
    """Is heard from a worker."""
    for _ in range(times):
        make_noise("tool on a worker")
    return f"heard {times} times"


@mcp.tool()
async def murmur() -> str:
    """Is heard from the server's process, and reads what is not for it."""
    make_noise("tool in the server")
    return f"read {sys.stdin.read()!r}"


@mcp.tool()
def hang(path: str) -> str:
    """Blocks a thread of the server's process for ever, and says so by a file."""
    Path(path).touch()
    while True:
        time.sleep(60)


celery = tasks.bind(mcp)
