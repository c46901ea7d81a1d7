"""One trace per task over all processes it touches, and the log lines that lead to it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

from tests.fleet.conftest import ENDED
from tests.fleet.system import Fleet, Proc, new_key
from tests.fleet.traced_client import UNSAMPLED
from tests.support.collector import Collector, collecting

#: What the SDK's client asks beside the task's life, as often as it likes.
ASIDE: Final = ("server/discover", "initialize", "tools/list", "tasks/get", "subscriptions/listen")

TREE: Final = """\
an agent's turn [client]
  MCP send tools/call ask1 [client]
    tools/call ask1 [mcptasks-server]
      send mcptasks [mcptasks-server]
        process mcptasks [mcptasks-worker]
          claim [mcptasks-worker]
          execute_tool ask1 [mcptasks-worker]
            park [mcptasks-worker]
        process mcptasks [mcptasks-worker] ~> send mcptasks ~> execute_tool ask1
          claim [mcptasks-worker]
          execute_tool ask1 [mcptasks-worker]
          finish [mcptasks-worker]
  MCP send tasks/update [client]
    tasks/update [mcptasks-server]
      send mcptasks [mcptasks-server]"""


def test_a_task_is_one_trace_over_client_server_and_two_workers(fleet: Fleet, tmp_path: Path) -> None:
    """From the call over publish, claim, run and park to the run that goes on elsewhere, and its end."""
    key, gate = f"secret{new_key()}", tmp_path / "gate"
    with collecting() as collector:
        told: dict[str, Any] = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            # Whatever arrives was sent because its process ended.
            "OTEL_BSP_SCHEDULE_DELAY": "600000",
            "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "process",
            "MCPTASKS_LOG_FORMAT": "json",
            # A re-check that the first worker hands back could be sooner than the message of the answer.
            "MCPTASKS_COUNTDOWN_BUDGET": "0",
        }
        server, first = fleet.start_server(**told), fleet.start_worker("threads", **told)
        url = fleet.ready(server, first)
        argv = [sys.executable, "-m", "tests.fleet.traced_client", url, key, str(gate)]
        client = fleet.start_other("client", argv, **told)
        task_id = client.await_output(r"asked (\S+)").group(1)
        second = fleet.start_worker("prefork", concurrency=1, **told)
        assert first.stop() == 0
        fleet.ready(second)
        gate.touch()
        client.await_output(r"result: 7 secret answer")
        assert client.await_end() == 0
        assert second.stop() == 0
        assert server.stop() in ENDED
        [root] = [span for span in collector.spans if span.name == "an agent's turn"]
        tree = collector.tree(root.trace_id, shown=lambda span: not any(word in span.name for word in ASIDE))
        print(tree)
        assert tree == TREE
        assert not any(int(span.trace_id, 16) == UNSAMPLED for span in collector.spans), "sampling is the caller's"
        _each_in_its_process(collector, root.trace_id)
        _nothing_said(collector, key)
    _logged(first, task_id, root.trace_id, "parked")
    _logged(second, task_id, root.trace_id, "completed")
    for line in _lines(server):
        assert set(line) >= {"time", "level", "logger", "message"}
    assert all(word not in proc.output for proc in (server, first, second) for word in (key, "secret answer"))


def _each_in_its_process(collector: Collector, trace_id: str) -> None:
    spans = [span for span in collector.spans if span.trace_id == trace_id]
    runs = sorted((span for span in spans if span.name == "process mcptasks"), key=lambda span: span.start_ns)
    assert len({span.pid for span in spans}) == 4, "client, server, and a process of each worker"
    assert [run.attributes["mcptasks.outcome"] for run in runs] == ["parked", "completed"]
    assert [run.attributes["mcptasks.run"] for run in runs] == [1, 2]
    assert {run.kind for run in runs} == {"CONSUMER"} and runs[0].pid != runs[1].pid
    assert {span.kind for span in spans if span.name == "send mcptasks"} == {"PRODUCER"}
    assert runs[0].attributes["messaging.system"] == "celery" and not any(span.error for span in spans)


def _nothing_said(collector: Collector, key: str) -> None:
    for body in collector.bodies:
        assert key.encode() not in body and b"secret answer" not in body


def _lines(proc: Proc) -> list[dict[str, Any]]:
    """The log lines; Celery's banner is none, and goes to standard output."""
    return [json.loads(line) for line in proc.output.splitlines() if line.startswith("{")]


def _logged(worker: Proc, task_id: str, trace_id: str, word: str) -> None:
    [line] = [line for line in _lines(worker) if f"ask1: {word} (run " in line["message"]]
    assert line["task_id"] == task_id[:10] and line["tool"] == "ask1" and line["level"] == "INFO"
    assert line["trace_id"] == trace_id and re.fullmatch(r"[0-9a-f]{16}", line["span_id"])
