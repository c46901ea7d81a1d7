"""The accounting: what was accepted against what the store, the ledger and the logs say became of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mcptasks.model import label
from tests.chaos.ledger import Effect
from tests.chaos.load import Job
from tests.chaos.plan import EXHAUSTED_AFTER, FEW
from tests.chaos.recorder import TERMINAL

#: What a worker logs once the store has answered FINISHED, and at no other time.
_COMMITTED: Final = re.compile(r"Task (\S{10}): \S+: (?:stuck: )?(?:completed|failed|cancelled) \(run (\d+), attempt")


@dataclass
class Check:
    """One promise, and every case that breaks it."""

    promise: str
    #: How many cases were looked at.
    looked_at: int
    broken: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Evidence:
    """Everything the accounting looks at."""

    jobs: Sequence[Job]
    #: Ledger, by key.
    effects: Mapping[str, Sequence[Effect]]
    #: Task id -> its record when it was first seen ended, and at the very end.
    first: Mapping[str, Mapping[str, str]]
    last: Mapping[str, Mapping[str, str]]
    #: Task id -> what each server says of it at the very end.
    answers: Mapping[str, Sequence[dict[str, Any]]]
    logs: Sequence[Path]


def checks(evidence: Evidence) -> list[Check]:
    """Every promise about tasks."""
    return [
        _submissions(evidence.jobs),
        _ended(evidence),
        _strangers(evidence),
        _as_planned(evidence),
        _done(evidence),
        _committed_once(evidence),
        _final(evidence),
        _one_runner_a_claim(evidence),
        _attempts(evidence),
    ]


def _submissions(jobs: Sequence[Job]) -> Check:
    broken = [f"{job.key}: {text}" for job in jobs for text in job.complaints]
    broken += [f"{job.key}: never accepted" for job in jobs if not job.task_ids]
    return Check("every submission was accepted, once, and every answer made sense", len(jobs), broken)


def _ended(evidence: Evidence) -> Check:
    broken: list[str] = []
    accepted = [(job, task_id) for job in evidence.jobs for task_id in job.task_ids]
    for job, task_id in accepted:
        record = evidence.last.get(task_id)
        if not record:
            broken.append(f"{job.key}: LOST, its record is gone")
        elif record["status"] not in TERMINAL:
            broken.append(f"{job.key} ({job.kind}): still {record['status']}, token {record['token']}")
    return Check("accepted = ended: nothing is lost", len(accepted), broken)


def _strangers(evidence: Evidence) -> Check:
    known = {task_id for job in evidence.jobs for task_id in job.task_ids}
    return Check(
        "the store holds no task that nobody was told of",
        len(evidence.last),
        [f"{task_id}: a {record['tool']}" for task_id, record in evidence.last.items() if task_id not in known],
    )


def _as_planned(evidence: Evidence) -> Check:
    broken: list[str] = []
    for job, record in _records(evidence):
        if record["status"] in TERMINAL and (wrong := _unplanned(job, record)):
            broken.append(f"{job.key} ({job.kind} {job.tool}): {wrong}: {record.get('error') or record.get('msg')}")
    return Check("each task ended as its kind must", len(evidence.jobs), broken)


def _unplanned(job: Job, record: Mapping[str, str]) -> str:
    end = record["status"], record["reason"]
    allowed = [("completed", "completed")]
    match job.kind:
        case "gives_up":
            allowed = [("failed", "retries_exhausted")]
        case "fragile":
            allowed.append(("failed", "worker_lost"))
        case "cancelled":
            allowed.append(("cancelled", "cancelled"))
        case _:
            pass
    if end not in allowed:
        return f"it {end[0]} ({end[1]})"
    if end[1] == "worker_lost" and record["attempt"] != str(FEW):
        return f"it was given up after {record['attempt']} attempt(s)"
    if job.kind == "gives_up" and record["retries"] != str(len(EXHAUSTED_AFTER)):
        return f"it had {record['retries']} retries"
    if end[0] == "completed" and (text := _wrong_answers(job, _returned(record))):
        return text
    return ""


def _wrong_answers(job: Job, returned: Mapping[str, Any]) -> str:
    if "answers" not in returned:
        return ""
    given = list(job.answers.values())
    fits = len(given) == len(returned["answers"]) and all(
        answer in said for answer, said in zip(returned["answers"], given, strict=True)
    )
    return "" if fits else f"it heard {returned['answers']}, but {given} was said"


def _done(evidence: Evidence) -> Check:
    """The committed run is the latest one, and what it says it did stands in the ledger."""
    broken, looked_at = list[str](), 0
    for job, record in _records(evidence):
        if record["status"] != "completed":
            continue
        looked_at += 1
        returned = _returned(record)
        if returned.get("key") != job.key:
            broken.append(f"{job.key}: it has the result of {returned.get('key')}")
        if str(returned.get("run")) != record["token"]:
            broken.append(f"{job.key}: run {returned.get('run')} committed, but run {record['token']} had the claim")
        done = [e for e in evidence.effects.get(job.key, ()) if e.event == "end" and e.run == returned.get("run")]
        if not done:
            broken.append(f"{job.key}: completed by run {returned.get('run')}, which never came to its end")
    return Check("a completed task was done, by the run that held its claim", looked_at, broken)


def _committed_once(evidence: Evidence) -> Check:
    commits: Counter[str] = Counter()
    for log in evidence.logs:
        commits.update(match.group(1) for match in _COMMITTED.finditer(log.read_text(errors="replace")))
    broken = [f"{task}: {count} runs were told FINISHED" for task, count in commits.items() if count > 1]
    return Check("no task was committed twice", len(commits), broken)


def _final(evidence: Evidence) -> Check:
    broken: list[str] = []
    for task_id, first in evidence.first.items():
        last = evidence.last.get(task_id, {})
        if changed := sorted(name for name in first.keys() | last.keys() if first.get(name) != last.get(name)):
            broken.append(f"{label(task_id)}: after its end these changed: {', '.join(changed)}")
    for job in evidence.jobs:
        said = evidence.answers.get(job.task_id, ())
        broken += [f"{job.key}: it was {job.end}, now it is {now}" for now in said if job.end and now != job.end]
    return Check("what has ended never changes, through any server", len(evidence.first), broken)


def _one_runner_a_claim(evidence: Evidence) -> Check:
    broken, looked_at = list[str](), 0
    for key, effects in evidence.effects.items():
        for run in {effect.run for effect in effects}:
            looked_at += 1
            mine = [effect for effect in effects if effect.run == run]
            if len({effect.pid for effect in mine}) > 1:
                broken.append(f"{key}: run {run} was run by processes {sorted({effect.pid for effect in mine})}")
            inside = 0
            for effect in mine:
                inside += {"begin": 1, "end": -1, "stopped": -1}.get(effect.event, 0)
                if inside > 1:
                    broken.append(f"{key}: run {run} began while it ran")
    return Check("no claim was used by two runners", looked_at, broken)


def _attempts(evidence: Evidence) -> Check:
    """`charged_by` is what the step recorded first; a later run must have got it back."""
    broken, looked_at = list[str](), 0
    for job, record in _records(evidence):
        if record["status"] != "completed" or "charged_by" not in (returned := _returned(record)):
            continue
        looked_at += 1
        by = returned["charged_by"]
        charges = [effect.run for effect in evidence.effects.get(job.key, ()) if effect.event == "charged"]
        if by not in charges:
            broken.append(f"{job.key}: charged by run {by}, the ledger has {charges}")
        # Whoever charged again did so because the earlier charge was never recorded: none may come after the record.
        if any(run > by for run in charges):
            broken.append(f"{job.key}: the charge of run {by} stands, yet {charges} charged")
    return Check("a recorded step was not done again", looked_at, broken)


# -------------------------------------------------------------------------------------------- no promise, but telling


def figures(evidence: Evidence) -> dict[str, int]:
    """What the faults did to the tasks."""
    records = [record for _, record in _records(evidence)]
    claims = sum(int(record["token"]) for record in records)
    begun = sum(len({e.run for e in evidence.effects.get(job.key, ()) if e.event == "begin"}) for job in evidence.jobs)
    return {
        "submitted": len(evidence.jobs),
        "accepted": sum(bool(job.task_ids) for job in evidence.jobs),
        **{status: sum(record["status"] == status for record in records) for status in sorted(TERMINAL)},
        "submissions repeated": sum(job.resubmitted for job in evidence.jobs),
        "submitted twice at once": sum(job.twice for job in evidence.jobs),
        "runs claimed": claims,
        "claims without a run": claims - begun,
        "attempts beyond the first": sum(max(0, int(record["attempt"]) - 1) for record in records),
        "most attempts of a task": max((int(record["attempt"]) for record in records), default=0),
        "given up as worker_lost": sum(record.get("reason") == "worker_lost" for record in records),
        "effects done again": sum(
            max(0, sum(e.event == "end" for e in evidence.effects.get(job.key, ())) - 1) for job in evidence.jobs
        ),
    }


def _records(evidence: Evidence) -> Iterable[tuple[Job, Mapping[str, str]]]:
    return ((job, evidence.last[job.task_id]) for job in evidence.jobs if evidence.last.get(job.task_id))


def _returned(record: Mapping[str, str]) -> dict[str, Any]:
    return json.loads(record["result"]).get("structuredContent") or {}
