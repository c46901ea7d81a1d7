"""What a task of the stub server shows, poll by poll."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: What stands for "no such member".
ABSENT: Final = object()


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one `tasks/get` shows."""

    status: str
    message: str | None = None
    hint: Any = ABSENT
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: Shown until all of these keys are answered, instead of once.
    waits_for: frozenset[str] = frozenset()


def working(message: str | None = None, *, hint: Any = ABSENT) -> Step:
    return Step(status="working", message=message, hint=hint)


def question(text: str) -> dict[str, Any]:
    """An elicitation that wants a string `reply`."""
    schema = {"type": "object", "properties": {"reply": {"type": "string"}}}
    return {"method": "elicitation/create", "params": {"mode": "form", "message": text, "requestedSchema": schema}}


def asking(*keys: str, stays: bool = True, text: str | None = None, hint: Any = ABSENT) -> Step:
    """`input_required`; until every key is answered, or (stays=False) for one poll, whoever answers what."""
    requests = {key: question(text or f"{key}?") for key in keys}
    waits = frozenset(keys) if stays else frozenset[str]()
    return Step(status="input_required", hint=hint, payload={"inputRequests": requests}, waits_for=waits)


def completed(text: str = "done", *, result: Any = ABSENT) -> Step:
    made = {"content": [{"type": "text", "text": text}], "isError": False} if result is ABSENT else result
    return Step(status="completed", payload={"result": made})


def failed(code: int = -32603, message: str = "boom", data: Any = ABSENT) -> Step:
    error = {"code": code, "message": message} | ({} if data is ABSENT else {"data": data})
    return Step(status="failed", message=message, payload={"error": error})


def cancelled(message: str | None = None) -> Step:
    return Step(status="cancelled", message=message)


@dataclass
class Task:
    """One task of the stub: the steps still to be shown; the last one stays."""

    task_id: str
    tool: str
    arguments: Any
    steps: deque[Step]
    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    cancels: int = 0
    #: That it was made in.
    session: str | None = None
    #: The step that the latest `tasks/get` showed.
    shown: Step | None = None

    def next(self) -> Step:
        """What a poll shows now; a step that was shown and waits for nothing is over with it."""
        step = self.steps[0]
        while step.waits_for and step.waits_for <= self.answers.keys() and len(self.steps) > 1:
            self.steps.popleft()
            step = self.steps[0]
        if not step.waits_for and len(self.steps) > 1:
            self.steps.popleft()
        self.shown = step
        return step
