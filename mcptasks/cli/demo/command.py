"""`mcptasks demo`: five scenes on a fleet of its own, and nothing left of it afterwards."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
import traceback
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

import anyio
import typer

from mcptasks.cli.demo.scenes import SCENES
from mcptasks.cli.demo.screen import Outcome, Screen
from mcptasks.cli.demo.stage import Stage, client
from mcptasks.cli.fleet_processes import HOST, DevFleet, on_store
from mcptasks.cli.interrupts import interrupt_on_termination
from mcptasks.cli.serve import bound
from mcptasks.cli.target import load_target
from mcptasks.errors import ConfigurationError, MCPTasksError
from mcptasks.settings import Settings
from mcptasks.store.store import TaskStore

TARGET: Final = "workers.server:mcp"
#: A module that no other project's package called workers has.
SAMPLE: Final = "workers.tools.supplies:order_supplies"
WORKERS: Final = 2
CONCURRENCY: Final = 4
#: A scene that takes longer will not come out any more.
SCENE_S: Final = 120.0

#: So that nobody has to wait long for the lease of a dead worker.
SHORTENED: Final = {"lease_ms": 3_000, "renew_ms": 1_000, "sweep_ms": 500, "poll_ms": 200}


class TourFailed(MCPTasksError):
    """A scene did not come out; the message says which, why, and where the processes' own words are."""


def demo() -> None:
    """A tour of durable tasks in five scenes, about a minute long. It needs no service and leaves nothing behind."""
    _require_samples()
    began = time.monotonic()
    screen = Screen()
    screen.title()
    with interrupt_on_termination(), ExitStack() as stack:
        try:
            log = stack.enter_context(_log())
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mcptasks-demo-")))
            url, fleet = _start(stack, folder, log, screen)
            _perform(url, fleet, folder, log, screen)
        except KeyboardInterrupt:
            typer.echo("mcptasks demo: stopping", err=True)
            raise
    screen.line("tour", f"{time.monotonic() - began:.0f} s. Everything it started is stopped, all its data is removed.")
    screen.line("next", f"mcptasks dev {TARGET}, then connect any MCP client to it; README.md says more.")


def _require_samples() -> None:
    try:
        load_target(SAMPLE)
    except ConfigurationError as error:
        raise ConfigurationError(
            "The demo runs the sample tools of mcptasks' repository, which the installed package does not have. "
            f"Clone the repository and run `make demo` in it. ({error})"
        ) from error


@contextmanager
def _log() -> Generator[IO[str]]:
    """A file for what the processes say, this one's log included. It stays if the block fails, for somebody to read."""
    with tempfile.NamedTemporaryFile("w", prefix="mcptasks-demo-", suffix=".log", delete=False) as log:
        keep = False
        handler = logging.StreamHandler(log)
        # Before an MCPServer is made: the SDK sets up logging to our stderr unless somebody else has set it up.
        logging.root.addHandler(handler)
        try:
            yield log
        except Exception:
            keep = True
            raise
        finally:
            logging.root.removeHandler(handler)
            if not keep:
                os.unlink(log.name)


def _own_environment(folder: Path) -> None:
    """This process and its children know the tour's settings instead of the user's, and write into the folder."""
    for name in [name for name in os.environ if name.upper().startswith("MCPTASKS_")]:
        del os.environ[name]
    os.environ.update({f"MCPTASKS_{name.upper()}": str(value) for name, value in SHORTENED.items()})
    os.environ["MCPTASKS_SAMPLES_LEDGER"] = str(folder / "ledger.jsonl")
    os.environ["TMPDIR"] = str(folder)
    # A proxy to the outer world does not know the way from this machine to itself.
    os.environ.update({"NO_PROXY": "*", "no_proxy": "*"})


def _start(stack: ExitStack, folder: Path, log: IO[str], screen: Screen) -> tuple[str, DevFleet]:
    """Store, workers and server run until the stack is left; returns the server's URL."""
    began = time.monotonic()
    _own_environment(folder)
    with screen.waiting("Starting Valkey, two workers and the MCP server ..."):
        children = on_store(stack, folder, TARGET, log)
        listener = bound(HOST, 0)
        stack.callback(listener.close)
        fleet = DevFleet(children, TARGET, WORKERS)
        fleet.start_workers(pool="threads", concurrency=CONCURRENCY)
        url = fleet.start_server(listener)
        fleet.await_ready(url)
    screen.line("fleet", f"Valkey, {WORKERS} Celery workers and the MCP server {url} run ({_since(began)})")
    defaults = {name: Settings.model_fields[name].default for name in SHORTENED}
    shown = ", ".join(
        f"MCPTASKS_{name.upper()}={value} (default {defaults[name]})" for name, value in SHORTENED.items()
    )
    screen.line("settings", f"shortened for the tour: {shown}")
    return url, fleet


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"


def _perform(url: str, fleet: DevFleet, folder: Path, log: IO[str], screen: Screen) -> None:
    try:
        asyncio.run(_tour(url, fleet, folder, screen))
    except Exception as exc:
        traceback.print_exc(file=log)
        why = str(exc) or type(exc).__name__
        raise TourFailed(f"{screen.scene!r} did not come out: {why}. What the processes said is in {log.name}") from exc


async def _tour(url: str, fleet: DevFleet, folder: Path, screen: Screen) -> None:
    store = TaskStore(Settings.load())
    outcomes: list[tuple[str, Outcome]] = []
    try:
        async with client(url) as connection:
            stage = Stage(url, connection, store, fleet, screen, folder)
            with screen.waiting("Seeing how fast this machine is ..."):
                await stage.measure()
            for number, scene in enumerate(SCENES, start=1):
                screen.heading(number, scene.name, scene.why)
                with anyio.fail_after(SCENE_S):
                    outcomes.append((scene.name, await scene.play(stage)))
    finally:
        await store.aclose()
    screen.table(outcomes)
