"""How long a job stands still after a `kill -9` of its worker: `python -m benchmarks.recovery` (`make bench-recovery`).

Two workers with default settings, a long job on one of them, the whole process tree of that worker killed at a random
offset within the lease; measured from the kill until the job's body begins again on the other. Beside it, in the same
way and on the same Valkey, bare Celery. Both systems are measured at the same time, because both mostly wait.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import late_celery, recovery_report
from benchmarks.crew import Crew, Kill, crew
from benchmarks.driver import Client, WrongAnswer
from benchmarks.services import ROOT
from benchmarks.systems import CELERY, MCPTASKS, OURS, TARGET, our_server, store_info, valkey
from mcptasks.settings import Settings

OUT: Final = ROOT / "benchmarks" / "out"

#: On top of what a system needs by its own settings, before the run is given up.
_SLACK_S: Final = 60.0

#: Takes what happened last, and how many kills are done with it.
Tell = Callable[[str, int], None]


def main(
    kills: Annotated[int, typer.Option(min=1, help="How often one of our workers is killed.")] = 10,
    celery_kills: Annotated[int, typer.Option(min=1, help="How often one of bare Celery's: a minute or two each.")] = 5,
    visibility: Annotated[int, typer.Option(min=20, help="Bare Celery's visibility timeout, in seconds.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON document instead of a table.")] = False,
) -> None:
    """Measure how long a killed worker's job stands still; exit 1 if our median is over 20 s."""
    for name in [name for name in os.environ if name.startswith("MCPTASKS_")]:
        del os.environ[name]  # the defaults are what is measured
    screen = Console(stderr=True)
    started, load = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"), os.getloadavg()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit runs the context managers that stop the workers
    logs = OUT / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    try:
        version, measured = _measure(kills, celery_kills, visibility, logs, screen)
    except (RuntimeError, TimeoutError, OSError, WrongAnswer, ExceptionGroup) as exc:
        screen.print(f"[red]The measurement could not finish.[/] Logs: {logs}", soft_wrap=True)
        for each in exc.exceptions if isinstance(exc, ExceptionGroup) else [exc]:
            screen.print(f"{type(each).__name__}: {each}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from exc
    run = recovery_report.document(measured, Settings(), visibility, version, started, load)
    text = json.dumps(run, indent=2) + "\n"
    (OUT / "recovery.json").write_text(text)
    if as_json:
        print(text, end="")
    else:
        Console().print(recovery_report.tables(run))
        screen.print(f"Written to {OUT / 'recovery.json'}", soft_wrap=True)
    if not run["goal"]["met"]:
        raise typer.Exit(1)


def _measure(
    kills: int, celery_kills: int, visibility_s: int, logs: Path, screen: Console
) -> tuple[str, dict[str, list[Kill]]]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen, transient=True) as progress, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mcptasks-recovery-")))
        bars = {OURS: progress.add_task("ours: starting", total=kills)}
        bars[CELERY] = progress.add_task("celery: starting", total=celery_kills)
        store = stack.enter_context(valkey())
        lanes = [
            stack.enter_context(_our_lane(f"{store}/1", logs)),
            stack.enter_context(_celery_lane(f"{store}/2", visibility_s, logs)),
        ]

        def tell(name: str) -> Tell:
            return lambda what, done: progress.update(bars[name], description=f"{name}: {what}", completed=done)

        async def both() -> dict[str, list[Kill]]:
            async with asyncio.TaskGroup() as group:
                running = {
                    lane.name: group.create_task(_run(lane, folder / lane.name, count, tell(lane.name)))
                    for lane, count in zip(lanes, (kills, celery_kills), strict=True)
                }
            return {name: task.result() for name, task in running.items()}

        return str(store_info(store)["valkey_version"]), asyncio.run(both())


@dataclass(frozen=True)
class Lane:
    """One system, ready: its workers, and how it is given a job."""

    name: str
    crew: Crew
    #: Gives it the job with that folder; leaving the block waits until the job has ended well, where that can be asked.
    job: Callable[[str], AbstractAsyncContextManager[None]]
    #: After that long without a word its own settings give a job up ...
    silence_s: float
    #: ... at the next look, and it looks this often.
    look_s: float


@contextmanager
def _our_lane(store: str, logs: Path) -> Generator[Lane]:
    env, settings = {"MCPTASKS_REDIS_URL": store}, Settings()

    def command(name: str) -> Sequence[str]:
        return [*MCPTASKS, "worker", TARGET, "--name", name]

    with our_server(env, logs) as (_, port), crew(OURS, command, env, logs) as workers:

        @asynccontextmanager
        async def job(folder: str) -> AsyncGenerator[None]:
            client = await Client.open(port)
            handle = await client.create("long_job", {"folder": folder})
            yield
            await client.until(handle["taskId"], "completed")
            client.close()

        yield Lane(OURS, workers, job, settings.lease_ms / 1000, settings.sweep_ms / 1000)


@contextmanager
def _celery_lane(store: str, visibility_s: int, logs: Path) -> Generator[Lane]:
    app = late_celery.late_app(store, visibility_s)
    env = {late_celery.BROKER: store, late_celery.VISIBILITY: str(visibility_s)}

    @asynccontextmanager
    async def job(folder: str) -> AsyncGenerator[None]:
        await asyncio.to_thread(app.send_task, late_celery.TASK_NAME, kwargs={"folder": folder})
        yield

    with crew(CELERY, late_celery.worker_command, env, logs) as workers:
        yield Lane(CELERY, workers, job, visibility_s, late_celery.SWEEP_S)


async def _run(lane: Lane, folder: Path, kills: int, tell: Tell) -> list[Kill]:
    done: list[Kill] = []
    # When the job begins says how far off the survivor's next look is, whose rhythm began when that worker did.
    for after_s, phase_s in zip(_spread(Settings().lease_ms / 1000, kills), _spread(lane.look_s, kills), strict=True):
        tell(f"the next job begins in {phase_s:.1f} s", len(done))
        await asyncio.sleep(phase_s)
        tell(f"a job runs, its worker is killed after {after_s:.1f} s", len(done))
        job = folder / str(len(done))
        job.mkdir(parents=True)
        async with lane.job(str(job)):
            done.append(await lane.crew.kill_one(job, after_s, lane.silence_s + lane.look_s + _SLACK_S))
        tell(f"began again after {done[-1].took_s:.1f} s", len(done))
    return done


def _spread(whole_s: float, count: int) -> list[float]:
    """That many moments all over the time, random within each part, in random order."""
    part_s = whole_s / count
    return random.sample([(number + random.random()) * part_s for number in range(count)], count)


if __name__ == "__main__":
    typer.run(main)
