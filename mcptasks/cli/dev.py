"""`mcptasks dev TARGET`: store, workers and server of one MCP server, in one command, gone with it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from mcptasks.cli.fleet_processes import HOST, STOP_GRACE_MS, DevFleet, use_store
from mcptasks.cli.processes import Processes, interrupt_on_termination
from mcptasks.cli.serve import Target, bound


def dev(
    target: Target,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the MCP server; 0 takes a free one.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    pool: Annotated[str, typer.Option(help="Pool of the workers: threads or prefork.")] = "threads",
    concurrency: Annotated[int, typer.Option(min=0, help="Runs at a time per worker; 0: the pool's default.")] = 0,
    flower: Annotated[bool, typer.Option("--flower", help="Also Flower, on a free port.")] = False,
    data: Annotated[Path, typer.Option(help="Folder of the embedded Valkey's data.")] = Path(".mcptasks"),
) -> None:
    """Run all TARGET needs until Ctrl-C: an embedded Valkey (unless MCPTASKS_REDIS_URL is set), workers, server."""
    with interrupt_on_termination(), ExitStack() as stack:
        # Held until the server takes it: a taken port is told now, not after everything else has started.
        listener = bound(HOST, port)
        stack.callback(listener.close)
        try:
            use_store(stack, data)
            fleet = DevFleet(stack.enter_context(Processes(grace_ms=STOP_GRACE_MS)), target, workers)
            fleet.start_workers(pool=pool, concurrency=concurrency)
            if flower:
                fleet.start_flower()
            url = fleet.start_server(listener)
            fleet.await_ready(url)
            print(f"mcptasks dev: serving {url}", flush=True)
            fleet.watch()
        except KeyboardInterrupt:
            typer.echo("mcptasks dev: stopping", err=True)
