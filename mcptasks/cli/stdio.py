"""An MCP server on this command's own standard input and output, which carry the protocol and nothing else."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final

import anyio
import typer

from mcptasks import seams
from mcptasks.errors import ConfigurationError, MCPTasksError

CHUNK: Final = 64 * 1024
#: For the server's own end, its lifespan's included; a client that waits for us sends SIGTERM after two seconds.
END_MS: Final = 1_000


class ClientLeft(Exception):
    """The client closed our standard input, or is gone."""


class ServerFailed(MCPTasksError):
    """The MCP server ended by itself, with an exception that is told on stderr."""


class StdioServer:
    """Serves one client, whose wire it has from the moment it is made.

    From then on fd 0 is empty and fd 1 is stderr, to everything else in this process and to its children: make it
    before the user's module is imported. The server runs in a thread, so that signals and dead children are noticed
    whatever a tool does; on the workers its lifespan runs in such a thread, too.

    Raises:
        ConfigurationError: this process has no standard input or output.
    """

    def __init__(self) -> None:
        try:
            self._source, self._sink = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1))
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            os.dup2(2, 1)
        except OSError as error:
            raise ConfigurationError("--stdio needs a standard input, output and error that are open.") from error
        self._thread: threading.Thread | None = None

    @contextmanager
    def serving(self, mcp: Any, ended: Callable[[Exception], object]) -> Generator[None]:
        """The server answers within the block; `ended` hears, in another thread, that it does not any more, and why."""
        # Through a socket of our own: its end can be closed, while nothing wakes a thread that reads from the client.
        inlet, outlet = socket.socketpair()
        threading.Thread(target=self._pump, args=(inlet, ended), name="stdin", daemon=True).start()
        self._thread = threading.Thread(target=self._serve, args=(mcp, outlet, ended), name="server", daemon=True)
        self._thread.start()
        try:
            yield
        finally:
            _close(inlet)
            self._thread.join(END_MS / 1000)

    def end_process(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        """Ends this process if a sync tool of the server still runs, which nothing can stop. For `ExitStack.push`."""
        if self._thread is None or not self._thread.is_alive():
            return
        if error is not None:
            typer.echo(f"mcptasks: {error}", err=True)
        os._exit(1 if error else 0)

    def _pump(self, inlet: socket.socket, ended: Callable[[Exception], object]) -> None:
        with suppress(OSError):
            while chunk := os.read(self._source, CHUNK):
                inlet.sendall(chunk)
        _close(inlet)
        # Not left to the server, which may wait for a tool that does not end.
        ended(ClientLeft())

    def _serve(self, mcp: Any, outlet: socket.socket, ended: Callable[[Exception], object]) -> None:
        # The sink stays open until the process ends: to the client its end is ours.
        with outlet, outlet.makefile("r", encoding="utf-8", errors="replace") as stdin:
            stdout = os.fdopen(self._sink, "w", encoding="utf-8", closefd=False)
            try:
                anyio.run(seams.serve_on, mcp, stdin, stdout)
            except BaseException:
                traceback.print_exc()
                ended(ServerFailed("The MCP server failed; its traceback is above."))


def _close(inlet: socket.socket) -> None:
    with suppress(OSError):
        inlet.shutdown(socket.SHUT_WR)
