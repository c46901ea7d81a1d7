"""Debian's Prometheus beside a fleet, with rules and dashboard of deploy/: what it reads, and what it would tell."""

from __future__ import annotations

import json
import shutil
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.fleet.system import ROOT, Fleet, Proc, client, free_port, new_key, outcome, questions, start
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

DEPLOY: Final = ROOT / "deploy"
TASKS: Final = 5
#: Pictures that have something to draw once a few tasks have run.
DRAWN: Final = {"Store", "Workers", "Open questions", "Accepted, by tool", "Busy slots", "Store calls, 99 %"}


class Prometheus:
    """A Prometheus of the test's own, which scrapes each second."""

    def __init__(self, fleet: Fleet, targets: list[str]) -> None:
        program = shutil.which("prometheus")
        assert program is not None, "there is no prometheus on PATH: `make promtool` installs Debian's"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(DEPLOY / "prometheus" / "alerts.yml")],
            "scrape_configs": [{"job_name": "mcptasks", "static_configs": [{"targets": targets}]}],
        }
        file = fleet.folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        self._url = f"http://127.0.0.1:{free_port()}"
        argv = [program, f"--config.file={file}", f"--storage.tsdb.path={fleet.folder / 'tsdb'}"]
        argv += [f"--web.listen-address={urllib.parse.urlsplit(self._url).netloc}"]
        self._process = fleet.start_other("prometheus", argv)
        self._process.await_output("ready to receive web requests")

    def value(self, expression: str) -> float | None:
        """What the expression comes to now; None: it has no series."""
        found = self._get("query", query=expression)["result"]
        return float(found[0]["value"][1]) if found else None

    def alerts(self) -> set[str]:
        """Those that fire, or would if it went on so."""
        return {alert["labels"]["alertname"] for alert in self._get("alerts")["alerts"]}

    def rules(self) -> list[dict[str, Any]]:
        """All of them, as they were evaluated."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def stop(self) -> None:
        """It is gone."""
        self._process.stop()

    def _get(self, what: str, **query: str) -> Any:
        url = f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            answer = json.loads(response.read())
        assert answer["status"] == "success", answer
        return answer["data"]


def target(proc: Proc) -> str:
    """Where the process is scraped."""
    return proc.await_output(r"Metrics are at http://(\S+)/metrics").group(1)


def pictures() -> list[tuple[str, str]]:
    """Title and expression of everything that the dashboard draws."""
    dashboard = json.loads((DEPLOY / "grafana" / "mcptasks.json").read_text())
    asked = [(panel["title"], one["expr"]) for panel in dashboard["panels"] for one in panel.get("targets", ())]
    return [(title, expression.replace("$__rate_interval", "1m")) for title, expression in asked]


async def test_prometheus_reads_a_fleet_draws_every_picture_and_tells_of_a_store_that_is_down(tmp_path: Path) -> None:
    """Issue 7: not only rules that parse, but rules that a real fleet's numbers reach."""
    first = free_port() % 50_000 + 10_000
    with Fleet(tmp_path, MCPTASKS_METRICS_PORT=f"{first}-{first + 99}") as fleet:
        worker, server = fleet.start_worker("prefork", concurrency=2), fleet.start_server()
        url = fleet.ready(worker, server)
        prometheus = Prometheus(fleet, [target(worker), target(server)])
        async with client(url) as connection:
            asking = await start(connection, "ask1", key=new_key(), x=7)
            await questions(asking)
            for handle in [await start(connection, "ledger", key=new_key()) for _ in range(TASKS)]:
                await outcome(handle)

        def read(expression: str, expected: float) -> None:
            wait_until(
                lambda: prometheus.value(expression) == expected, description=f"{expression} is {expected}", within_s=30
            )

        read('sum(mcptasks_created_total{tool="ledger"})', TASKS)
        read('sum(mcptasks_ended_total{tool="ledger",status="completed"})', TASKS)
        read('max(mcptasks_tasks{status="parked"})', 1)
        read("sum(up)", 2)
        # A rate needs two scrapes of its series.
        wait_until(
            lambda: {title for title, asked in pictures() if prometheus.value(asked) is not None} >= DRAWN,
            description="the pictures have something to draw",
            within_s=30,
        )
        wait_until(lambda: all(rule["health"] == "ok" for rule in prometheus.rules()), description="all are evaluated")
        assert prometheus.alerts() == set(), "a fleet that is well"

        fleet.store.freeze()
        try:
            wait_until(
                lambda: "McptasksStoreDown" in prometheus.alerts(), description="it tells of the store", within_s=60
            )
        finally:
            fleet.store.thaw()
        wait_until(lambda: "McptasksStoreDown" not in prometheus.alerts(), description="it is well again", within_s=60)
        prometheus.stop()
