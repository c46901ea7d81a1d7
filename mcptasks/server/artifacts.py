"""`resources/read` of artifacts: to their task's caller, on any server of the fleet, in parts where they are large.

A task's timeline is read the same way, whole.

The SDK serves the method for the server's own resources. Here what has our URI is led to a handler of ours; no list of
resources or templates names an artifact, because lists are everybody's.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

import anyio.to_thread
from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.mcpserver import MethodBinding
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, RequestParams

from mcptasks.links import SIZE, URIS, WHOLE_RESULT, Artifact, Link, timeline_task
from mcptasks.model import Record
from mcptasks.observe.timeline import timeline_of
from mcptasks.server.owner import OwnerOf, owner_of
from mcptasks.server.refusals import answering
from mcptasks.store.files import BLOCK
from mcptasks.store.store import TaskStore
from mcptasks.strict_json import clean, dumps
from mcptasks.wire import MODERN

log: Final = logging.getLogger("mcptasks.server")

Ctx = ServerRequestContext[Any, Any]

_READ: Final = "resources/read"
#: Where the middleware sends what is ours. Nobody outside can call it.
_OURS: Final = "mcptasks/resources/read"


class ReadParams(RequestParams):
    """Parameters of `resources/read`."""

    uri: str


class Artifacts:
    """The artifacts of one server's tasks, to be read."""

    def __init__(self, store: TaskStore, owner: OwnerOf) -> None:
        #: Where the server has its tasks now.
        self.store = store
        self._owner = owner

    @property
    def method(self) -> MethodBinding:
        """The handler, for every protocol version."""
        return MethodBinding(_OURS, ReadParams, self.read)

    async def route(self, ctx: Ctx, call_next: Callable[[Ctx], Awaitable[HandlerResult]]) -> HandlerResult:
        """The middleware: a URI of ours is read here, every other one by the SDK."""
        if ctx.method == _OURS:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        uri = (ctx.params or {}).get("uri")
        if ctx.method == _READ and isinstance(uri, str) and uri.startswith(URIS):
            ctx = replace(ctx, method=_OURS)
        return await call_next(ctx)

    async def read(self, ctx: Ctx, params: ReadParams) -> HandlerResult:
        """The artifact, or those of its bytes that the URI names.

        Whole: text where it is text, else a blob. With `offset` or `length`: a blob of at most
        `settings.artifact_read_max` bytes, empty behind the end. `_meta` of the contents has the size of the whole.

        Raises:
            MCPError: -32602, there is no such artifact, or none of this caller's (one text for both, as the SDK has it
                for a resource that does not exist), or it is too large to be read at once (the data says how); -32603,
                its bytes cannot be had.
        """
        link = Link.parse(params.uri)
        owner = await owner_of(self._owner, ctx)
        # What has a URI of an artifact never changes, but it may be gone, or its caller not be one any more.
        fresh = {"ttlMs": 0, "cacheScope": "private"} if ctx.protocol_version in MODERN else {}
        if (task_id := timeline_task(params.uri)) is not None:
            return {"contents": [await self._timeline(params.uri, task_id, owner)], **fresh}
        artifact = None if link is None else await self._find(link, owner)
        if link is None or artifact is None:
            raise _unknown(params.uri)
        most, whole = self.store.settings.artifact_read_max, link.offset is None and link.length is None
        if whole and artifact.size > most:
            raise _too_large(link, artifact, most)
        length = min(most, artifact.size if link.length is None else link.length)
        contents: dict[str, Any] = {"uri": params.uri, "mimeType": artifact.mime, "_meta": {SIZE: artifact.size}}
        data = await self._bytes(link, artifact, link.offset or 0, length)
        if whole and (text := _text(artifact.mime, data)) is not None:
            contents["text"] = text
        else:
            contents["blob"] = base64.b64encode(data).decode()
        return {"contents": [contents], **fresh}

    async def whole(self, record: Record) -> dict[str, Any]:
        """The completed task's result as the live call would have it, also where it is too large for the record.

        Raises:
            MCPError: -32603, its bytes cannot be had.
        """
        assert record.result is not None
        meta = record.result.get("_meta")
        uri = cast("Mapping[str, Any]", meta).get(WHOLE_RESULT) if isinstance(meta, Mapping) else None
        link = Link.parse(uri) if isinstance(uri, str) else None
        # The tool has a say in the metadata: another task's artifact is not its result.
        if link is None or link.task_id != record.task_id:
            return record.result
        artifact = await self._find(link, record.owner)
        if artifact is None or artifact.size > self.store.settings.result_max:
            return record.result
        gathered = bytearray()
        async for block in self._blocks(link, artifact):
            gathered += block
        return await anyio.to_thread.run_sync(json.loads, gathered)

    async def _timeline(self, uri: str, task_id: str, owner: str) -> dict[str, Any]:
        told = await answering(lambda: self.store.told(task_id, owner))
        if told is None:
            raise _unknown(uri)
        timeline = timeline_of(told.record, told.noted, told.labels).for_owner()
        return {"uri": uri, "mimeType": "application/json", "text": dumps(timeline.told(), "The timeline")}

    async def _find(self, link: Link, owner: str) -> Artifact | None:
        found = await answering(lambda: self.store.artifacts(link.task_id, owner))
        return next((one for one in found or () if one.sha256 == link.sha256), None)

    async def _blocks(self, link: Link, artifact: Artifact) -> AsyncIterator[bytes]:
        for at in range(0, artifact.size, BLOCK):
            yield await self._bytes(link, artifact, at, min(BLOCK, artifact.size - at))

    async def _bytes(self, link: Link, artifact: Artifact, offset: int, length: int) -> bytes:
        length = max(0, min(length, artifact.size - offset))
        if not length:
            return b""
        data = await answering(
            lambda: self.store.files.read(link.task_id, artifact.file, offset, length, sealed=artifact.sealed)
        )
        if data is None or len(data) != length:
            log.error(
                "The file of %s is not at %s. Do all workers and servers have the same MCPTASKS_ARTIFACTS_URL, on a "
                "place that they share?",
                *(link, self.store.files.where),
            )
            raise MCPError(INTERNAL_ERROR, "The artifact exists, but this server cannot reach its bytes")
        return data


def _unknown(uri: str) -> MCPError:
    return MCPError(INVALID_PARAMS, f"Unknown resource: {clean(uri)}", {"uri": clean(uri)})


def _too_large(link: Link, artifact: Artifact, most: int) -> MCPError:
    part = link._replace(offset=0, length=most).uri
    return MCPError(
        INVALID_PARAMS,
        f"The resource has {artifact.size:,} bytes, and one answer at most {most:,}. Read it in parts: add "
        f"?offset=0&length={most} to its URI, then go on at the offset behind what you got, up to its size.",
        {"uri": link.uri, "next": part, SIZE: artifact.size},
    )


def _text(mime: str, data: bytes) -> str | None:
    kind = mime.partition(";")[0].strip().lower()
    if not (kind.startswith("text/") or kind.endswith(("/json", "/xml", "+json", "+xml"))):
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
