"""`mcptasks track ...`: tasks on other people's servers, submitted, listed, shown, answered, cancelled, replayed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mcptasks.errors import ConfigurationError, MCPTasksError
from mcptasks.times import iso
from mcptasks.tracker.model import DeadLetter, Tracked, TrackStatus
from mcptasks.tracker.scope import TrackedTasks

app = typer.Typer(no_args_is_help=True, help="Tasks on other people's servers.")

T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Task = Annotated[str, typer.Argument(help="The task's id, or the beginning of it.")]


class NoDeadLetter(MCPTasksError):
    """There is nothing to replay."""


@app.command()
def submit(
    server: Annotated[str, typer.Argument(help="The server's name in the mcpServers file.")],
    tool: Annotated[str, typer.Argument(help="The tool to call.")],
    arguments: Annotated[str, typer.Argument(help="Its arguments, a JSON object.")] = "{}",
    servers: Annotated[
        str, typer.Option(help="The mcpServers file.", envvar="MCPTASKS_TRACK_SERVERS", show_envvar=True)
    ] = "",
    key: Annotated[str, typer.Option(help="Sent once, however often this is called with it.")] = "",
    owner: Annotated[str, typer.Option(help="Whose task it is, for lists.")] = "",
    notify: Annotated[list[str] | None, typer.Option(help="A consumer of the workers'; may be repeated.")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Come back when it has ended; 1 unless it is completed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Call a tool of a task server and track the task. The workers of a tracker's Celery app follow it."""
    given = _object(arguments, "ARGUMENTS")
    task = asyncio.run(_submit(server, tool, given, servers, key or None, owner, notify or [], wait))
    _print(task, as_json)
    if wait and task.status is not TrackStatus.COMPLETED:
        raise typer.Exit(1)


async def _submit(
    server: str,
    tool: str,
    arguments: dict[str, Any],
    servers: str,
    key: str | None,
    owner: str,
    notify: list[str],
    wait: bool,
) -> Tracked:
    # Only here: it brings Celery and the SDK's clients along.
    from mcptasks.tracker.tracker import Tracker  # noqa: PLC0415

    async with Tracker(servers or None) as tracker:
        task = await tracker.submit(server, tool, arguments, key=key, owner=owner, notify=notify)
        return await tracker.wait(task.task_id) if wait else task


@app.command()
def ps(
    status: Annotated[list[TrackStatus] | None, typer.Option(help="Only these; may be repeated.")] = None,
    server: Annotated[str, typer.Option(help="Only of this server.")] = "",
    owner: Annotated[str, typer.Option(help="Only of this owner.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many, the newest first.")] = 50,
    cursor: Annotated[str, typer.Option(help="Those behind this place, which the page before told.")] = "",
    as_json: Json = False,
) -> None:
    """List tracked tasks, newest first."""
    page = _with(
        lambda tracked: tracked.list(
            owner=owner or None,
            server=server or None,
            statuses=status or tuple(TrackStatus),
            limit=limit,
            cursor=cursor or None,
        )
    )
    if as_json:
        typer.echo(json.dumps({"tasks": [_listed(task) for task in page.tasks], "cursor": page.cursor}))
        return
    table = Table("id", "server", "tool", "status", "since", "polls", "", box=None, header_style="bold")
    for task in page.tasks:
        since = iso(task.updated_ms)
        row = (task.task_id[:10], task.server, task.tool, _status(task), since, str(task.polls), _note(task))
        table.add_row(*map(escape, row))
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    if page.cursor:
        console.print(f"more: --cursor {escape(page.cursor)}")


@app.command()
def show(task: Task, as_json: Json = False) -> None:
    """Show a tracked task: its questions, its result, what is wrong with its server."""
    _print(_with(lambda tracked: tracked.get(task)), as_json)


@app.command()
def answer(
    task: Task,
    key: Annotated[str, typer.Argument(help="The question's key.")],
    content: Annotated[str, typer.Argument(help="What is asked for, a JSON object: '{\"ok\": true}'.")] = "",
    decline: Annotated[bool, typer.Option("--decline", help="Answer with a no.")] = False,
    dismiss: Annotated[bool, typer.Option("--dismiss", help="Answer as one who walks away (action: cancel).")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="CONTENT is the whole answer in the wire form.")] = False,
) -> None:
    """Answer a question of a tracked task. The workers deliver it."""
    if sum([bool(content), decline, dismiss]) != 1:
        raise ConfigurationError("give CONTENT, --decline or --dismiss, and one of them only")
    if decline or dismiss:
        given: dict[str, Any] = {"action": "decline" if decline else "cancel"}
    else:
        said = _object(content, "CONTENT")
        given = said if raw else {"action": "accept", "content": said}
    _with(lambda tracked: tracked.answer(task, {key: given}))
    typer.echo("stored; the fleet delivers it")


@app.command()
def cancel(
    task: Task, reason: Annotated[str, typer.Option(help="Kept with the task.")] = "Cancelled by an operator"
) -> None:
    """Cancel a tracked task on its server. The workers deliver it."""
    done = _with(lambda tracked: tracked.cancel(task, reason))
    match done.outcome:
        case "FINISHED":
            typer.echo(f"it has ended already: {done.status}")
        case "CANCELLED":
            typer.echo("cancelled; its server was not told, because there is no handle")
        case _ if done.trackers:
            typer.echo("recorded; the fleet delivers it")
        case _:
            typer.echo("recorded, no active tracker: it is delivered once a worker of a tracker's app runs")


@app.command()
def dead(as_json: Json = False) -> None:
    """List the events that their consumers did not take, newest first."""
    letters = _with(lambda tracked: tracked.dead())
    if as_json:
        typer.echo(json.dumps([_letter(letter) for letter in letters]))
        return
    table = Table("task", "consumer", "event", "since", "attempts", "why", box=None, header_style="bold")
    for one in letters:
        row = (one.event.task_id[:10], one.consumer, str(one.event.kind), iso(one.at_ms), str(one.attempts), one.why)
        table.add_row(*map(escape, row))
    Console(soft_wrap=True, highlight=False).print(table)


@app.command()
def replay(
    task: Annotated[str, typer.Argument(help="The task's id, or the beginning of it.")] = "",
    consumer: Annotated[str, typer.Option(help="Only to this one; else to all that did not take it.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Of every task, instead of one.")] = False,
) -> None:
    """Deliver dead letters again, a task's or all."""
    if bool(task) == everything:
        raise ConfigurationError("give TASK or --all, and one of them only")
    if everything:
        count = _with(lambda tracked: tracked.replay_all(consumer or None))
    else:
        count = _with(lambda tracked: tracked.replay(task, consumer or None))
    if not count:
        raise NoDeadLetter("There is no such dead letter; `mcptasks track dead` lists them.")
    typer.echo(f"{count} {'is' if count == 1 else 'are'} being delivered again")


def _with(work: Callable[[TrackedTasks], Awaitable[T]]) -> T:
    async def run() -> T:
        async with TrackedTasks() as tracked:
            return await work(tracked)

    return asyncio.run(run())


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(text)
    except ValueError as exc:
        raise ConfigurationError(f"{what} is not JSON: {exc}") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{what} must be a JSON object")
    return cast("dict[str, Any]", found)


def _print(task: Tracked, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_shown(task)))
        return
    table = Table(show_header=False, box=None)
    for name, value in _shown(task).items():
        if value not in (None, "", [], {}, False):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            table.add_row(f"[bold]{name}[/]", escape(text))
    Console(soft_wrap=True, highlight=False).print(table)


def _listed(task: Tracked) -> dict[str, Any]:
    """What a list has: no result, no questions."""
    return {
        "task_id": task.task_id,
        "server": task.server,
        "tool": task.tool,
        "owner": task.owner,
        "status": str(task.status),
        "reason": None if task.reason is None else str(task.reason),
        "message": task.message,
        "created": iso(task.created_ms),
        "updated": iso(task.updated_ms),
        "polls": task.polls,
        "failures": task.failures,
        "degraded": task.degraded,
        "last_error": task.last_error,
        "cancel_requested": task.cancel_requested,
        "consumers": list(task.consumers),
        "truncated": task.truncated,
    }


def _shown(task: Tracked) -> dict[str, Any]:
    more = {
        "cancel_delivered": task.cancel_delivered,
        "questions": dict(task.questions),
        "answers_to_deliver": list(task.answered),
        "result": task.result,
        "error": task.error,
    }
    return _listed(task) | more


def _letter(letter: DeadLetter) -> dict[str, Any]:
    return {**letter.event.as_json(), **{k: v for k, v in asdict(letter).items() if k != "event"}}


def _status(task: Tracked) -> str:
    return f"{task.status} (degraded)" if task.degraded else str(task.status)


def _note(task: Tracked) -> str:
    if task.status.terminal:
        return task.message or ""
    return task.last_error or task.message or ""
