"""`mcptasks answer ID`: gives a task what it waits for, in the place of its caller."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, cast

import typer
from rich.console import Console
from rich.text import Text

from mcptasks.cli.form import fill
from mcptasks.cli.operating import TaskId, console, on_fleet
from mcptasks.errors import BadAnswer
from mcptasks.forms import NotThat, fields_of, value_of
from mcptasks.model import Record, label
from mcptasks.shown import plain, plain_lines

_ELICITATION: Final = "elicitation/create"


def answer(
    task: TaskId,
    key: Annotated[str | None, typer.Argument(help="Which question; needed where several are open.")] = None,
    accept: Annotated[
        list[str] | None, typer.Option("--accept", metavar="FIELD=VALUE", help="Accept, with this field; repeatable.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="TEXT", help='The whole answer: {"action": "accept", "content": {...}}; - reads it.'
        ),
    ] = None,
    decline: Annotated[bool, typer.Option("--decline", help="Say no.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Say neither yes nor no. The task itself goes on.")] = False,
) -> None:
    """Answer a question that a task asks: by options, or in a terminal by a form.

    The answer is checked like one of the task's own caller, and the first valid one counts.
    """
    if sum((bool(accept), text is not None, decline, cancel)) > 1:
        raise typer.BadParameter("--accept, --json, --decline and --cancel exclude each other")
    record = on_fleet(lambda fleet: fleet.read(task))
    keys = _wanted(record, key)
    if not (accept or text is not None or decline or cancel):
        answers = _by_form({one: record.questions[one] for one in keys}, console())
    elif len(keys) > 1:
        raise typer.BadParameter(f"{len(keys)} questions are open; name one of them: {_named(keys)}")
    else:
        question = record.questions[keys[0]]
        answers = {keys[0]: _by_options(question, accept, text, "decline" if decline else "cancel")}
    moves_on = on_fleet(lambda fleet: fleet.answer(record.task_id, answers))
    typer.echo(f"answered; task {label(record.task_id)} {'moves on' if moves_on else 'has other open questions'}")


def _wanted(record: Record, key: str | None) -> list[str]:
    open_ones = sorted(record.questions)  # the store keeps them in no order
    if not open_ones:
        raise BadAnswer(f"Task {label(record.task_id)!r} asks nothing: it is {record.status}.")
    if key is None:
        return open_ones
    if key not in open_ones:
        raise BadAnswer(f"{plain(key, 80)!r} is no open question of the task; open are {_named(open_ones)}.")
    return [key]


def _named(keys: Sequence[str]) -> str:
    return ", ".join(plain(key, 80) for key in keys)


def _by_options(question: Mapping[str, Any], accept: list[str] | None, text: str | None, action: str) -> Any:
    if text is not None:
        try:
            return json.loads(sys.stdin.read() if text == "-" else text)
        except (ValueError, RecursionError) as exc:
            raise typer.BadParameter(f"--json is no JSON: {exc}") from None
    if not accept:
        return {"action": action}
    fields, content = fields_of(question["params"].get("requestedSchema") or {}), dict[str, Any]()
    for pair in accept:
        name, equals, value = pair.partition("=")
        if not equals or name not in fields:
            raise typer.BadParameter(f"--accept {plain(pair, 80)}: its fields are {_named(list(fields)) or 'none'}")
        try:
            content[name] = value_of(value, fields[name])
        except NotThat as exc:
            raise typer.BadParameter(f"--accept {plain(name, 80)}: {exc}") from None
    return {"action": "accept", "content": content}


# ------------------------------------------------------------------------------------------------ the form


def _by_form(questions: Mapping[str, Any], screen: Console) -> dict[str, Any]:
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask in; give --accept, --json, --decline or --cancel")
    try:
        return {key: _asked(key, question, screen) for key, question in questions.items()}
    except (EOFError, KeyboardInterrupt):
        screen.print("\nnothing was answered", style="yellow")
        raise typer.Exit(1) from None


def _asked(key: str, question: Mapping[str, Any], screen: Console) -> dict[str, Any]:
    params = cast("dict[str, Any]", question["params"])
    if question["method"] != _ELICITATION:
        raise BadAnswer(f"{plain(key, 80)!r} is a {question['method']}, which no form is for; answer it with --json.")
    for line in plain_lines(str(params.get("message", ""))):
        screen.print(Text(line, "bold cyan"))
    if "url" in params:
        screen.print(Text(f"to be settled at {plain(str(params['url']), 2_000)}"))
    action = _choice("[bold]a[/]ccept, [bold]d[/]ecline or [bold]c[/]ancel?", ("accept", "decline", "cancel"), screen)
    schema = params.get("requestedSchema")
    if action != "accept" or schema is None:
        return {"action": action}
    while True:
        content = fill(schema, screen)
        if _choice("[bold]s[/]end it, or fill it in [bold]a[/]gain?", ("send", "again"), screen) == "send":
            return {"action": action, "content": content}


def _choice(question: str, words: Sequence[str], screen: Console) -> str:
    """One of the words, of which people may type the first letter."""
    while True:
        text = screen.input(f"{question} ").strip().lower()
        for word in words:
            if text in (word, word[0]):
                return word
