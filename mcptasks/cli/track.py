"""`mcptasks track ...`: tasks on other people's servers, submitted, listed, shown, answered, cancelled, replayed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar, cast

import typer
from rich.markup import escape
from rich.table import Table

from mcptasks.cli.operating import Json, console, finished, fleets_settings, print_json
from mcptasks.errors import ConfigurationError, MCPTasksError
from mcptasks.settings import Settings
from mcptasks.shown import plain
from mcptasks.times import iso
from mcptasks.tracker.model import DeadLetter, Tracked, TrackStatus
from mcptasks.tracker.scope import TrackedTasks

app = typer.Typer(no_args_is_help=True, help="Tasks on other people's servers.")

T = TypeVar("T")

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
        bool,
        typer.Option("--wait", help="Come back when it has ended; 1 unless it is completed, and without a tool error."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Call a tool of a task server and track the task. The workers of a tracker's Celery app follow it."""
    given = _object(arguments, "ARGUMENTS")
    settings = fleets_settings()
    work = _submit(settings, server, tool, given, servers, key or None, owner, notify or [], wait)
    task = finished(work, settings)
    _print(task, as_json)
    if wait and (task.status is not TrackStatus.COMPLETED or (task.result or {}).get("isError")):
        raise typer.Exit(1)


async def _submit(
    settings: Settings,
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

    async with Tracker(servers or None, settings=settings) as tracker:
        task = await tracker.submit(server, tool, arguments, key=key, owner=owner, notify=notify)
        if not task.status.terminal and not await tracker.trackers():
            text = "mcptasks: no active tracker: it is polled once a worker of a tracker's app runs on this store"
            typer.echo(text, err=True)
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
        print_json({"tasks": [_listed(task) for task in page.tasks], "cursor": page.cursor})
        return
    table = Table("id", "server", "tool", "status", "since", "polls", "", box=None, header_style="bold")
    for task in page.tasks:
        since = iso(task.updated_ms)
        row = (task.task_id[:10], task.server, task.tool, _status(task), since, str(task.polls), _note(task))
        table.add_row(*map(_cell, row))
    console().print(table)
    if page.cursor:
        typer.echo(f"more: --cursor {page.cursor}")


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
        print_json([_letter(letter) for letter in letters])
        return
    table = Table("task", "consumer", "event", "since", "attempts", "why", box=None, header_style="bold")
    for one in letters:
        row = (one.event.task_id[:10], one.consumer, str(one.event.kind), iso(one.at_ms), str(one.attempts), one.why)
        table.add_row(*map(_cell, row))
    console().print(table)


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
    settings = fleets_settings()

    async def run() -> T:
        async with TrackedTasks(settings) as tracked:
            return await work(tracked)

    return finished(run(), settings)


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
        print_json(_shown(task))
        return
    told = {name: value for name, value in _shown(task).items() if value not in (None, "", [], {}, False)}
    width = max(map(len, told))
    for name, value in told.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        # On one line, however long: it is copied, and searched.
        console().print(f"[bold]{name:<{width}}[/]  {_cell(text)}", soft_wrap=True)
    for key in sorted(task.questions):
        typer.echo(f"answer it: mcptasks track answer {task.task_id[:10]} {shlex.quote(plain(key))} '{{...}}'")


def _cell(text: str) -> str:
    """As a terminal may show it: other people's servers wrote it."""
    return escape(plain(text, len(text)))


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
