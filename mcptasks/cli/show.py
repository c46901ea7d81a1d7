"""`mcptasks show ID`: one task, with all that is known of it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcptasks.cli.download import save
from mcptasks.cli.logs import show_entries
from mcptasks.cli.operating import Json, TaskId, console, on_fleet, print_json, status_text
from mcptasks.cli.task_table import common_json
from mcptasks.known import Known, known
from mcptasks.links import RESULT_NAME
from mcptasks.model import Record, label
from mcptasks.shown import note_of, outcome, plain, plain_lines, span
from mcptasks.times import iso

#: Entries of the timeline; `mcptasks logs` has all.
_LATEST: Final = 10


def show(
    task: TaskId,
    result: Annotated[bool, typer.Option("--result", help="Its result, too, as the caller gets it.")] = False,
    artifact: Annotated[str | None, typer.Option(metavar="NAME", help="Only the bytes of this artifact.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write artifact or whole result there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show one task: where it stands and runs, what it asks, what came of it, and how.

    With --artifact NAME, or --result and --output, it is a file that is written, and nothing is shown.
    """
    if artifact is not None or output is not None:
        if as_json or result == bool(artifact):
            raise typer.BadParameter("--output FILE goes with --artifact NAME or with --result, --json with neither")
        save(task, artifact or RESULT_NAME, output)
        return
    found = on_fleet(lambda fleet: known(fleet, task))
    if as_json:
        print_json(_as_json(found, with_result=result))
        return
    screen = console()
    screen.print(_facts(found))
    _show_questions(found, screen)
    _show_artifacts(found, screen)
    _show_timeline(found, screen)
    if result and found.task.result is not None:
        screen.print("\nresult", style="bold")
        typer.echo(json.dumps(found.task.result, indent=2))


def _as_json(found: Known, *, with_result: bool) -> dict[str, Any]:
    task, pulse = found.task, found.worker
    where = None if pulse is None else {"host": pulse.host, "pid": pulse.pid}
    told = {
        **common_json(task),
        "max_attempts": task.max_attempts,
        "waits_for": found.waits_for,
        "runs_on": where,
        "questions": {
            key: {**question, "answer_by": iso(task.answer_by_ms[key]) if key in task.answer_by_ms else None}
            for key, question in task.questions.items()
        },
        "artifacts": [{"name": a.name, "size": a.size, "mime": a.mime, "sha256": a.sha256} for a in found.artifacts],
        "error": task.error,
        "timeline": found.timeline.told(),
    }
    return {**told, "result": task.result} if with_result else told


def _facts(found: Known) -> Table:
    task = found.task
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")

    def fact(name: str, said: str | Text) -> None:
        if said:
            grid.add_row(name, said if isinstance(said, Text) else Text(said))

    fact("task", task.task_id)
    fact("tool", plain(task.tool) + (f", version {plain(task.version, 80)}" if task.version else ""))
    fact("owner", plain(task.owner) or "nobody: without authentication every caller is the same")
    fact("status", status_text(task.status, note_of(task)))
    if task.progress is None or task.progress.text != task.status_message:
        fact("message", plain(task.status_message or ""))
    if task.progress is not None:
        running = not task.status.terminal
        fact(
            "progress", plain(", ".join(filter(None, [task.progress.text, task.progress.estimate if running else ""])))
        )
    fact("created", _when(task.created_ms, found.now_ms))
    fact("ended" if task.status.terminal else "updated", _when(task.updated_ms, found.now_ms))
    fact("kept", _kept(task, found.now_ms))
    fact("attempt", f"{task.attempt} of {task.max_attempts}")
    fact("queue", plain(task.queue))
    fact("waits for", Text(plain(found.waits_for or ""), "bold yellow"))
    fact("worker", _where(found))
    if task.error is not None:
        fact("error", Text(f"{task.error.get('code')}: {plain(str(task.error.get('message', '')))}", "red"))
    if came := outcome(task, found.artifacts):
        fact("result", f"{came}; --result shows it")
    return grid


def _when(ms: int, now_ms: int) -> str:
    return f"{iso(ms)} ({span(now_ms - ms)} ago)"


def _kept(task: Record, now_ms: int) -> str:
    if task.ttl_ms is None:
        return "for ever"
    if task.status.terminal:
        return f"for {span(task.ttl_ms)} after its end, or longer where it was extended"
    end_ms = task.created_ms + task.ttl_ms
    return f"until {iso(end_ms)} (in {span(end_ms - now_ms)}); then it fails as expired"


def _where(found: Known) -> str:
    name, pulse = found.task.worker, found.worker
    if name is None:
        return ""
    return (
        f"{plain(name)} (pid {pulse.pid} on {plain(pulse.host)})" if pulse else f"{plain(name)}, which is not heard of"
    )


def _show_questions(found: Known, screen: Console) -> None:
    task = found.task
    if not task.questions:
        return
    screen.print("\nopen questions", style="bold")
    for key, question in sorted(task.questions.items()):
        params: dict[str, Any] = question["params"]
        head = Text(f"  {plain(key)}", "cyan")
        if key in task.answer_by_ms:
            head.append(f"  (in {span(task.answer_by_ms[key] - found.now_ms)} its time is up)", "yellow")
        screen.print(head)
        for line in plain_lines(str(params.get("message", "")) or question["method"]):
            screen.print(Text(f"    {line}"))
        fields = params.get("requestedSchema", {}).get("properties")
        # Tools write schemas; what is no schema has no fields.
        for name, field in cast("dict[str, Any]", fields).items() if isinstance(fields, dict) else ():
            screen.print(Text(f"      {plain(name)}: {plain(json.dumps(field), 200)}", "dim"), soft_wrap=True)
    screen.print(Text(f"  mcptasks answer {label(task.task_id)}", "dim"))


def _show_artifacts(found: Known, screen: Console) -> None:
    if found.artifacts:
        screen.print("\nartifacts", style="bold")
    for one in found.artifacts:
        screen.print(
            Text(f"  {plain(one.name) or '(its result)'}  {one.size:,} bytes  {plain(one.mime)}"), soft_wrap=True
        )
    if found.artifacts:
        name = next((f"--artifact {shlex.quote(plain(a.name))}" for a in found.artifacts if a.name), "--result")
        screen.print(Text(f"  mcptasks show {label(found.task.task_id)} {name} --output FILE", "dim"), soft_wrap=True)


def _show_timeline(found: Known, screen: Console) -> None:
    screen.print("\ntimeline", style="bold")
    if len(found.timeline) > _LATEST:
        hint = f"mcptasks logs {label(found.task.task_id)} shows all {len(found.timeline)} entries; the latest:"
        screen.print(hint, style="dim")
    show_entries(found.timeline.entries[-_LATEST:], screen)
