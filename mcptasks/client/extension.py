"""The client's half of the Tasks extension: calls that became tasks are waited for, or handed out as handles."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, cast
from weakref import WeakKeyDictionary

import anyio
from mcp.client import ClaimContext, Client, ClientExtension, ClientSession, NotificationBinding, ResultClaim
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CallToolResult, RequestParamsMeta

from mcptasks.client.handle import TaskHandle, Watching
from mcptasks.client.polling import Pause, pause
from mcptasks.client.push import Listener
from mcptasks.settings import MIB
from mcptasks.times import iso
from mcptasks.wire import EXTENSION, IDEMPOTENCY_META, CreateTaskResult, DetailedTask

#: Which call wants its task as a handle: the asyncio/trio task that makes it, and its session. The context variable
#: alone would also catch the calls that callbacks of this one make, which run in tasks that inherit the context.
_starting: ContextVar[tuple[int, ClientSession] | None] = ContextVar("mcptasks_starting", default=None)


class _Started(Exception):
    """Carries the new task out of `Client.call_tool`, which hands a resolver's exceptions on untouched."""

    def __init__(self, created: CreateTaskResult) -> None:
        self.created = created


class TasksClient(ClientExtension):
    """`Client(..., extensions=[TasksClient()])` calls durable tools like any other tool.

    `client.call_tool` then waits for the task, answers its questions through the client's own elicitation, sampling
    and roots callbacks, and returns the tool's result; it raises as `TaskHandle.result` does. With `start` the task
    comes back as a handle instead, with `attach` it is found again by its id.

    Args:
        on_status: awaited with the task when a wait sees it for the first time and at each change of its status,
            `lastUpdatedAt` or status message; what it raises ends that wait, not the task.
        read_timeout_seconds: bounds each single request about a task, never the task; a call's own
            `read_timeout_seconds` goes before it.
        listen: let the server tell of changes where it can, over one stream per session for all tasks that are waited
            for; False polls only, for a proxy that allows no long answers.
        result_max: a larger result (bytes of its JSON) is not fetched where the task has only a summary and a link; the
            caller gets those.
        pause: how to wait between polls; for tests, and for whatever can wake the `Bell` early.
    """

    identifier = EXTENSION

    def __init__(
        self,
        *,
        on_status: Callable[[DetailedTask], Awaitable[None]] | None = None,
        read_timeout_seconds: float = 30.0,
        listen: bool = True,
        result_max: int = 64 * MIB,
        pause: Pause = pause,
    ) -> None:
        self._on_status, self._read_timeout_seconds, self._pause = on_status, read_timeout_seconds, pause
        self._listens, self._result_max = listen, result_max
        self._listeners = WeakKeyDictionary[ClientSession, Listener]()

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """`resultType: "task"` of `tools/call`."""
        return [ResultClaim(result_type="task", model=CreateTaskResult, resolve=self._resolve)]

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        """`notifications/tasks`."""
        return [NotificationBinding(method="notifications/tasks", params_type=DetailedTask, handler=self._deliver)]

    @classmethod
    async def start(
        cls,
        client: Client,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        meta: RequestParamsMeta | None = None,
        read_timeout_seconds: float | None = None,
        progress_callback: ProgressFnT | None = None,
    ) -> TaskHandle:
        """The tool was called and its task exists; nobody waits for it yet.

        Where the server answered at once, without a task, the handle is already completed and its id is empty. Input
        rounds before the task exists are answered by the client's callbacks, as in `Client.call_tool`.

        Args:
            idempotency_key: the same key, tool and arguments give the same task, however often they are sent;
                1 to 255 visible characters.
            meta: `_meta` of the call; `idempotency_key` goes before a key in it.
            read_timeout_seconds: bounds each request of this call and of its handle, never the task.

        Raises:
            ValueError: the client has no `TasksClient` among its extensions.
            MCPError: the server refused the call, or it broke. After -32000 and -32001 the task may exist all the
                same: call again with the same idempotency key.
            InputRequiredRoundsExceededError: as `Client.call_tool` raises it.
        """
        tasks = cls._of(client)
        if idempotency_key is not None:
            meta = cast("RequestParamsMeta", {**(meta or {}), IDEMPOTENCY_META: idempotency_key})
        token = _starting.set((anyio.get_current_task().id, client.session))
        try:
            result = await client.call_tool(name, arguments, read_timeout_seconds, progress_callback, meta=meta)
        except _Started as started:
            created = started.created
        else:
            return tasks._done(client.session, result)
        finally:
            _starting.reset(token)
        return tasks._made(client.session, created, read_timeout_seconds, tool=name)

    @classmethod
    def attach(cls, client: Client, task_id: str, *, read_timeout_seconds: float | None = None) -> TaskHandle:
        """A handle on a task that exists, such as one an earlier process started. Nothing is sent.

        Args:
            task_id: the whole id, as `TaskHandle.task_id` gave it.
            read_timeout_seconds: bounds each request of the handle, never the task.

        Raises:
            ValueError: the id is empty, or the client has no `TasksClient` among its extensions.
        """
        tasks = cls._of(client)
        if not task_id:
            raise ValueError("There is no task to attach to: the id is empty (that call was answered at once)")
        session = client.session
        return TaskHandle(session, task_id, tasks._watching(read_timeout_seconds), listener=tasks._listener(session))

    @classmethod
    def _of(cls, client: Client) -> TasksClient:
        for extension in client.extensions or ():
            if isinstance(extension, TasksClient):
                return extension
        raise ValueError("This Client does not know tasks; make it with Client(..., extensions=[TasksClient()])")

    def _watching(self, read_timeout_seconds: float | None) -> Watching:
        timeout = self._read_timeout_seconds if read_timeout_seconds is None else read_timeout_seconds
        return Watching(
            on_status=self._on_status, read_timeout_seconds=timeout, pause=self._pause, result_max=self._result_max
        )

    async def _resolve(self, created: CreateTaskResult, context: ClaimContext) -> CallToolResult:
        if _starting.get() == (anyio.get_current_task().id, context.session):
            raise _Started(created)
        # No tool: `Client.call_tool` checks the result against the output schema itself.
        return await self._made(context.session, created, context.read_timeout_seconds, tool=None).result()

    def _made(
        self, session: ClientSession, created: CreateTaskResult, timeout: float | None, *, tool: str | None
    ) -> TaskHandle:
        watching, hint_ms = self._watching(timeout), created.poll_interval_ms
        listener = self._listener(session)
        return TaskHandle(session, created.task_id, watching, tool=tool, hint_ms=hint_ms, fresh=True, listener=listener)

    def _listener(self, session: ClientSession) -> Listener | None:
        if not self._listens:
            return None
        return self._listeners.setdefault(session, Listener(session))

    async def _deliver(self, task: DetailedTask) -> None:
        # The SDK does not say which session a notification came by. Where several share this object the task's id
        # tells: it is a secret of its server and its caller.
        for listener in tuple(self._listeners.values()):
            listener.deliver(task)

    def _done(self, session: ClientSession, result: CallToolResult) -> TaskHandle:
        now = iso(time.time_ns() // 1_000_000)
        dump = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        task = DetailedTask(task_id="", status="completed", created_at=now, last_updated_at=now, result=dump)
        return TaskHandle(session, "", self._watching(None), done=(task, result))
