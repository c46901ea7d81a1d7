"""`mcptasks worker TARGET`: one Celery worker of TARGET's fleet. Thin over `celery worker`, which takes its place."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from mcptasks.cli.serve import Target
from mcptasks.cli.store_check import require_store
from mcptasks.cli.target import celery_target


def worker(
    context: typer.Context,
    target: Target,
    pool: Annotated[
        str, typer.Option(help="prefork: CPU-bound and sync tools. threads: tools that wait for others.")
    ] = "prefork",
    concurrency: Annotated[
        int, typer.Option(min=0, help="Runs at a time; 0: one per core (prefork), 16 (threads).")
    ] = 0,
    name: Annotated[str, typer.Option(help="Node name, as celery's --hostname.")] = "",
    log_level: Annotated[str, typer.Option(help="celery's log level.")] = "INFO",
) -> None:
    """Run a worker for TARGET's durable tools until it is stopped. What follows `--` goes to celery as it is."""
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
