"""The judge can say no: what chaos looks for is found when it is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.audit import Evidence, checks
from tests.chaos.ledger import Effect
from tests.chaos.load import Job
from tests.chaos.recorder import Look, wrongs


def look(status: str, rev: int, **more: str) -> Look:
    """A record as it was seen once."""
    return Look.of({"status": status, "rev": str(rev), "token": "1", "attempt": "1", "updated": "5", **more})


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        (look("completed", 3), look("running", 4), "completed became running"),
        (look("completed", 3), look("completed", 4), "it had ended as completed and changed"),
        (look("queued", 1), look("parked", 2), "queued became parked within 1"),
        (look("running", 4), look("running", 3), "its revision went back"),
        (look("running", 3, token="2"), look("running", 4, token="1"), "went back"),
        (look("running", 3, cancel="1"), look("running", 5, cancel="1", token="2"), "after its cancel was stored"),
        (look("retrying", 3, due="900"), look("running", 4, due="900", token="2", started="850"), "50 ms early"),
    ],
)
def test_an_illegal_transition_is_seen(before: Look, after: Look, wrong: str) -> None:
    """DESIGN 4: the recorder's only duty."""
    assert any(wrong in found for found in wrongs(before, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (look("queued", 1), look("running", 2)),
        (look("queued", 1), look("parked", 3)),
        (look("parked", 3), look("completed", 6, token="2")),
        (look("running", 3), look("queued", 4)),
        (look("retrying", 3, due="900"), look("running", 4, due="900", token="2", started="900")),
    ],
)
def test_a_legal_transition_is_not_complained_of(before: Look, after: Look) -> None:
    """Ours: looks are 200 ms apart, several transitions fit between two."""
    assert wrongs(before, after) == []


def evidence(log: Path, *, run: int = 1, effects: Sequence[Effect] | None = None, **changed: str) -> Evidence:
    """One completed task, as it should be but for what is given."""
    job = Job("k", "quick", "quick", {"key": "k"}, twice=False, cancel_after=None, task_ids={"t" * 32})
    end: dict[str, Any] = {"status": "completed"}
    job.end = end
    done = [Effect("k", 1, "begin", 1.0, 7, ""), Effect("k", 1, "end", 2.0, 7, "")]
    result = json.dumps({"structuredContent": {"key": "k", "run": run}})
    first = {"status": "completed", "reason": "completed", "token": "1", "attempt": "1", "result": result}
    last = {job.task_id: {**first, **changed}}
    if not log.exists():
        log.write_text("Task tttttttttt: quick: completed (run 1, attempt 1)\n")
    given = {"k": done if effects is None else effects}
    return Evidence([job], given, {job.task_id: first}, last, {job.task_id: [end, end]}, [log])


def broken(seen: Evidence) -> list[str]:
    """The promises that it breaks."""
    return [check.promise for check in checks(seen) if check.broken]


def test_a_sound_task_breaks_no_promise(tmp_path: Path) -> None:
    """Ours: the measure for the following."""
    assert broken(evidence(tmp_path / "log")) == []


def test_a_task_that_did_not_end_is_lost(tmp_path: Path) -> None:
    """Issue 3.7: accepted = ended."""
    assert "accepted = ended: nothing is lost" in broken(evidence(tmp_path / "log", status="queued"))


def test_a_record_that_changed_after_its_end_is_seen(tmp_path: Path) -> None:
    """Invariant 4: terminal is final."""
    found = broken(evidence(tmp_path / "log", updated="9"))
    assert found == ["what has ended never changes, through any server"]


def test_a_commit_of_a_stale_run_is_seen(tmp_path: Path) -> None:
    """Invariant 3: only the run that holds the token commits."""
    assert "a completed task was done, by the run that held its claim" in broken(evidence(tmp_path / "log", token="2"))


def test_a_result_without_its_effect_is_seen(tmp_path: Path) -> None:
    """Issue 3.7: each effect at least once."""
    seen = evidence(tmp_path / "log", effects=[])
    assert broken(seen) == ["a completed task was done, by the run that held its claim"]


def test_two_commits_are_seen(tmp_path: Path) -> None:
    """Issue 3.7: commits exactly once."""
    log = tmp_path / "log"
    log.write_text("Task tttttttttt: quick: completed (run 1, attempt 1)\n" * 2)
    assert broken(evidence(log)) == ["no task was committed twice"]


def test_two_processes_with_one_claim_are_seen(tmp_path: Path) -> None:
    """Invariant 1: no task runs twice at once."""
    effects = [
        Effect("k", 1, "begin", 1.0, 7, ""),
        Effect("k", 1, "begin", 1.5, 8, ""),
        Effect("k", 1, "end", 2, 7, ""),
    ]
    assert broken(evidence(tmp_path / "log", effects=effects)) == ["no claim was used by two runners"]
