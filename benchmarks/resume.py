"""How soon an answered task goes on: `python -m benchmarks.resume` (`make bench-resume`).

From `tasks/update` until `tasks/get` shows the result, polled alike (`driver.py`): our tool that parks (the default, it
runs again from the top), our tool that keeps its worker (`hold`), and FastMCP's, in rounds that take turns.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import fastmcp_env, measures, report
from benchmarks.driver import Samples, WrongAnswer
from benchmarks.services import ROOT
from benchmarks.systems import FASTMCP, SLOTS, fastmcp, ours, store_info, valkey

OUT: Final = ROOT / "benchmarks" / "out"

PARKED, HELD = "parked", "held"
#: What our median may be of FastMCP's, with one client.
GOALS: Final = {PARKED: 0.6, HELD: 0.4}
TITLES: Final = {PARKED: "ours, parked (default)", HELD: "ours, held", FASTMCP: "FastMCP"}

#: Between a question and its answer, so that nothing of the asking is measured.
THINK_S: Final = 0.1


@dataclass(frozen=True)
class Lane:
    """A tool that asks, on a running system."""

    name: str
    port: int
    tool: str


#: Lane -> number of clients -> one entry per round.
Measured = dict[str, dict[int, list[Samples]]]


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 7,
    answers: Annotated[
        int, typer.Option(min=1, help="Answers per round by one client; four times as many by 16.")
    ] = 40,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON document instead of tables.")] = False,
) -> None:
    """Measure how soon an answered task goes on; exit 1 if ours takes over 0.6 (held: 0.4) of FastMCP's time."""
    for name in [name for name in os.environ if name.startswith("MCPTASKS_")]:
        del os.environ[name]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit runs the context managers that stop the servers
    started, load = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"), os.getloadavg()
    screen = Console(stderr=True)
    logs = OUT / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    try:
        version, measured = _measure(rounds, answers, logs, screen)
    except (RuntimeError, TimeoutError, OSError, WrongAnswer, ExceptionGroup) as exc:
        screen.print(f"[red]The measurement could not finish.[/] Logs: {logs}", soft_wrap=True)
        for each in exc.exceptions if isinstance(exc, ExceptionGroup) else [exc]:
            screen.print(f"{type(each).__name__}: {each}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from exc
    run = _document(measured, version, started, load)
    text = json.dumps(run, indent=2) + "\n"
    (OUT / "resume.json").write_text(text)
    if as_json:
        print(text, end="")
    else:
        Console().print(_tables(run))
        screen.print(f"Written to {OUT / 'resume.json'}", soft_wrap=True)
    if not all(row["met"] for row in run["ratios"] if row["goal"]):
        raise typer.Exit(1)


def _measure(rounds: int, answers: int, logs: Path, screen: Console) -> tuple[str, Measured]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen, transient=True) as progress, ExitStack() as stack:
        bar = progress.add_task("starting", total=rounds * len(TITLES) * 2)
        fastmcp_env.ensure()
        store = stack.enter_context(valkey())
        our_port = stack.enter_context(ours(store, logs, "threads")).port
        lanes = [
            Lane(PARKED, our_port, "ask"),
            Lane(HELD, our_port, "ask_held"),
            Lane(FASTMCP, stack.enter_context(fastmcp(store, logs)).port, "ask"),
        ]
        measured: Measured = {lane.name: {1: [], SLOTS: []} for lane in lanes}

        async def everything() -> None:
            for lane in lanes:  # the first calls import, compile and fill pools
                await measures.answer(lane.port, SLOTS, 2 * SLOTS, tool=lane.tool)
            for number in range(rounds):
                for clients, count in ((1, answers), (SLOTS, 4 * answers)):
                    for lane in lanes[number % len(lanes) :] + lanes[: number % len(lanes)]:
                        progress.update(bar, description=f"round {number + 1}: {lane.name}, clients: {clients}")
                        samples = await measures.answer(lane.port, clients, count, tool=lane.tool, think_s=THINK_S)
                        measured[lane.name][clients].append(samples)
                        progress.advance(bar)

        asyncio.run(everything())
        return str(store_info(store)["valkey_version"]), measured


def _document(measured: Measured, version: str, started: str, load: Sequence[float]) -> dict[str, Any]:
    ratios = [
        report.ratio_of(
            f"{TITLES[name]} / FastMCP",
            "answer to completed",
            clients,
            [report.p50(each) for each in measured[name][clients]],
            [report.p50(each) for each in measured[FASTMCP][clients]],
            f"<= {GOALS[name]}" if clients == 1 else "",
        )
        for name in GOALS
        for clients in (1, SLOTS)
    ]
    return {
        "started": started,
        "machine": report.machine_facts(load),
        "versions": {
            "valkey": version,
            "ours": report.telling_versions(),
            FASTMCP: report.telling_versions(fastmcp_env.PYTHON),
        },
        "settings": {"rounds": len(measured[PARKED][1]), "think_s": THINK_S, "slots": SLOTS},
        "figures": {
            name: {str(clients): report.figures(rounds) for clients, rounds in of.items()}
            for name, of in measured.items()
        },
        "ratios": [{**asdict(ratio), "met": ratio.met} for ratio in ratios],
    }


def _tables(run: dict[str, Any]) -> Group:
    figures = report.blank_table("From an answer to its task's result, ms", "", "clients", "p50", "p99", "answers")
    for name, of in run["figures"].items():
        for clients, each in of.items():
            numbers = (f"{each['p50_ms']:.1f}", f"{each['p99_ms']:.1f}", str(each["operations"]))
            figures.add_row(TITLES[name], clients, *numbers)
    ratios = report.blank_table("Median of the rounds", "", "clients", "ratio", "lowest - highest", "goal", "")
    for row in run["ratios"]:
        verdict = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[row["met"]]
        spread = f"{row['low']:.2f} - {row['high']:.2f}"
        ratios.add_row(row["of"], str(row["clients"]), f"{row['median']:.2f}", spread, row["goal"], verdict)
    machine = run["machine"]
    footer = f"{machine['cores']} cores ({machine['cpu']}), load before {machine['load_before'][0]:.1f}."
    return Group(figures, ratios, footer)


if __name__ == "__main__":
    typer.run(main)
