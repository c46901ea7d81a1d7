"""A durable tool that waits for a task of another server: it parks meanwhile, and hands questions on to its caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from mcp.server.mcpserver import Context

from mcptasks.errors import BadAnswer, ConfigurationError
from mcptasks.model import label
from mcptasks.runtime.current import current_run
from mcptasks.runtime.sleeping import sleep
from mcptasks.runtime.steps import step
from mcptasks.tracker.model import Tracked
from mcptasks.tracker.scope import TrackedTasks

#: Between the first looks at the task, in seconds. Sleeps below a second would not be recorded.
_FIRST_S: Final = (2, 5, 10, 30)
#: Between the further ones: a twentieth of the time that it has taken, within these. Each look is a run of the tool
#: from the top, of which there is an end (MCPTASKS_REPLAYS_MAX); so a task may take weeks.
_THEN_S: Final = (60, 3_600)


async def follow(ctx: Context, tracked: TrackedTasks, task: str) -> Tracked:
    """The tracked task, once it has ended. For durable tools: while it runs, the durable task sleeps and costs nothing.

    Its questions (elicitations by form) are asked of the durable task's caller, and the answers handed on; other kinds
    are left to whoever answers them. When the durable task is cancelled, fails or expires, the tracked one is cancelled
    by the fleet's trackers within some seconds. An end is noticed after 2 s at first, later within a minute, at last
    within a twentieth of the time that it took, an hour at most.

    Raises:
        ConfigurationError: it was not called in a durable task.
        UnknownTask: there is no such tracked task any more.
    """
    run = current_run.get()
    if run is None:
        raise ConfigurationError("tracker.follow() is for durable tools; elsewhere use tracker.wait()")
    # All that is not the same in every run of the tool is a step, so that a later run goes the same way.
    task_id = await step(f"follow {label(task)}", _adopt, tracked, task, run.claim.task_id)
    for wait_s in waits_s():
        seen = await step(f"look at {label(task_id)}", _look, tracked, task_id)
        if seen["ended"]:
            break
        for key, question in sorted(seen["questions"].items()):
            said = await ctx.session.elicit_form(question["message"], question["requestedSchema"])
            answer = said.model_dump(mode="json", by_alias=True, exclude_none=True)
            await step(f"answer {label(task_id)}", _answer, tracked, task_id, key, answer)
        await sleep(f"{wait_s}s")
    return await tracked.get(task_id)


def waits_s() -> Iterator[int]:
    """The seconds between looks, in turn and without end; the same in every run of the tool."""
    yield from _FIRST_S
    taken_s = sum(_FIRST_S)
    while True:
        wait_s = min(max(taken_s // 20, _THEN_S[0]), _THEN_S[1])
        taken_s += wait_s
        yield wait_s


async def _adopt(tracked: TrackedTasks, task: str, parent: str) -> str:
    found = await tracked.get(task)
    await tracked.store.adopt(found.task_id, parent)
    return found.task_id


async def _look(tracked: TrackedTasks, task_id: str) -> dict[str, Any]:
    found = await tracked.get(task_id)
    questions = {key: question["params"] for key, question in found.questions.items() if _is_form(question)}
    return {"ended": found.status.terminal, "questions": questions}


async def _answer(tracked: TrackedTasks, task_id: str, key: str, answer: dict[str, Any]) -> bool:
    try:
        await tracked.answer(task_id, {key: {name: said for name, said in answer.items() if name != "_meta"}})
    except BadAnswer:  # its question is over meanwhile
        return False
    return True


def _is_form(question: Mapping[str, Any]) -> bool:
    if question.get("method") != "elicitation/create" or not isinstance(question.get("params"), dict):
        return False
    params = cast("dict[str, Any]", question["params"])
    return isinstance(params.get("message"), str) and isinstance(params.get("requestedSchema"), dict)
