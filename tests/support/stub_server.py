"""A scripted task server on real loopback HTTP, with a log of what it was asked and faults on demand.

It shares no code with mcptasks or the SDK: what it sends is written out as the specifications have it, byte for byte.

    with StubServer() as stub:
        stub.script = [working(hint=50), asking("k1"), completed("done")]    # of every new task; a step per tasks/get
        stub.fault("tasks/get", stub_faults.html(502), stub_faults.reset())  # the next two polls
        ...
        assert len(stub.asked("tools/call")) == 1

`python -m tests.support.stub_server` serves one in a process of its own and prints its URL.
"""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from tests.support.stub_faults import Fault, Seen, http, reply
from tests.support.stub_http import LoopbackServer
from tests.support.stub_steps import ABSENT, Step, Task, cancelled, completed, working

Version = Literal["2026-07-28", "2025-11-25"]
MODERN: Final[Version] = "2026-07-28"
LEGACY: Final[Version] = "2025-11-25"
EXTENSION: Final = "io.modelcontextprotocol/tasks"
KEY_META: Final = "mcptasks/idempotencyKey"

_T: Final = "2026-08-01T00:00:00.000Z"


class StubServer(LoopbackServer):
    """Serves in a thread of its own from `with` to its end. All attributes may be set while it serves."""

    def __init__(self, version: Version = MODERN, *, tasks: bool = True, keeps_log: bool = True, port: int = 0) -> None:
        super().__init__(port)
        self.version, self.offers_tasks, self.keeps_log = version, tasks, keeps_log
        #: Every request, notification and answer, in the order in which they came.
        self.log: list[Seen] = []
        self.counts = Counter[str]()
        #: The steps of every new task; a function of (tool, arguments) gives each its own.
        self.script: Sequence[Step] | Callable[[str, Any], Sequence[Step]] = [working(), completed()]
        #: `pollIntervalMs` where a step has none of its own.
        self.hint: Any = 1_000
        #: A call with a key that was seen before gets its task.
        self.honours_key = True
        #: A cancel makes the task `cancelled`; else it only counts.
        self.cancels = True
        self.cancel_delay_s = 0.0
        #: The id of the next task; a function without arguments.
        self.new_id: Callable[[], Any] = lambda: f"remote-{len(self.tasks) + 1}"
        #: Tools that answer at once, without a task: name -> what it returns for its arguments, as CallToolResult.
        self.plain: dict[str, Callable[[dict[str, Any]], Any]] = {}
        #: `tools/list`, beside the plain ones.
        self.listed: list[dict[str, Any]] = [_tool("build", execution={"taskSupport": "optional"})]
        #: Of a server of version 2025-11-25; emptied, every session is lost.
        self.sessions = set[str]()
        #: A task is shown only to the session that made it.
        self.binds_sessions = False
        #: The server tells of tasks; `push` sends.
        self.pushes = True
        #: Served only to requests with this `Authorization`; None serves everybody.
        self.authorization: str | None = None
        self.tasks: dict[str, Task] = {}
        self.by_key: dict[str, str] = {}
        self._faults = defaultdict[str, deque[Fault]](deque)
        self._always: dict[str, Fault] = {}
        self._listeners = list[tuple[asyncio.Queue[bytes | None], frozenset[str], Any]]()
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}

    # ------------------------------------------------------------------------------------------------ for tests

    def fault(self, method: str, *faults: Fault) -> None:
        """The next requests of this method (or of any: "*") get these, one each."""
        self._faults[method].extend(faults)

    def always(self, method: str, fault: Fault | None) -> None:
        """Every request of this method gets this, after those of `fault`; None ends it."""
        if fault is None:
            self._always.pop(method, None)
        else:
            self._always[method] = fault

    def asked(self, method: str, task_id: str | None = None) -> list[Seen]:
        """The log's requests of this method, of this task."""
        return [s for s in self.log if s.method == method and task_id in (None, s.params.get("taskId"))]

    def push(self, task_id: str, step: Step) -> None:
        """The task is there from now on, and whoever listens to it is told."""
        self.tasks[task_id].steps = deque([step])
        self._loop.call_soon_threadsafe(self._tell, task_id, step)

    def hang_up(self) -> None:
        """All streams of listeners end."""
        self._loop.call_soon_threadsafe(self._end_streams)

    def listening(self) -> list[frozenset[str]]:
        """The task ids of each stream that is open."""
        return [ids for _, ids, _ in list(self._listeners)]

    # ------------------------------------------------------------------------------------------------ the server

    async def request(self, verb: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> bool:
        if verb != "POST":
            self._note(Seen(f"HTTP {verb}", {}, headers, None, time.monotonic()))
            writer.write(http(200 if verb == "DELETE" else 405, b""))
            return True
        message = json.loads(body)
        method = message.get("method", "response")
        seen = Seen(method, message.get("params") or {}, headers, message.get("id"), time.monotonic(), message)
        self._note(seen)
        if self.authorization is not None and headers.get("authorization") != self.authorization:
            writer.write(http(401, b"who are you?", "text/plain"))
            return True
        for name in (method, "*"):
            if self._faults[name]:
                return await self._faults[name].popleft()(writer, seen)
        for name in (method, "*"):
            if name in self._always:
                return await self._always[name](writer, seen)
        return await self._answer(seen, writer)

    def _note(self, seen: Seen) -> None:
        self.counts[seen.method] += 1
        if self.keeps_log:
            self.log.append(seen)

    async def _answer(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if self.version == LEGACY:
            if seen.method == "initialize":
                session = f"session-{len(self.sessions) + 1}-{time.monotonic_ns()}"
                self.sessions.add(session)
                writer.write(http(200, reply(seen, result=self._greeting()), headers={"mcp-session-id": session}))
                return True
            if seen.method != "server/discover" and seen.headers.get("mcp-session-id") not in self.sessions:
                writer.write(http(404, b"Session not found", "text/plain"))
                return True
            if seen.method == "tasks/result":
                return await self._tasks_result(seen, writer)
        if seen.method == "response":
            waiting = self._waiting.pop(str(seen.id), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(seen.message)
        if seen.id is None or seen.method == "response":
            writer.write(http(202, b""))
            return True
        if seen.method == "subscriptions/listen" and self.version == MODERN and self.pushes:
            return await self._listen(seen, writer)
        try:
            outcome = {"result": await self._result(seen)}
        except _Refused as exc:
            outcome = {"error": {"code": exc.code, "message": exc.text}}
        writer.write(http(200 if "result" in outcome else 400, reply(seen, **outcome)))
        await writer.drain()
        return True

    def _greeting(self) -> dict[str, Any]:
        tasks = {"cancel": {}, "requests": {"tools": {"call": {}}}}
        return {
            "protocolVersion": LEGACY,
            "capabilities": {"tools": {}} | ({"tasks": tasks} if self.offers_tasks else {}),
            "serverInfo": {"name": "stub", "version": "1"},
        }

    async def _result(self, seen: Seen) -> Any:
        params = seen.params
        match seen.method:
            case "server/discover" if self.version == MODERN:
                extensions: dict[str, Any] = {EXTENSION: {}} if self.offers_tasks else {}
                return {
                    "resultType": "complete",
                    "supportedVersions": [MODERN],
                    "capabilities": {"tools": {}, "extensions": extensions},
                    "serverInfo": {"name": "stub", "version": "1"},
                    "ttlMs": 0,
                    "cacheScope": "private",
                }
            case "ping":
                return {}
            case "tools/list":
                return {"resultType": "complete", "tools": self.listed + [_tool(name) for name in self.plain]}
            case "tools/call":
                return self._call(seen)
            case "tasks/get":
                task = self._task(seen)
                return self._shape(task, task.next(), inline=self.version == MODERN)
            case "tasks/update" if self.version == MODERN:
                self._task(seen).answers.update(params["inputResponses"])
                return {"resultType": "complete"}
            case "tasks/cancel":
                task = self._task(seen)
                task.cancels += 1
                await asyncio.sleep(self.cancel_delay_s)
                if self.cancels and task.steps[0].status not in ("completed", "failed"):
                    task.steps = deque([cancelled()])
                if self.version == LEGACY:
                    return self._shape(task, task.steps[0], inline=False)
                return {"resultType": "complete"}
            case _:
                raise _Refused(-32601, "Method not found")

    def _task(self, seen: Seen) -> Task:
        task = self.tasks.get(seen.params["taskId"])
        if task is None or (self.binds_sessions and task.session != seen.headers.get("mcp-session-id")):
            raise _Refused(-32602, "Unknown task")
        return task

    def _call(self, seen: Seen) -> Any:
        name, arguments = seen.params["name"], seen.params.get("arguments")
        if name in self.plain:
            return {"resultType": "complete"} | self.plain[name](arguments or {})
        if not self.offers_tasks or (self.version == LEGACY and "task" not in seen.params):
            return {"resultType": "complete", "content": [{"type": "text", "text": "at once"}], "isError": False}
        key = seen.params.get("_meta", {}).get(KEY_META)
        task_id = self.by_key.get(key) if self.honours_key and key is not None else None
        if task_id is None:
            task_id = self.new_id()
            script = self.script(name, arguments) if callable(self.script) else self.script
            task = Task(task_id, name, arguments, deque(script), session=seen.headers.get("mcp-session-id"))
            if isinstance(task_id, str):
                self.tasks[task_id] = task
                if key is not None:
                    self.by_key[key] = task_id
        else:
            task = self.tasks[task_id]
        shaped = self._shape(task, working(), inline=False)
        if self.version == LEGACY:
            return {"task": shaped}
        return shaped | {"resultType": "task"}

    def _shape(self, task: Task, step: Step, *, inline: bool) -> dict[str, Any]:
        """The Task's fields; `inline`: with the payload of its status, as 2026-07-28 has it."""
        modern = self.version == MODERN
        hint = self.hint if step.hint is ABSENT else step.hint
        out: dict[str, Any] = {
            "taskId": task.task_id,
            "status": step.status,
            "createdAt": _T,
            "lastUpdatedAt": _T,
            "ttlMs" if modern else "ttl": None,
        }
        if step.message is not None:
            out["statusMessage"] = step.message
        if hint is not ABSENT:
            out["pollIntervalMs" if modern else "pollInterval"] = hint
        if inline:
            out |= {"resultType": "complete", **copy.deepcopy(dict(step.payload))}
        return out

    # ------------------------------------------------------------------------------------------------ streams

    async def _listen(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        wanted = seen.params["notifications"]["taskIds"]
        ids = frozenset(i for i in wanted if i in self.tasks)
        queue = asyncio.Queue[bytes | None]()
        entry = (queue, ids, seen.id)
        meta = {"io.modelcontextprotocol/subscriptionId": seen.id}
        writer.write(_SSE_HEAD)
        ack = {"notifications": {"taskIds": sorted(ids)}, "_meta": meta}
        writer.write(_event({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": ack}))
        self._listeners.append(entry)
        try:
            while (data := await queue.get()) is not None:
                writer.write(data)
                await writer.drain()
        finally:
            self._listeners.remove(entry)
        return False

    def _tell(self, task_id: str, step: Step) -> None:
        for queue, ids, subscription in self._listeners:
            if task_id in ids:
                params = self._shape(self.tasks[task_id], step, inline=True)
                del params["resultType"]
                params["_meta"] = {"io.modelcontextprotocol/subscriptionId": subscription}
                queue.put_nowait(_event({"jsonrpc": "2.0", "method": "notifications/tasks", "params": params}))

    def _end_streams(self) -> None:
        for queue, _, _ in self._listeners:
            queue.put_nowait(None)

    async def _tasks_result(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        """2025-11-25: the questions as requests of the server's own, then the result, on one stream."""
        task = self.tasks.get(seen.params["taskId"])
        writer.write(_SSE_HEAD)
        if task is None:
            writer.write(_event(json.loads(reply(seen, error={"code": -32602, "message": "Unknown task"}))))
            return False
        related = {"io.modelcontextprotocol/related-task": {"taskId": task.task_id}}
        while (step := task.steps[0]).status not in ("completed", "failed", "cancelled"):
            open_keys = step.waits_for - task.answers.keys()
            if not open_keys:
                if len(task.steps) > 1 and step.status == "input_required":
                    task.steps.popleft()
                await asyncio.sleep(0.01)
                continue
            for key in sorted(open_keys):
                asked = step.payload["inputRequests"][key]
                request = {"jsonrpc": "2.0", "id": key, **asked, "params": {**asked["params"], "_meta": related}}
                self._waiting[key] = asyncio.get_running_loop().create_future()
                writer.write(_event(request))
            await writer.drain()
            for key in sorted(open_keys):
                answer = await self._waiting[key]
                task.answers[key] = answer.get("result", answer.get("error"))
        outcome: dict[str, Any] = {"error": {"code": -32603, "message": "cancelled"}}
        if "result" in step.payload:
            outcome = {"result": {**step.payload["result"], "_meta": related}}
        elif "error" in step.payload:
            outcome = {"error": step.payload["error"]}
        writer.write(_event(json.loads(reply(seen, **outcome))))
        await writer.drain()
        return False


def _tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


class _Refused(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


_SSE_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def _event(message: Mapping[str, Any]) -> bytes:
    return b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n"


if __name__ == "__main__":
    with StubServer(keeps_log=False) as served:
        print(served.url, flush=True)
        threading.Event().wait()
