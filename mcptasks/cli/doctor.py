"""`mcptasks doctor`: looks at everything a fleet stands on, and says what is wrong and what to do about it.

Here is the looking and the showing; the verdicts are in `checks.py` and `fleet_checks.py`.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from itertools import groupby
from typing import Annotated, Final, TypeVar

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcptasks.cli import artifact_check, checks, fleet_checks
from mcptasks.cli.operating import print_json
from mcptasks.cli.shared_store import running_on
from mcptasks.cli.subject import Subject, installed, load_subject, unreadable_urls
from mcptasks.cli.verdict import Check, Status, exit_code, printable
from mcptasks.fleet import health
from mcptasks.settings import Settings, problems
from mcptasks.store.connection import address
from mcptasks.store.probe import Backlog, Facts, Trouble, look

T = TypeVar("T")

#: For all that is asked of others together. Each question has a shorter limit of its own; this one is for what cannot
#: have any, such as a name lookup.
PATIENCE_S: Final = 3.0

SHOWN_VERSIONS: Final = ("Python", "mcp", "celery", "redis")
SERVER_CHECKS: Final = ("persistence", "eviction", "memory", "expiry")
BACKLOG_CHECKS: Final = ("encryption", "admission", "outbox", "overdue", "sweeper", "stuck")
STORE_CHECKS: Final = (*SERVER_CHECKS, "clock", *BACKLOG_CHECKS)
APP_CHECKS: Final = ("profile", "workers", "queues", "pool", "limits", "rounds")

STYLES: Final = {Status.OK: "green", Status.WARN: "bold yellow", Status.FAIL: "bold red", Status.SKIPPED: "dim"}


def doctor(
    target: Annotated[
        str | None, typer.Argument(help="The MCP server, as module:attribute; without it no worker is asked.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="A list of {check, status, found, advice} instead of a table.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="A warning is a failure, too.")] = False,
) -> None:
    """Check store, broker, workers, clocks, versions and limits, and say what to do. Changes nothing."""
    if "MCPTASKS_REDIS_URL" not in os.environ and (url := running_on()):
        # As every other command does. In the environment, because the server that is imported makes its own settings.
        os.environ["MCPTASKS_REDIS_URL"] = url
    examination = Examination(target)
    report = examination.report()
    if as_json:
        print_json([check.as_json() for check in report])
    else:
        _show(report)
    code = exit_code(report, strict=strict)
    if examination.unfinished:
        # The interpreter would wait for the thread of a hanging name lookup.
        sys.stdout.flush()
        os._exit(code)
    raise typer.Exit(code)


class Examination:
    """One look at the installation. TARGET None: without the Celery app, so without its workers."""

    def __init__(self, target: str | None) -> None:
        self._target = target
        self._deadline = time.monotonic() + PATIENCE_S
        #: Something that was asked has not answered and holds its thread.
        self.unfinished = False

    def report(self) -> list[Check]:
        """All checks, in the order people read them.

        Raises:
            ConfigurationError: TARGET names no MCP server with durable tools.
        """
        report = [checks.versions(installed(), SHOWN_VERSIONS)]
        try:
            settings = Settings()
        except ValidationError as exc:
            return [*report, checks.bad_settings(problems(exc)), *_no_settings()]
        if unreadable := unreadable_urls(settings):
            return [*report, checks.bad_settings(unreadable), *_no_settings()]
        subject = load_subject(self._target, settings) if self._target else None
        settings = subject.settings if subject else settings
        self._deadline = time.monotonic() + PATIENCE_S
        facts = _begin(lambda: look(settings))
        place = _begin(lambda: artifact_check.look_at_artifacts(settings))
        workers = _begin(lambda: artifact_check.look_at_workers(settings))
        survey = _begin(lambda: health.survey(subject.app) if subject else health.broker_alone(settings))
        return [
            *report,
            checks.settings(settings),
            artifact_check.artifacts(
                self._answer(place, artifact_check.SILENT), self._answer(workers, {}), socket.gethostname()
            ),
            *_store_checks(self._answer(facts, Trouble.SILENT), settings, subject),
            *_fleet_checks(self._answer(survey, health.Survey(trouble="does not answer in time")), subject, settings),
        ]

    def _answer(self, future: Future[T], otherwise: T) -> T:
        try:
            return future.result(max(self._deadline - time.monotonic(), 0))
        except FutureTimeoutError:
            self.unfinished = True
            return otherwise


def _begin(work: Callable[[], T]) -> Future[T]:
    """The work runs in a daemon thread: whoever waits for it may stop waiting."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as exc:
            future.set_exception(exc)

    threading.Thread(target=run, name="mcptasks-doctor", daemon=True).start()
    return future


# ------------------------------------------------------------------------------------------------ the checks


def _skipped(names: Sequence[str], found: str, advice: str = "") -> list[Check]:
    return [Check(name, Status.SKIPPED, found, advice) for name in names]


def _no_settings() -> list[Check]:
    return _skipped(
        ("artifacts", "store", *STORE_CHECKS, "broker", *APP_CHECKS), "the settings do not say where to look"
    )


def _store_checks(facts: Facts | Trouble, settings: Settings, subject: Subject | None) -> list[Check]:
    found = [checks.store(facts, address(settings.redis_url), settings.prefix)]
    if isinstance(facts, Trouble):
        return [*found, *_skipped(STORE_CHECKS, "the store cannot be asked")]
    unlimited = [tool.name for tool in subject.tools if tool.unlimited] if subject else []
    return [
        *found,
        *_server_checks(facts, unlimited),
        checks.clock(facts),
        *_backlog_checks(facts.backlog, settings),
    ]


def _server_checks(facts: Facts, unlimited: Sequence[str]) -> list[Check]:
    if (server := facts.server) is None:
        return _skipped(SERVER_CHECKS, "this user may not ask for INFO")
    judge = (checks.persistence, checks.eviction, checks.memory)
    return [*(check(server) for check in judge), checks.expiry(server, facts.backlog, unlimited)]


def _backlog_checks(backlog: Backlog | None, settings: Settings) -> list[Check]:
    if backlog is None:
        return _skipped(BACKLOG_CHECKS, "the keys below MCPTASKS_PREFIX cannot be read")
    judge = (checks.outbox, checks.overdue, checks.sweeper)
    encryption, stuck = checks.encryption(backlog.sealing), fleet_checks.stuck(backlog.workers)
    return [encryption, checks.admission(backlog, settings.queue_max), *(check(backlog) for check in judge), stuck]


def _fleet_checks(survey: health.Survey, subject: Subject | None, settings: Settings) -> list[Check]:
    urls = health.broker_urls(subject.app) if subject else settings.broker.split(";")
    where = ", ".join(address(url) for url in urls)
    found = [fleet_checks.broker(survey, where, is_store=urls == [settings.redis_url])]
    if subject is None:
        advice = "Name the server: mcptasks doctor module:attribute (for example workers.server:mcp)."
        return [*found, *_skipped(APP_CHECKS, "needs the server's Celery app", advice)]
    return [*found, *_app_checks(survey, subject)]


def _app_checks(survey: health.Survey, subject: Subject) -> list[Check]:
    app, tools = subject.app, subject.tools
    changed = health.changed_options(app, subject.settings)
    profile = fleet_checks.profile(changed, only_json=health.runs_only_json(app))
    last = [
        fleet_checks.limits(health.redelivery(app), tools, subject.settings.countdowns_ms),
        fleet_checks.rounds(len(subject.settings.request_state_keys), tools),
    ]
    if survey.trouble:
        return [profile, *_skipped(("workers", "queues", "pool"), "the broker cannot be asked"), *last]
    workers = fleet_checks.workers(survey, subject.target)
    ours = [worker for worker in survey.workers if worker.ours]
    if not ours:
        return [profile, workers, *_skipped(("queues", "pool"), "no worker answers"), *last]
    return [profile, workers, fleet_checks.queues(ours, tools), fleet_checks.pool(ours), *last]


# ------------------------------------------------------------------------------------------------ for people


def _show(report: Sequence[Check]) -> None:
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for _, alike in groupby(report, key=_row):
        table.add_row(*_cells(list(alike)))
    console.print(table)
    console.print(_summary(report))


def _row(check: Check) -> object:
    """Checks that were skipped for one reason share a row."""
    return (check.status, check.found) if check.status is Status.SKIPPED else check.check


def _cells(alike: Sequence[Check]) -> tuple[Text, Text, Text]:
    check, dim = alike[0], "dim" if alike[0].status is Status.SKIPPED else ""
    several = len(alike) > 1
    names = f"{', '.join(one.check for one in alike)}: " if several else ""
    text = Text(f"{names}{printable(check.found)}", dim)
    if check.advice:
        text.append(f"\n-> {printable(check.advice)}", dim or "bold")
    return Text(check.status, STYLES[check.status]), Text(f"{len(alike)} checks" if several else check.check, dim), text


def _summary(report: Sequence[Check]) -> Text:
    text = Text("\n")
    for status, word in ((Status.FAIL, "failed"), (Status.WARN, "warned")):
        if names := [check.check for check in report if check.status is status]:
            text.append(f"{len(names)} {word}: {', '.join(names)}. ", STYLES[status])
    count = Counter(check.status for check in report)
    text.append(f"{count[Status.OK]} ok{f', {skipped} skipped' if (skipped := count[Status.SKIPPED]) else ''}.")
    return text
