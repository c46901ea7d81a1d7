"""What the kills of `benchmarks/recovery.py` mean: a JSON document and a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Group

from benchmarks import report
from benchmarks.crew import WORKERS, Kill
from benchmarks.late_celery import DEFAULT_VISIBILITY_S, SWEEP_S
from benchmarks.systems import CELERY, OURS
from mcptasks.settings import Settings

#: What the median of our recoveries may take.
GOAL_S: Final = 20.0


def document(
    measured: Mapping[str, Sequence[Kill]],
    settings: Settings,
    visibility_s: int,
    store_version: str,
    started: str,
    load: Sequence[float],
) -> dict[str, Any]:
    """The run as JSON: machine, settings, every kill, the figures. Durations in seconds."""
    figures = {name: _figures([kill.took_s for kill in kills]) for name, kills in measured.items()}
    return {
        "started": started,
        "machine": report.machine_facts(load),
        "versions": {"valkey": store_version, **report.telling_versions()},
        "settings": {
            "workers": WORKERS,
            "lease_s": settings.lease_ms / 1000,
            "renew_s": settings.renew_ms / 1000,
            "sweep_s": settings.sweep_ms / 1000,
            "celery_visibility_timeout_s": visibility_s,
            "celery_sweep_s": SWEEP_S,
        },
        "figures": figures,
        "goal": {"median_s": GOAL_S, "met": figures[OURS]["median_s"] <= GOAL_S},
        # Not measured: what Celery's own rule says about its default, counted from the delivery of the message.
        "celery_default": {
            "visibility_timeout_s": DEFAULT_VISIBILITY_S,
            "from_delivery_s": [DEFAULT_VISIBILITY_S, DEFAULT_VISIBILITY_S + SWEEP_S],
        },
        "kills": {name: [asdict(kill) for kill in kills] for name, kills in measured.items()},
    }


def _figures(took_s: Sequence[float]) -> dict[str, float]:
    return {
        "kills": len(took_s),
        "median_s": statistics.median(took_s),
        "fastest_s": min(took_s),
        "slowest_s": max(took_s),
    }


def tables(run: dict[str, Any]) -> Group:
    """The document for people."""
    settings = run["settings"]
    names = {
        OURS: f"mcptasks, lease {settings['lease_s']:.0f} s (default)",
        CELERY: f"Celery, visibility timeout {settings['celery_visibility_timeout_s']} s",
    }
    table = report.blank_table(
        "From kill -9 of the worker until its job begins again elsewhere",
        *("", "kills", "median", "fastest", "slowest", "goal", ""),
    )
    for name, title in names.items():
        figures = run["figures"][name]
        seconds = (f"{figures[f'{which}_s']:.1f} s" for which in ("median", "fastest", "slowest"))
        goal = (f"<= {run['goal']['median_s']:.0f} s", _verdict(run["goal"]["met"])) if name == OURS else ("", "")
        table.add_row(title, str(figures["kills"]), *seconds, *goal)
    return Group(table, _about_the_default(run), _footer(run))


def _about_the_default(run: dict[str, Any]) -> str:
    default, sweep_s = run["celery_default"], run["settings"]["celery_sweep_s"]
    low, high = default["from_delivery_s"]
    return (
        f"With Celery's default visibility timeout of {default['visibility_timeout_s']} s the job begins again {low} "
        f"to {high} s after its first start (not measured; the sweep comes every {sweep_s} s). "
        "A short one is no way out: Celery runs each job that takes longer a second time, beside the first."
    )


def _footer(run: dict[str, Any]) -> str:
    machine = run["machine"]
    return (
        f"{machine['cores']} cores ({machine['cpu']}), load before {machine['load_before'][0]:.1f}; "
        f"{run['settings']['workers']} workers of each system, one of them killed at a random offset within the lease."
    )


def _verdict(met: bool) -> str:
    return "[green]met[/]" if met else "[red]missed[/]"
