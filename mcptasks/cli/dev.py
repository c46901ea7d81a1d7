"""`mcptasks dev TARGET`: store, workers and server of one MCP server, in one command, gone with it."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Annotated, Final

import typer

from mcptasks.cli.embedded import private
from mcptasks.cli.fleet_processes import HOST, DevFleet, on_store
from mcptasks.cli.interrupts import interrupt_on_termination, interrupt_once
from mcptasks.cli.serve import Target, bound, log_in_lines
from mcptasks.cli.stdio import ClientLeft, StdioServer
from mcptasks.cli.target import load_server

PORT: Final = 8000
#: The runs' time to finish after a stdio client left: it waits two seconds for us before it sends signals.
STDIO_RUN_GRACE_MS: Final = 1_000
#: A log of this size is put aside at the next start.
LOG_MAX: Final = 10 * 1024 * 1024


def dev(
    target: Target,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of the MCP server; 0 takes a free one.", show_default=str(PORT)),
    ] = None,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Serve one client on standard input and output instead of HTTP.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    pool: Annotated[str, typer.Option(help="Pool of the workers: threads or prefork.")] = "threads",
    concurrency: Annotated[int, typer.Option(min=0, help="Runs at a time per worker; 0: the pool's default.")] = 0,
    flower: Annotated[bool, typer.Option("--flower", help="Also Flower, on a free port.")] = False,
    console: Annotated[bool, typer.Option("--console", help="Also the operators' console, on a free port.")] = False,
    workdir: Annotated[
        Path, typer.Option(file_okay=False, exists=True, help="Folder to work in: of TARGET's module, and of --data.")
    ] = Path(),
    data: Annotated[Path, typer.Option(help="Folder of the embedded Valkey's data.")] = Path(".mcptasks"),
) -> None:
    """Run all TARGET needs until Ctrl-C: an embedded Valkey (unless MCPTASKS_REDIS_URL is set), workers, server.

    With --stdio until the client leaves: for desktop clients, which run their servers as commands.
    """
    if stdio and port is not None:
        raise typer.BadParameter("--stdio and --port exclude each other.")
    os.chdir(workdir)
    if stdio:
        _serve_stdio(
            target, workers=workers, pool=pool, concurrency=concurrency, flower=flower, console=console, data=data
        )
        return
    with interrupt_on_termination(), ExitStack() as stack:
        # Held until the server takes it: a taken port is told now, not after everything else has started.
        listener = bound(HOST, PORT if port is None else port)
        stack.callback(listener.close)
        try:
            fleet = DevFleet(on_store(stack, data, target), target, workers)
            fleet.start_workers(pool=pool, concurrency=concurrency)
            if flower:
                fleet.start_flower()
            if console:
                fleet.start_console()
            url = fleet.start_server(listener)
            fleet.await_ready(url)
            print(f"mcptasks dev: serving {url}", flush=True)
            fleet.watch()
        except KeyboardInterrupt:
            typer.echo("mcptasks dev: stopping", err=True)


def _serve_stdio(
    target: str, *, workers: int, pool: str, concurrency: int, flower: bool, console: bool, data: Path
) -> None:
    # First of all: from here on nothing that is printed, imported or started can reach the client.
    server = StdioServer()
    with interrupt_once() as ignore, ExitStack() as stack:
        stack.push(server.end_process)
        try:
            log = stack.enter_context(_log(data))
            children = on_store(stack, data, target, log)
            fleet = DevFleet(children, target, workers)
            mcp = load_server(target)
            log_in_lines()
            fleet.start_workers(pool=pool, concurrency=concurrency, run_grace_ms=STDIO_RUN_GRACE_MS)
            if flower:
                fleet.start_flower()
            if console:
                fleet.start_console()
            stack.enter_context(server.serving(mcp, children.fail))
            typer.echo(f"mcptasks dev: serving {target} on stdio; the log of its workers is {log.name}", err=True)
            fleet.watch()
        except (KeyboardInterrupt, ClientLeft):
            ignore()
            typer.echo("mcptasks dev: stopping", err=True)


@contextmanager
def _log(data: Path) -> Generator[IO[str]]:
    """What the children say goes here: a client need not read our stderr, and a full pipe would stop the workers."""
    private(data)
    path = data.absolute() / "workers.log"
    if path.exists() and path.stat().st_size > LOG_MAX:
        path.replace(path.with_suffix(".log.1"))
    with open(path, "a", opener=lambda name, flags: os.open(name, flags, 0o600)) as log:
        yield log
