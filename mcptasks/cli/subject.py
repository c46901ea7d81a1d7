"""What `mcptasks doctor` examines: the installed packages, the environment's settings, and the server of TARGET."""

from __future__ import annotations

import platform
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, version
from typing import cast

from packaging.requirements import Requirement

from mcptasks import seams
from mcptasks.cli.checks import Package
from mcptasks.cli.fleet_checks import DurableTool
from mcptasks.cli.target import celery_target, load_server, load_target
from mcptasks.fleet.app import App
from mcptasks.model import Undeclared
from mcptasks.policy import Mode, Policy, policy_of
from mcptasks.settings import Settings
from mcptasks.store.connection import UNREADABLE, address
from mcptasks.tasks import Tasks


@dataclass(frozen=True, slots=True)
class Subject:
    """The server that TARGET names."""

    target: str
    settings: Settings
    app: App
    tools: list[DurableTool]


def load_subject(target: str, settings: Settings) -> Subject:
    """The server is imported. Its settings are those of its `Tasks`, else the given ones.

    Raises:
        ConfigurationError: TARGET names no MCP server, or one without a Celery app.
    """
    # What a user's module prints must not get between the lines of --json.
    with redirect_stdout(sys.stderr):
        mcp = load_server(target)
        celery = celery_target(target)
        app = cast("App", load_target(celery))
    # A server may make its settings itself; they are found where the module keeps its Tasks, as every example does.
    names = vars(sys.modules[celery.partition(":")[0]]).values()
    theirs = next((value.config for value in names if isinstance(value, Tasks) and value.app is app), settings)
    policies = [(tool.name, policy_of(tool.fn)) for tool in seams.tools(mcp)]
    tools = [_durable(name, policy, theirs) for name, policy in policies if policy is not None]
    return Subject(target, theirs, app, tools)


def _durable(name: str, policy: Policy, settings: Settings) -> DurableTool:
    # Who must declare the extension, or gets no task at all, is answered in one round.
    waits = policy.mode not in (Mode.FORBIDDEN, Mode.REQUIRED)
    return DurableTool(
        name=name,
        queue=policy.queue or settings.queue,
        hard_limit_ms=policy.hard_limit_ms,
        unlimited=policy.unlimited,
        in_rounds=policy.prelude > 0 or (waits and (policy.undeclared or settings.undeclared) is Undeclared.WAIT),
    )


def installed() -> list[Package]:
    """Python and every package that this library requires, as they are installed here."""
    try:
        ours = metadata("mcptasks")
    except PackageNotFoundError:  # run from a source tree: nothing says what it needs
        return [Package("mcptasks", "", "")]
    needs = [Requirement(text) for text in ours.get_all("Requires-Dist") or ()]
    python = Package("Python", platform.python_version(), ours["Requires-Python"])
    return [python, *(_package(need) for need in needs if need.marker is None or need.marker.evaluate({"extra": ""}))]


def _package(need: Requirement) -> Package:
    try:
        return Package(need.name, version(need.name), str(need.specifier))
    except PackageNotFoundError:
        return Package(need.name, "", str(need.specifier))


def unreadable_urls(settings: Settings) -> list[str]:
    """What is wrong with the URLs of store and broker, without showing any part of them."""
    urls = {"MCPTASKS_REDIS_URL": [settings.redis_url], "MCPTASKS_BROKER_URL": settings.broker_url.split(";")}
    wrong = [name for name, parts in urls.items() if any(address(part) == UNREADABLE for part in parts)]
    return [f"{name} cannot be read as a URL (percent-encode what is special in its password)" for name in wrong]
