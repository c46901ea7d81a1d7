"""The MCP Inspector, a foreign client that knows tasks, on the sample fleet of this repository (issue 4, part 8)."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fleet.system import ROOT, Fleet
from tests.inspector.programs import Cli, InspectorError, Mcpdo
from tests.requirements import covers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("inspector")

SAMPLES: Final = "workers.server:mcp"
ERAS: Final = ("modern", "legacy")
DURABLE: Final = {"index_files", "csv_report", "crawl_site", "deploy_release", "order_supplies"}

CSV: Final = json.dumps({"csv_text": "city,count\nUlm,3\n"})
RELEASE: Final = json.dumps({"version": "1.4.0"})


@dataclass(frozen=True)
class Samples:
    """A server and a worker of the sample tools."""

    fleet: Fleet
    url: str

    def tasks(self, status: str) -> list[str]:
        """The ids of the tasks in that status."""
        ids = {key.partition("{")[2].partition("}")[0] for key in self.fleet.task_keys()}
        return [task_id for task_id in ids if self.fleet.record(task_id).status == status]

    def one_task(self, status: str) -> str:
        """The id of the one task in that status."""
        [task_id] = wait_until(lambda: self.tasks(status), description=f"there is a task that is {status}")
        return task_id

    def target(self, transport: str) -> list[str]:
        """Where the Inspector finds the tools: the HTTP server, or one of its own that talks on stdio."""
        if transport == "http":
            return [self.url]
        mine = {name: value for name, value in self.fleet.environment().items() if name.startswith("MCPTASKS_")}
        env = [f"-e{name}={value}" for name, value in {**mine, "PYTHONPATH": str(ROOT)}.items()]
        return [*env, "--transport", "stdio", sys.executable, "-c", "from workers.server import mcp; mcp.run()"]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Generator[Samples]:
    """The sample fleet; what its tools leave in the folder for temporary files is left in the test's own."""
    folder = tmp_path_factory.mktemp("samples")
    # Leases as they come: a stall of a busy machine must not look like a death.
    with Fleet(folder, TMPDIR=str(folder), MCPTASKS_LEASE_MS="15000") as fleet:
        worker, server = fleet.start("worker", SAMPLES), fleet.start("serve", SAMPLES, "--port", "0")
        yield Samples(fleet, fleet.ready(worker, server))


@pytest.fixture(scope="module")
def mcpdo(samples: Samples, tmp_path_factory: pytest.TempPathFactory) -> Generator[Mcpdo]:
    """The Inspector with connections to the sample fleet."""
    # A call that waits has its connection to itself, so the others each have one.
    eras = {"modern": "modern", "legacy": "legacy", "orders": "modern", "files": "modern", "beside": "modern"}
    servers = {name: {"type": "streamable-http", "url": samples.url, "protocolEra": era} for name, era in eras.items()}
    with Mcpdo(tmp_path_factory.mktemp("mcpdo"), servers) as mine:
        for name, era in eras.items():
            assert mine.connect(name)["protocolEra"] == era
        yield mine


def text(result: dict[str, Any]) -> str:
    """The text of a tool's result."""
    assert result["isError"] is False, result
    return result["content"][0]["text"]


@pytest.mark.parametrize("era", ERAS)
def test_the_cli_lists_the_tools(samples: Samples, era: str, tmp_path: Path) -> None:
    """Issue 4: the Inspector's CLI, whatever its protocol version."""
    listed = Cli(tmp_path).run("tools/list", era=era, target=samples.target("http"))
    assert {tool["name"] for tool in listed["tools"]} > DURABLE


@covers("P32")
@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize("era", ERAS)
def test_the_cli_calls_a_durable_tool(samples: Samples, era: str, transport: str, tmp_path: Path) -> None:
    """Issue 4: over HTTP and stdio; it knows tasks at 2026-07-28 and waits for the call at 2025-11-25."""
    before = set(samples.tasks("completed"))
    named = ("--tool-name", "csv_report", "--tool-args-json", CSV)
    report = Cli(tmp_path).run("tools/call", *named, era=era, target=samples.target(transport))
    assert "| city | text | 1 |" in text(report)
    assert len(set(samples.tasks("completed")) - before) == 1, "it was a task on the fleet"


@covers("C14")
@pytest.mark.parametrize("era", ERAS)
def test_the_cli_which_cannot_be_asked_hears_so_at_once(samples: Samples, era: str, tmp_path: Path) -> None:
    """C14: it declares no elicitation, and a tool that asks does not wait for it until its ttl."""
    named = ("--tool-name", "deploy_release", "--tool-args-json", RELEASE)
    with pytest.raises(InspectorError, match="did not declare the elicitation capability"):
        Cli(tmp_path).run("tools/call", *named, era=era, target=samples.target("http"))
    assert samples.tasks("parked") == []


@covers("R3", "C09")
@pytest.mark.parametrize(("era", "origin"), [("modern", "task-input-required"), ("legacy", "server-request")])
def test_a_person_at_the_inspector_answers_a_tool(samples: Samples, mcpdo: Mcpdo, era: str, origin: str) -> None:
    """Issue 4: as a task where the version has tasks, live over the call's own stream where it has not."""
    for answer, expected in (
        (["approve:=true", "note:=go"], "The person approved"),
        (["--decline"], "The person declined to answer"),
    ):
        asked = mcpdo.on(era, "tools/call", "deploy_release", RELEASE)["elicitationPending"]
        assert (asked["origin"], asked["requestedSchema"]["required"]) == (origin, ["approve"])
        assert asked["message"].startswith("Deploy release 1.4.0?")
        result = mcpdo.run("elicitation/respond", asked["elicitationId"], *answer)
        assert result["structuredContent"]["message"].startswith(expected)
        assert json.loads(text(result)) == result["structuredContent"]


@covers("R2", "R3")
def test_the_inspector_reads_and_answers_a_task_from_beside(samples: Samples, mcpdo: Mcpdo) -> None:
    """Issue 4: tasks/get, tasks/update and the result, by the task's id on another connection."""
    order = json.dumps({"items": [{"article": "pens", "quantity": 2}]})
    mcpdo.on("orders", "tools/call", "order_supplies", order)
    task_id = samples.one_task("parked")
    task = mcpdo.on("beside", "tasks/get", task_id)["task"]
    assert task["status"] == "input_required"
    [(key, question)] = task["raw"]["inputRequests"].items()
    assert question["params"]["message"].startswith("Order 2 pens for 3.60 EUR?")
    answer = json.dumps({key: {"action": "accept", "content": {"approve": True}}})
    assert mcpdo.on("beside", "tasks/update", task_id, "--input-responses", answer)["updated"]
    wait_until(lambda: task_id in samples.tasks("completed"), description="the order is placed")
    assert '"status": "charged"' in text(mcpdo.on("beside", "tasks/result", task_id))


@covers("R2", "R5")
def test_the_inspector_cancels_a_task_and_its_caller_hears_of_it(
    samples: Samples, mcpdo: Mcpdo, tmp_path: Path
) -> None:
    """Issue 4: tasks/cancel, while the call that made the task waits for it."""
    for number in range(200):
        (tmp_path / f"{number}.txt").write_text("one two three")
    forever = json.dumps({"folder": str(tmp_path), "passes": 10_000})
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(mcpdo.on, "files", "tools/call", "index_files", forever)
        task_id = samples.one_task("running")
        assert mcpdo.on("beside", "tasks/cancel", task_id)["cancelled"]
        with pytest.raises(InspectorError, match="was cancelled"):
            call.result()
    assert mcpdo.on("beside", "tasks/get", task_id)["task"]["status"] == "cancelled"
