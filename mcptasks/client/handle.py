"""One task of a server, from the caller's side."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import anyio
from mcp.client import ClientSession
from mcp_types import CallToolResult, EmptyResult
from pydantic import BaseModel

from mcptasks.client.errors import not_shown
from mcptasks.client.polling import Ear, Pause, Polls, pause, persist
from mcptasks.client.push import Listener
from mcptasks.client.questions import Answers, Questions
from mcptasks.client.results import Reader, ReadsMore, outcome
from mcptasks.model import label
from mcptasks.progress import Progress
from mcptasks.settings import MIB
from mcptasks.wire import CancelTask, DetailedTask, GetTask, TaskIdParams, UpdateParams, UpdateTask

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """How handles wait. `read_timeout_seconds` bounds each request, never the task."""

    on_status: Callable[[DetailedTask], Awaitable[None]] | None = None
    read_timeout_seconds: float = 30.0
    pause: Pause = pause
    #: Bytes of a result that are fetched where the task has only a link to it.
    result_max: int = 64 * MIB


class TaskHandle(ReadsMore):
    """A task that goes on by itself: dropping the handle, a time-out or the end of the connection never stop it.

    `TasksClient.start` and `TasksClient.attach` make handles. One handle may be used from several coroutines.

    Single requests (`get`, `update`, `cancel`) raise what the server answers. Waiting (`result`, `wait`, `changes`)
    polls: first after 10 ms, then at doubling pauses up to the server's `pollIntervalMs` (10 ms to one hour; 1 s where
    that is absent, not positive or beyond a day), and at once after an `update` or `cancel` through this handle. Where
    the server pushes (`subscriptions/listen`), a wait that lasts is told instead, and polls every 30 s at most, unless
    the stream breaks. It survives up to seven failed requests in a row (about half a minute); -32602, an unknown task,
    ends it at once. A state that is older than one already seen is passed over, and nothing undoes an end.
    """

    def __init__(
        self,
        session: ClientSession,
        task_id: str,
        watching: Watching,
        *,
        tool: str | None = None,
        hint_ms: int | None = None,
        fresh: bool = False,
        listener: Listener | None = None,
        done: tuple[DetailedTask, CallToolResult] | None = None,
    ) -> None:
        self.task_id = task_id
        """The task's whole id, to keep for `attach`; empty where the server answered at once and made no task."""
        self._session, self._watching, self._tool, self._hint_ms, self._fresh = session, watching, tool, hint_ms, fresh
        self._ear, self._answers, self._listener = Ear(self._see), Answers(), listener
        self._newest: DetailedTask | None = None
        self._status = "completed" if done else "not finished"
        self._final, self._result = done or (None, None)

    def __repr__(self) -> str:
        return f"<TaskHandle {label(self.task_id) or 'without a task'} {self._status}>"

    @property
    def latest(self) -> DetailedTask | None:
        """The newest state that this handle has seen; nothing is sent. None before the first."""
        return self._final or self._newest

    # ------------------------------------------------------------------------------------------ single requests

    async def get(self) -> DetailedTask:
        """The task as the server has it now, asked once.

        Raises:
            MCPError: -32602 for an unknown, expired or foreign task, and whatever else the server answers.
            pydantic.ValidationError: the answer is no task.
        """
        if not self.task_id and self._final is not None:
            return self._final
        request = GetTask(params=TaskIdParams(task_id=self.task_id))
        task = await self._session.send_request(request, DetailedTask, self._watching.read_timeout_seconds)
        self._fresh = False
        return self._see(task)

    async def update(self, answers: Mapping[str, BaseModel | Mapping[str, Any]]) -> None:
        """The answers are stored by the server and their keys are never put to this client's callbacks any more.

        Args:
            answers: by the keys of `DetailedTask.input_requests`, any subset of them; an `ElicitResult`,
                `CreateMessageResult` or `ListRootsResult`, or its wire form such as `{"action": "decline"}`.

        Raises:
            MCPError: the server refused them (-32602: not what the question's schema asks for, or no such task).
        """
        wire = {key: answer if isinstance(answer, Mapping) else _dump(answer) for key, answer in answers.items()}
        if self.task_id:
            params = UpdateParams(task_id=self.task_id, input_responses=wire)
            await self._session.send_request(
                UpdateTask(params=params), EmptyResult, self._watching.read_timeout_seconds
            )
        self._answers.answered.update(wire)
        self._ear.bell.ring()

    async def cancel(self) -> None:
        """The server has stored the wish to cancel. The task may still complete or fail; a finished one is unchanged.

        Raises:
            MCPError: -32602 for an unknown, expired or foreign task, and whatever else the server answers.
        """
        if self.task_id:
            request = CancelTask(params=TaskIdParams(task_id=self.task_id))
            await self._session.send_request(request, EmptyResult, self._watching.read_timeout_seconds)
        self._ear.bell.ring()

    # ------------------------------------------------------------------------------------------ waiting

    async def result(self, timeout: float | None = None) -> CallToolResult:
        """What the tool returned; the task's questions were answered by the client's callbacks, each key once.

        A large result, of which the task has only a summary and a link, is fetched, up to `result_max` bytes of JSON.

        Args:
            timeout: seconds to wait; None waits for as long as the task takes. The task goes on after it.

        Raises:
            TaskFailed: the task failed; carries the error's code, message and data.
            TaskCancelled: the task was cancelled.
            TaskRefused: a callback refused a question or there is none for it; the task still waits.
            TaskUnreachable: eight requests in a row failed; the task goes on.
            TimeoutError: the time is up; the task goes on.
            RuntimeError: the result does not fit the tool's output schema (as `Client.call_tool` raises it).
            MCPError: -32602 for an unknown, expired or foreign task, or for an answer the server refused.
        """
        task = self._final or await self._within(timeout, self._drive)
        if self._result is None:
            result = await self._reader.whole(outcome(self.task_id, task), self._watching.result_max)
            if self._tool is not None and not result.is_error:
                await self._session.validate_tool_result(self._tool, result)
            self._result = result
        return self._result

    async def wait(
        self, timeout: float | None = None, *, until: Collection[Literal["working", "input_required"]] = ()
    ) -> DetailedTask:
        """The task is terminal, or in one of the `until` statuses. This only watches: no question is answered.

        With `until={"input_required"}` it returns when a question is open that this handle has not answered yet, so
        `wait`, `update`, `wait` never sees the same question twice.

        Args:
            timeout: seconds to wait; None waits for as long as the task takes. The task goes on after it.

        Raises:
            TimeoutError: the time is up; the task goes on.
            TaskUnreachable: eight requests in a row failed; the task goes on.
            MCPError: -32602 for an unknown, expired or foreign task.
        """

        async def watch() -> DetailedTask:
            with self._polls() as polls:
                while True:
                    task = await polls.next()
                    if task.terminal or (task.status in until and self._news(task)):
                        return task

        return await self._within(timeout, watch)

    async def changes(self) -> AsyncGenerator[DetailedTask]:
        """Yields the task now, then once per change of status, `lastUpdatedAt` or status message, last its end.

        This only watches: no question is answered. Changes between two polls are seen as one.

        Raises:
            TaskUnreachable: eight requests in a row failed; the task goes on.
            MCPError: -32602 for an unknown, expired or foreign task.
        """
        seen = None
        with self._polls() as polls:
            while True:
                task = await polls.next()
                if task.looks != seen:
                    seen = task.looks
                    yield task
                if task.terminal:
                    return

    async def progress(self) -> AsyncGenerator[Progress]:
        """Yields what the tool reported last, then each newer report, until the task has ended.

        In numbers, so from servers that tell them (mcptasks); from others it yields nothing, and `changes` has their
        status messages. Reports between two looks are seen as the last of them. This only watches.

        Raises:
            TaskUnreachable: eight requests in a row failed; the task goes on.
            MCPError: -32602 for an unknown, expired or foreign task.
        """
        seen = None
        async with aclosing(self.changes()) as changes:
            async for task in changes:
                told = task.progress
                if told is not None and told != seen:
                    seen = told
                    yield told

    # ------------------------------------------------------------------------------------------ the parts of it

    @property
    def _reader(self) -> Reader:
        def ask(request: Callable[[], Awaitable[T]]) -> Awaitable[T]:
            return persist(request, self._ear.bell, self._watching.pause, self.task_id)

        return Reader(self._session, self._watching.read_timeout_seconds, ask)

    @contextmanager
    def _polls(self) -> Generator[Polls]:
        polls = Polls(self._look, self.task_id, self._ear, self._watching.pause, hint_ms=self._hint_ms, due=self._fresh)
        with nullcontext() if self._listener is None else self._listener.hearing(self.task_id, self._ear):
            yield polls

    def _see(self, task: DetailedTask) -> DetailedTask:
        """The newest state that is known, now that this one is. Polls and pushes overtake each other."""
        if self._final is not None:
            return self._final
        if self._newest is None or not task.older_than(self._newest):
            self._newest, self._status = task, task.status
        if self._newest.terminal:
            self._final = self._newest
        return self._newest

    async def _look(self) -> DetailedTask:
        return self._final or await self.get()

    def _news(self, task: DetailedTask) -> bool:
        questions = task.input_requests or {}
        return task.status != "input_required" or not questions.keys() <= self._answers.answered

    async def _send(self, key: str, answer: Any) -> None:
        await persist(lambda: self.update({key: answer}), self._ear.bell, self._watching.pause, self.task_id)

    async def _within(self, timeout: float | None, wait: Callable[[], Awaitable[T]]) -> T:
        with anyio.move_on_after(timeout):
            return await wait()
        raise TimeoutError(
            f"Task {label(self.task_id)} is still {self._status} after {timeout:g} s. It goes on: "
            "wait again, or attach to its id later."
        )

    async def _drive(self) -> DetailedTask:
        task: DetailedTask | None = None
        group = anyio.create_task_group()
        questions = Questions(self._session, self.task_id, self._answers, self._send, group)
        async with group:
            try:
                task = await self._follow(questions)
            except Exception as exc:
                questions.failure = exc
            group.cancel_scope.cancel()
        # Out here: raised inside the group an error would reach the user wrapped in an ExceptionGroup. A task that
        # ended counts more than a callback that failed while it was told to stop.
        if task is None:
            assert questions.failure is not None
            raise questions.failure
        return task

    async def _follow(self, questions: Questions) -> DetailedTask:
        seen, unshown = None, False
        with self._polls() as polls:
            while True:
                task = await polls.next()
                if task.looks != seen:
                    seen = task.looks
                    if self._watching.on_status is not None:
                        await self._watching.on_status(task)
                if task.terminal:
                    return task
                asks, requests = task.status == "input_required", task.input_requests or {}
                # Twice in a row, because an answer may be accepted a moment before the status shows it (SEP-2663).
                if asks and not requests and unshown:
                    raise not_shown(self.task_id)
                unshown = asks and not requests
                questions.show(requests if asks else {})


def _dump(answer: BaseModel) -> dict[str, Any]:
    return answer.model_dump(by_alias=True, mode="json", exclude_none=True)
