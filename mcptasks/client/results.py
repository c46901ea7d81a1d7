"""What a task came to, and what that links to: read part by part, checked against its digest, never whole in memory."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import anyio.to_thread
from mcp.client import ClientSession
from mcp_types import (
    INTERNAL_ERROR,
    PARSE_ERROR,
    BlobResourceContents,
    CallToolResult,
    ErrorData,
    ReadResourceRequest,
    ReadResourceRequestParams,
    ReadResourceResult,
    ResourceLink,
    TextResourceContents,
)
from pydantic import ValidationError

from mcptasks.client.errors import TaskFailed, cancelled
from mcptasks.links import SIZE, WHOLE_RESULT, Link, timeline_uri
from mcptasks.model import label
from mcptasks.observe.timeline import Timeline
from mcptasks.settings import MIB
from mcptasks.wire import DetailedTask

#: Bytes that are asked for at a time; the server may send fewer.
PART: Final = 1 * MIB

Ask: TypeAlias = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Makes the request, again where it failed for a reason that may pass."""


def outcome(task_id: str, task: DetailedTask) -> CallToolResult:
    """What the ended task came to, as its record has it.

    Raises:
        TaskFailed: the task failed, or the server's answer does not say with what it ended.
        TaskCancelled: the task was cancelled.
    """
    if task.status == "cancelled":
        raise cancelled(task_id, task.status_message)
    try:
        if task.status == "completed":
            return CallToolResult.model_validate(task.result, by_name=False)
        error = ErrorData.model_validate(task.error, by_name=False)
    except ValidationError:
        # `from None`: what the server sent does not belong in a traceback.
        what = f"Task {label(task_id)} is {task.status}, but the server's answer does not say with what"
        raise TaskFailed(INTERNAL_ERROR, what, task_id=task_id) from None
    raise TaskFailed(error.code, error.message, error.data, task_id=task_id)


def own_links(result: CallToolResult) -> list[ResourceLink]:
    """The result's links to artifacts of its task."""
    links = (block for block in result.content if isinstance(block, ResourceLink))
    whole = (result.meta or {}).get(WHOLE_RESULT)
    return [link for link in links if Link.parse(link.uri) is not None and link.uri != whole]


class Reader:
    """Reads by one session. `ask` makes each request."""

    def __init__(self, session: ClientSession, timeout_s: float, ask: Ask) -> None:
        self._session, self._timeout_s, self._ask = session, timeout_s, ask

    async def read(self, link: ResourceLink | str) -> AsyncIterator[bytes]:
        """The artifact's bytes in order.

        Raises:
            ValueError: it is no link to an artifact.
            TaskFailed: what came is not what the link names; what was yielded before is to be thrown away.
            MCPError: what the server answers; -32602 for an artifact that is gone or somebody else's.
        """
        uri = link if isinstance(link, str) else link.uri
        if (wanted := Link.parse(uri)) is None:
            raise ValueError("This is no link to an artifact of a task; read it with Client.read_resource")
        digest, at, size = hashlib.sha256(), 0, None
        while size is None or at < size:
            data, size = await self._part(wanted._replace(offset=at, length=PART))
            at += len(data)
            digest.update(data)
            if not data and at < size:
                break
            if data:
                yield data
        if at != size or digest.hexdigest() != wanted.sha256:
            raise _broken(wanted)

    async def save(self, link: ResourceLink | str, path: str | os.PathLike[str]) -> int:
        """The file is the whole artifact; returns its bytes. Until then nothing is at that path but what was before.

        Raises:
            OSError: the file cannot be written.
            Exception: as `read`.
        """
        target, size = Path(path), 0
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        try:
            async with await anyio.open_file(temporary, "wb") as file:
                async for data in self.read(link):
                    size += await file.write(data)
            await anyio.to_thread.run_sync(os.replace, temporary, target)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        return size

    async def whole(self, result: CallToolResult, limit: int) -> CallToolResult:
        """The result as the live call would have given it, if it is no larger than the limit; else as it is."""
        uri = (result.meta or {}).get(WHOLE_RESULT)
        if not isinstance(uri, str) or (link := Link.parse(uri)) is None:
            return result
        size = next((b.size for b in result.content if isinstance(b, ResourceLink) and b.uri == uri), None)
        if size is None or size > limit:
            return result
        gathered = bytearray()
        async for data in self.read(uri):
            gathered += data
            if len(gathered) > limit:
                return result
        try:
            return CallToolResult.model_validate(json.loads(gathered), by_name=False)
        except (ValueError, ValidationError):
            raise _broken(link) from None

    async def timeline(self, task_id: str) -> Timeline:
        """The task's timeline, asked for once; raises as `TaskHandle.timeline`."""
        request = ReadResourceRequest(params=ReadResourceRequestParams(uri=timeline_uri(task_id)))
        answer = await self._session.send_request(request, ReadResourceResult, self._timeout_s)
        match answer.contents:
            case [TextResourceContents(text=text)]:
                with suppress(ValueError):
                    return Timeline.read(json.loads(text))
            case _:
                pass
        what = f"What the server sends is not the timeline of task {label(task_id)}"
        raise TaskFailed(PARSE_ERROR, what, task_id=task_id)

    async def _part(self, link: Link) -> tuple[bytes, int]:
        request = ReadResourceRequest(params=ReadResourceRequestParams(uri=link.uri))
        answer: ReadResourceResult = await self._ask(
            lambda: self._session.send_request(request, ReadResourceResult, self._timeout_s)
        )
        match answer.contents:
            case [BlobResourceContents(blob=blob, meta={**meta})] if type(size := meta.get(SIZE)) is int:
                with suppress(binascii.Error):
                    return base64.b64decode(blob, validate=True), size
            case _:
                pass
        raise _broken(link)


class ReadsMore(ABC):
    """What a task's handle reads beside the task: the files that the tool handed out, and the timeline."""

    task_id: str

    @abstractmethod
    async def result(self, timeout: float | None = None) -> CallToolResult:
        """What the tool returned."""

    @property
    @abstractmethod
    def _reader(self) -> Reader: ...

    async def artifacts(self) -> list[ResourceLink]:
        """Links to the files that the tool handed out, by name; waits for the task's end, and raises as `result`."""
        return own_links(await self.result())

    def read(self, link: ResourceLink | str) -> AsyncIterator[bytes]:
        """Yields the artifact's bytes in order, a megabyte at a time; the last checked against the digest in the link.

        Raises:
            ValueError: it is no link to an artifact of a task.
            TaskFailed: what came is not what the link names; throw away what was yielded.
            TaskUnreachable: eight requests in a row failed, each repeated as for a wait.
            MCPError: -32602 for an artifact that is gone, or somebody else's.
        """
        return self._reader.read(link)

    async def save(self, link: ResourceLink | str, path: str | os.PathLike[str]) -> int:
        """The file at the path is the artifact; returns its size in bytes. It is there whole or not at all.

        Raises:
            OSError: the file cannot be written.
            Exception: as `read`.
        """
        return await self._reader.save(link, path)

    async def timeline(self) -> Timeline:
        """What happened to the task so far, asked once, of servers that tell it (mcptasks); until the task is gone.

        Without a task, where the server answered at once, it is empty.

        Raises:
            MCPError: -32602 for an unknown, expired or foreign task, and whatever else the server answers.
            TaskFailed: what the server sends is no timeline.
        """
        return await self._reader.timeline(self.task_id) if self.task_id else Timeline(())


def _broken(link: Link) -> TaskFailed:
    # Not what the server sent: that is not for a message.
    text = f"What the server sends is not the artifact {link.sha256[:10]} of task {label(link.task_id)}"
    return TaskFailed(PARSE_ERROR, text, task_id=link.task_id)
