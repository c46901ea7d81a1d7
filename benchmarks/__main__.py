"""The command: `python -m benchmarks [--quick] [--json] [--only NAME]... [--rounds N] [--pool threads|prefork]`."""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import fastmcp_env, report
from benchmarks.driver import WrongAnswer
from benchmarks.run import FULL, QUICK, Plan, Results, Run
from benchmarks.systems import CELERY, FASTMCP, OURS

OUT = Path(__file__).parent / "out"


class Subject(StrEnum):
    """What `--only` may name."""

    OURS = OURS
    FASTMCP = FASTMCP
    CELERY = CELERY


def main(
    quick: Annotated[bool, typer.Option(help="One minute, to see that all works; its figures are rough.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON document instead of tables.")] = False,
    only: Annotated[list[Subject] | None, typer.Option(help="Measure only this system (may be repeated).")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="How many rounds instead of the usual.")] = None,
    pool: Annotated[
        Literal["threads", "prefork"], typer.Option(help="Our worker's and bare Celery's pool.")
    ] = "threads",
) -> None:
    """Measure mcptasks, FastMCP's tasks and bare Celery side by side; JSON goes to benchmarks/out/."""
    plan = QUICK if quick else FULL
    if rounds:
        plan = Plan(**{**vars(plan), "rounds": rounds})
    wanted = frozenset(str(each) for each in only or Subject)
    screen = Console(stderr=True)
    started, load = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"), os.getloadavg()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit runs the context managers that stop the servers
    try:
        results = _measure(plan, wanted, pool, screen)
    except (RuntimeError, TimeoutError, OSError, WrongAnswer, ExceptionGroup) as exc:
        screen.print(f"[red]The benchmark could not finish.[/] Logs: {OUT / 'logs'}", soft_wrap=True)
        failures = exc.exceptions if isinstance(exc, ExceptionGroup) else [exc]
        for line in dict.fromkeys(f"{type(each).__name__}: {each}" for each in failures):
            screen.print(line, markup=False, soft_wrap=True)
        raise typer.Exit(1) from exc
    run = report.document(results, plan, pool, started, load)
    text = json.dumps(run, indent=2) + "\n"
    for name in (started, "latest"):
        (OUT / f"{name}.json").write_text(text)
    if as_json:
        print(text, end="")
    else:
        Console().print(report.tables(run))
        screen.print(f"Written to {OUT / f'{started}.json'}", soft_wrap=True)


def _measure(plan: Plan, only: frozenset[str], pool: str, screen: Console) -> Results:
    logs = OUT / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen, transient=True) as progress:
        bar = progress.add_task("installing FastMCP into .venv-fastmcp", total=None)
        if FASTMCP in only:
            fastmcp_env.ensure()

        def tell(what: str, steps: float) -> None:
            progress.update(bar, description=what, advance=steps)

        run = Run(plan, only, pool, tell)
        progress.update(bar, total=run.total(), description="starting")
        return run.measure(logs)


if __name__ == "__main__":
    typer.run(main)
