"""`mcptasks worker TARGET`: one Celery worker of TARGET's fleet. Thin over `celery worker`, which takes its place."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from mcptasks.cli.store_check import require_store
from mcptasks.cli.target import celery_target
from mcptasks.cli.worker_health import health


def worker(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(help="The MCP server, as module:attribute (for instance workers.server:mcp).")
    ] = "",
    pool: Annotated[
        str, typer.Option(help="prefork: CPU-bound and sync tools. threads: tools that wait for others.")
    ] = "prefork",
    concurrency: Annotated[
        int, typer.Option(min=0, help="Runs at a time; 0: one per core (prefork), 16 (threads).")
    ] = 0,
    name: Annotated[str, typer.Option(help="Node name, as celery's --hostname.")] = "",
    log_level: Annotated[str, typer.Option(help="celery's log level.")] = "INFO",
    probe: Annotated[
        bool, typer.Option("--health", help="Run nothing; exit 0 if this host's workers live and hear their queues.")
    ] = False,
) -> None:
    """Run a worker for TARGET's durable tools until it is stopped. What follows `--` goes to celery as it is."""
    if probe:
        health(name)
        return
    app = celery_target(target)
    require_store()
    argv = worker_argv(app, pool=pool, concurrency=concurrency, name=name, log_level=log_level)
    # Celery takes over this very process: signals and exit codes are its own.
    os.execv(argv[0], [*argv, *context.args])


def worker_argv(app: str, *, pool: str, concurrency: int, name: str, log_level: str) -> list[str]:
    """The command line of `celery worker` for this Celery app."""
    argv = [sys.executable, "-m", "celery", "-A", app, "worker", "--pool", pool, "--loglevel", log_level]
    slots = concurrency or (16 if pool == "threads" else 0)
    if slots:
        argv += ["--concurrency", str(slots)]
    if name:
        argv += ["--hostname", name]
    return argv
