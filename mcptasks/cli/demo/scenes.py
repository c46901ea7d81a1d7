"""The five scenes. Each shows one promise of durable tasks and fails unless it was really kept."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from mcptasks.cli.demo.screen import Outcome
from mcptasks.cli.demo.stage import Stage, check, client, sources
from mcptasks.client import TaskCancelled, TaskHandle
from mcptasks.model import Reason, Record, Status, label

#: JSON-RPC's "invalid params", the code of a refused call.
_REFUSED: Final = -32602


class Scene(NamedTuple):
    """One part of the tour."""

    name: str
    why: str
    play: Callable[[Stage], Awaitable[Outcome]]


# ------------------------------------------------------------------------------------------------ 1


async def long_job(stage: Stage) -> Outcome:
    """A job of seconds is watched to its end, and its result is right."""
    began = time.monotonic()
    task = await stage.start("index_files", stage.long_job())
    reports = await stage.screen.follow(task)
    index = await stage.result(task)
    taken = time.monotonic() - began
    files = list(sources().rglob("*.py"))
    size = sum(file.stat().st_size for file in files)
    check((index["files"], index["bytes"]) == (len(files), size), "the job counted what the tour counted itself")
    check(reports > 2, "the client saw progress on the way")
    stage.digest = index["digest"]
    counted = f"{len(files)} files, {size / 1e6:.1f} MB"
    stage.screen.proof(f"{counted}, as the tour counts them itself; progress seen {reports} times")
    return Outcome(label(task.task_id), "completed", taken, f"{len(files)} files, as the tour counts")


# ------------------------------------------------------------------------------------------------ 2


async def approval(stage: Stage) -> Outcome:
    """A task waits for a person, holding no worker, and then does what was approved."""
    began = time.monotonic()
    live = stage.folder / "mcptasks-samples" / "live" / "VERSION"
    task = await stage.start("deploy_release", {"version": "1.4.0"})
    key, question = await stage.question(task)
    stage.screen.line("task", f"status input_required; it asks:\n{question}")
    await stage.idle()
    record = await stage.record(task)
    check(record.status is Status.PARKED and record.worker is None, "the task waits and no worker holds it")
    check(not live.exists(), "nothing was deployed before the answer")
    stage.screen.line("fleet", "jobs on both workers: 0. The task could wait like this for days.")
    stage.screen.line("person", "approve: yes  (the tour answers)")
    answered = time.monotonic()
    await task.update({key: _approve()})
    release = await stage.result(task)
    ended = time.monotonic()
    check(release["deployed"] and live.read_text() == "1.4.0\n", "release 1.4.0 is live")
    later = f"{ended - answered:.1f} s"
    stage.screen.proof(f"no file was live before the answer, release 1.4.0 was {later} after it")
    return Outcome(label(task.task_id), "asked, completed", ended - began, "held no worker, live after yes")


# ------------------------------------------------------------------------------------------------ 3


async def cancel(stage: Stage) -> Outcome:
    """A job is cancelled in the middle of its work and stops."""
    began = time.monotonic()
    task = await stage.start("index_files", stage.long_job(times=2))
    await stage.screen.follow(task, until=10)
    stage.screen.line("client", "cancel")
    asked = time.monotonic()
    await task.cancel()
    state = await task.wait(60)
    taken = time.monotonic() - asked
    check(state.status == "cancelled", "the task ended as cancelled")
    check((await stage.record(task)).reason is Reason.CANCELLED, "the tool stopped by itself when it was told to")
    check(await _raises_cancelled(task), "the caller gets no result")
    await stage.idle()
    stage.screen.proof(f"cancelled {taken:.2f} s after the request; jobs on both workers: 0")
    ended = time.monotonic() - began
    return Outcome(label(task.task_id), "cancelled", ended, f"{taken:.2f} s after the request, 0 jobs")


async def _raises_cancelled(task: TaskHandle) -> bool:
    try:
        await task.result(60)
    except TaskCancelled:
        return True
    return False


# ------------------------------------------------------------------------------------------------ 4


async def same_call(stage: Stage) -> Outcome:
    """A call that is sent again is the same task: the goods are charged once, however often it is sent."""
    began = time.monotonic()
    order, key = {"items": [{"article": "paper", "quantity": 2}]}, "order-4711"
    task = await stage.start("order_supplies", order, key=key)
    ask, question = await stage.question(task)
    stage.screen.line("task", f"asks: {question}")
    stage.screen.line("", "Suppose the client lost that answer. It connects anew and calls again:")
    async with client(stage.url) as other:
        again = await stage.start("order_supplies", order, key=key, connection=other)
    check(again.task_id == task.task_id, "the second call gave the first one's task")
    stage.screen.line("person", "approve: yes")
    await task.update({ask: _approve()})
    result = await stage.result(task)
    runs = (await stage.record(task)).token
    stage.screen.line("", "And once more, when all is done and paid:")
    late = await stage.start("order_supplies", order, key=key)
    check(late.task_id == task.task_id and await stage.result(late) == result, "a third call gave the same result")
    check((await stage.record(task)).token == runs, "nothing ran again")
    stage.screen.line("", "And by mistake for something else, under the same key:")
    await _refused(stage, {"items": [{"article": "paper", "quantity": 9}]}, key)
    steps = [json.loads(line)["step"] for line in _ledger(stage)]
    check(steps == ["reserve", "charge"], "the ledger has one reservation and one charge")
    stage.screen.proof("three calls, one task; the shop's ledger: 1 reservation, 1 charge")
    return Outcome(label(task.task_id), "completed", time.monotonic() - began, "3 calls, 1 charge in the ledger")


async def _refused(stage: Stage, other: dict[str, Any], key: str) -> None:
    try:
        await stage.start("order_supplies", other, key=key)
    except Exception as exc:
        # The SDK's error, whose class the command line does not know: its code tells it from anything else.
        if getattr(exc, "code", None) != _REFUSED:
            raise
        stage.screen.line("server", f"refused ({_REFUSED}): {exc}", "yellow")
    else:
        check(False, "other arguments under the same key are refused")


def _ledger(stage: Stage) -> list[str]:
    return (stage.folder / "ledger.jsonl").read_text().splitlines()


# ------------------------------------------------------------------------------------------------ 5


async def killed_worker(stage: Stage) -> Outcome:
    """A worker dies in the middle of a job; another one does the job, with the same result."""
    began = time.monotonic()
    task = await stage.start("index_files", stage.long_job())
    await stage.screen.follow(task, until=35)
    victim = _name((await stage.record(task)).worker)
    worker = stage.fleet.workers[victim]
    worker.kill()
    killed = time.monotonic()
    check(worker.ended.wait(10) and worker.returncode == -signal.SIGKILL, f"{victim} is dead")
    stage.screen.line("tour", f"kill -9 of {victim} (pid {worker.pid}), which runs it", "bold red")
    with stage.screen.waiting("its lease must run out before another worker may take the task ..."):
        second = await stage.until(lambda: _second_run(stage, task), "another worker takes over")
    heir = _name(second.worker)
    check(heir != victim, "the second run is on another worker")
    gap = f"{time.monotonic() - killed:.1f} s"
    stage.screen.line("fleet", f"{heir} took over after {gap}, when the lease had run out; attempt 2, from the start.")
    stage.screen.line("", "What a client sees of the progress never runs backwards:")
    await stage.screen.follow(task)
    index = await stage.result(task)
    check(index["digest"] == stage.digest, "the digest is that of the undisturbed job")
    check((await stage.record(task)).attempt == 2, "the task took two attempts")
    stage.screen.proof(f"completed on {heir}; digest {index['digest'][:10]}... is that of scene 1")
    ended = time.monotonic() - began
    return Outcome(label(task.task_id), "completed", ended, f"{heir}, attempt 2, same digest")


async def _second_run(stage: Stage, task: TaskHandle) -> Record | None:
    record = await stage.record(task)
    return record if record.attempt == 2 and record.worker is not None else None


# ------------------------------------------------------------------------------------------------ parts


def _name(worker: str | None) -> str:
    """The child's name of a worker as the store knows it: "worker1@host:pid"."""
    check(worker is not None, "a worker runs the task")
    return (worker or "").partition("@")[0]


def _approve() -> dict[str, Any]:
    return {"action": "accept", "content": {"approve": True}}


SCENES: Final = (
    Scene(
        "A long job", "The call returns at once with a task. A worker does the job while the client watches.", long_job
    ),
    Scene("An approval", "A task may ask a person. While it waits it holds no worker and no connection.", approval),
    Scene("A cancel", "A job that nobody wants any more stops now, not when it is done.", cancel),
    Scene(
        "The same call again", "With an idempotency key a repeated call is the same task: no double charge.", same_call
    ),
    Scene(
        "A killed worker", "A job outlives its worker: another one takes it over, with the same result.", killed_worker
    ),
)
