"""Alert rules and dashboard: valid, able to fire, and about metrics that there are; their runbooks exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client import CollectorRegistry

from mcptasks.model import Status
from mcptasks.observe.gauges import StoreGauges, WorkerGauges
from mcptasks.observe.metrics import Metrics
from mcptasks.settings import Settings
from mcptasks.store.gauges import Levels, Outbox
from mcptasks.store.lists import Counts
from mcptasks.store.registry import WorkerPulse

ROOT: Final = Path(__file__).parents[2]
PROMETHEUS: Final = ROOT / "deploy" / "prometheus"
RULES: Final[list[dict[str, Any]]] = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD: Final[dict[str, Any]] = json.loads((ROOT / "deploy" / "grafana" / "mcptasks.json").read_text())
EXPRESSIONS: Final = [
    *(rule["expr"] for rule in RULES),
    *(target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())),
]
PULSE: Final = WorkerPulse(at_ms=1, host="h", pid=2, slots=4, active=1, received=9, waiting=3, deaf_ms=7)


class _Seen(StoreGauges):
    """Gauges of a store that is made up."""

    def _look(self) -> Levels:
        return Levels(
            now_ms=2,
            counts=Counts(dict.fromkeys(Status, 0), {}, 0),
            unsent=0,
            late_ms={"leases": 0},
            admission_open=True,
            workers={},
            tracked=0,
            tracked_late_ms=0,
            dead_letters=0,
            outboxes={"hook": Outbox(2, 30)},
        )


def served() -> dict[str, set[str]]:
    """Every sample's name that a process can serve, and the labels of its metric."""
    registry = CollectorRegistry()
    Metrics(registry)
    registry.register(_Seen(Settings()))
    registry.register(WorkerGauges(lambda: PULSE))
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    found: dict[str, set[str]] = {}
    for family in registry.collect():
        labels = {label for sample in family.samples for label in sample.labels}
        for suffix in suffixes[family.type]:
            found[f"{family.name}{suffix}"] = labels
    return found


def promtool(*words: str) -> None:
    """Prometheus' own tool says that all is well."""
    found = shutil.which("promtool")
    assert found is not None, "there is no promtool on PATH: `make promtool` installs Debian's"
    done = subprocess.run([found, *words], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_its_configuration_and_the_rules() -> None:
    """Syntax, and every expression's types."""
    promtool("check", "config", "prometheus.yml")


def test_every_alert_fires_on_what_it_is_for_and_none_on_a_fleet_that_is_well() -> None:
    """As series over time, through Prometheus' own engine."""
    promtool("test", "rules", "alerts_test.yml")
    told = (PROMETHEUS / "alerts_test.yml").read_text()
    assert [rule["alert"] for rule in RULES if f"alertname='{rule['alert']}'" not in told] == []


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_that_is_asked_for_is_served(expression: str) -> None:
    """A metric that is renamed takes its alerts and pictures along."""
    names = set(re.findall(r"\bmcptasks_[a-z_]+", expression))
    assert names and names <= served().keys()


def test_every_metric_is_in_the_table_of_the_page_and_none_besides() -> None:
    """docs/metrics.md."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    told = set(re.findall(r"^\| `(mcptasks_[a-z_]+)`", page, re.MULTILINE))
    assert told == {re.sub(r"_(bucket|sum|count)$", "", name) for name in served()}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_says_what_to_do_and_where_it_is_written(rule: dict[str, Any]) -> None:
    """Its runbook is a heading of the page for operators."""
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in {re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") for heading in headings}
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"] and rule["annotations"]["description"]


def test_the_dashboards_panels_stand_beside_each_other() -> None:
    """None hides another."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
