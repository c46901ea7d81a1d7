"""What a run means: medians over rounds, ratios of neighbours, as a JSON document and as tables."""

from __future__ import annotations

import math
import os
import platform
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

from benchmarks import fastmcp_env
from benchmarks.driver import POLL_FIRST_MS, POLL_GROWTH, POLL_MAX_MS, Samples
from benchmarks.run import Plan, Results
from benchmarks.systems import CELERY, FASTMCP, OURS, SLOTS

#: Packages whose version explains a figure.
_TELLING: Final = (
    *("mcptasks", "mcp", "celery", "kombu", "redis", "uvicorn", "starlette", "pydantic"),
    *("fastmcp", "fastmcp-tasks", "pydocket", "uvloop", "httptools", "hiredis"),
)

_TITLES: Final = {
    "plain": "plain call",
    "create": "create",
    "get": "get",
    "complete": "create to completed",
    "answer": "answer to completed",
    "burst": "create, burst",
    "own": "own client's call",
}


@dataclass(frozen=True)
class Ratio:
    """One figure over another, round by round."""

    of: str
    what: str
    #: How many clients at once; 0 where none was at work.
    clients: int
    median: float
    low: float
    high: float
    #: The bound that was set for it ("<= 0.6"), or nothing.
    goal: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median keeps the goal; None without one."""
        if not self.goal:
            return None
        sign, bound = self.goal.split()
        return self.median <= float(bound) if sign == "<=" else self.median >= float(bound)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of the values that at least that share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def p50(samples: Samples) -> float:
    """The median duration of one round, in milliseconds."""
    return statistics.median(samples.ms)


def per_s(samples: Samples) -> float:
    """Operations per second of one round."""
    return len(samples.ms) / samples.wall_ms * 1000


def figures(rounds: Sequence[Samples]) -> dict[str, float]:
    """p50 and rate: the median of the rounds' own. p99: over all operations of all rounds together."""
    every = [ms for samples in rounds for ms in samples.ms]
    return {
        "p50_ms": statistics.median(map(p50, rounds)),
        "p99_ms": percentile(every, 99),
        "per_s": statistics.median(map(per_s, rounds)),
        "operations": len(every),
    }


def ratios(results: Results) -> list[Ratio]:
    """Every ratio that can be formed from what was measured; goals are those of the issue that asked for this."""
    found = [*_over_plain(results)]
    if {OURS, FASTMCP} <= results.samples.keys():
        found += _over_theirs(results)
    if {OURS, CELERY} <= results.backlog_per_s.keys():
        backlog = results.backlog_per_s
        found.append(
            ratio_of("ours / bare Celery", "tasks/s, worker with a backlog", 0, backlog[OURS], backlog[CELERY])
        )
    return found


def _over_plain(results: Results) -> Iterator[Ratio]:
    for name, own in results.samples.items():
        for measure, bound in (("create", 1.8), ("get", 1.25)):
            for clients in (1, SLOTS):
                goal = f"<= {bound}" if name == OURS and clients == 1 else ""
                above, below = (map(p50, own[f"{each}@{clients}"]) for each in (measure, "plain"))
                yield ratio_of(f"{name} / its own plain call", _TITLES[measure], clients, [*above], [*below], goal)


def _over_theirs(results: Results) -> Iterator[Ratio]:
    of = "ours / FastMCP"
    ours, theirs = results.samples[OURS], results.samples[FASTMCP]
    for key in ours:
        measure, clients = key.split("@")
        if measure != "burst":
            goal = "<= 0.6" if measure in ("create", "get", "complete", "answer") else ""
            above, below = map(p50, ours[key]), map(p50, theirs[key])
            yield ratio_of(of, _TITLES[measure], int(clients), [*above], [*below], goal)
    for what, key in (("tasks/s, burst", f"burst@{SLOTS}"), ("tasks/s, polled", f"complete@{SLOTS}")):
        above, below = map(per_s, ours[key]), map(per_s, theirs[key])
        yield ratio_of(of, what, SLOTS, [*above], [*below], ">= 2.5")
    above, below = ([sum(parts.values()) for parts in results.cpu_ms[name]] for name in (OURS, FASTMCP))
    yield ratio_of(of, "CPU per task, burst", SLOTS, above, below)


def ratio_of(of: str, what: str, clients: int, above: Sequence[float], below: Sequence[float], goal: str = "") -> Ratio:
    """Round by round one over the other."""
    each = [a / b for a, b in zip(above, below, strict=True)]
    return Ratio(of, what, clients, statistics.median(each), min(each), max(each), goal)


def document(results: Results, plan: Plan, pool: str, started: str, load: Sequence[float]) -> dict[str, Any]:
    """The run as JSON: machine, settings, every figure, every ratio."""
    return {
        "started": started,
        "machine": machine_facts(load),
        "versions": _versions(results),
        "settings": {
            **asdict(plan),
            "pool": pool,
            "slots": SLOTS,
            "poll_ms": {"first": POLL_FIRST_MS, "growth": POLL_GROWTH, "max": POLL_MAX_MS},
        },
        "figures": {
            name: {key: figures(rounds) for key, rounds in measured.items()}
            for name, measured in results.samples.items()
        },
        "backlog_per_s": {name: statistics.median(rounds) for name, rounds in results.backlog_per_s.items()},
        "burst_cpu_ms_per_task": {
            name: {part: statistics.median(each[part] for each in rounds) for part in rounds[0]}
            for name, rounds in results.cpu_ms.items()
        },
        "at_rest": results.idle,
        "ratios": [{**asdict(ratio), "met": ratio.met} for ratio in ratios(results)],
        "rounds": {
            name: {key: [{"p50_ms": p50(each), "per_s": per_s(each)} for each in rounds] for key, rounds in of.items()}
            for name, of in results.samples.items()
        },
    }


def tables(run: dict[str, Any]) -> Group:
    """The document for people."""
    rows: list[dict[str, Any]] = run["ratios"]
    compared = dict.fromkeys(row["of"] for row in rows)
    every = (
        _figures_table(run),
        _resources_table(run),
        *(_ratios_table(of, [row for row in rows if row["of"] == of]) for of in compared),
    )
    return Group(*(table for table in every if table.row_count), _footer(run))


def blank_table(title: str, left: str, *right: str) -> Table:
    """A table without rows: one column of names, the others of figures."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column(left)
    for name in right:
        table.add_column(name, justify="right")
    return table


def _figures_table(run: dict[str, Any]) -> Table:
    table = blank_table("Milliseconds: p50 / p99 (operations per second)", "measure", "clients", *run["figures"])
    keys = dict.fromkeys(key for measured in run["figures"].values() for key in measured)
    for key in keys:
        measure, clients = key.split("@")
        table.add_row(_TITLES[measure], clients, *(_cell(measured.get(key)) for measured in run["figures"].values()))
    return table


def _cell(figure: dict[str, float] | None) -> str:
    if figure is None:
        return "-"
    return f"{_short(figure['p50_ms'])} / {_short(figure['p99_ms'])} ({figure['per_s']:.0f}/s)"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _resources_table(run: dict[str, Any]) -> Table:
    names = list(dict.fromkeys([*run["figures"], *run["backlog_per_s"]]))
    table = blank_table("Cost and capacity", "", *names)

    def row(title: str, values: dict[str, str]) -> None:
        if values:
            table.add_row(title, *(values.get(name, "-") for name in names))

    row("tasks/s of a worker with a backlog", {name: f"{rate:.0f}" for name, rate in run["backlog_per_s"].items()})
    for part in ("server", "worker", "store"):
        cpu = {name: f"{parts[part]:.2f} ms" for name, parts in run["burst_cpu_ms_per_task"].items()}
        row(f"CPU per task in a burst, {part}", cpu)
    row("CPU at rest, of one core", {name: f"{idle['cpu_percent']:.1f} %" for name, idle in run["at_rest"].items()})
    for part in ("server", "worker"):
        row(f"memory, {part}", {name: f"{idle[f'{part}_rss_mib']:.0f} MiB" for name, idle in run["at_rest"].items()})
    return table


def _ratios_table(of: str, rows: Sequence[dict[str, Any]]) -> Table:
    table = blank_table(f"{of}: median of the rounds", "", "clients", "ratio", "lowest - highest", "goal", "")
    for row in rows:
        verdict = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[row["met"]]
        spread = f"{row['low']:.2f} - {row['high']:.2f}"
        table.add_row(row["what"], str(row["clients"] or "-"), f"{row['median']:.2f}", spread, row["goal"], verdict)
    return table


def _footer(run: dict[str, Any]) -> str:
    machine, settings = run["machine"], run["settings"]
    return (
        f"{machine['cores']} cores ({machine['cpu']}), load before {machine['load_before'][0]:.1f}; "
        f"{settings['rounds']} rounds, {settings['pool']} pool, {settings['slots']} slots. "
        "Only ratios carry over to another machine."
    )


def machine_facts(load: Sequence[float]) -> dict[str, Any]:
    """What the figures were taken on; `load` is the load average before."""
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu_model(),
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": list(load),
        "load_after": list(os.getloadavg()),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _versions(results: Results) -> dict[str, Any]:
    found = {OURS: telling_versions()}
    if FASTMCP in results.samples:
        found[FASTMCP] = telling_versions(fastmcp_env.PYTHON)
    return {"valkey": results.store_version, **found}


def telling_versions(python: Path | str = sys.executable) -> dict[str, str]:
    """Name and version of the packages of that interpreter that explain a figure."""
    packages = fastmcp_env.versions(python)
    return {name: packages[name] for name in _TELLING if name in packages}
