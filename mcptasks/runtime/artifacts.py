"""Artifacts: what a tool hands out beside its result, as files that its caller reads when it wants to."""

from __future__ import annotations

import base64
import mimetypes
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import anyio.to_thread
from mcp_types import ResourceLink

from mcptasks.errors import BadPayload, TooLarge
from mcptasks.runtime.current import current_run
from mcptasks.runtime.shelf import link_of
from mcptasks.settings import MIB
from mcptasks.store.files import BLOCK
from mcptasks.strict_json import clean

Data: TypeAlias = bytes | bytearray | memoryview | str | os.PathLike[str] | Iterable[bytes] | AsyncIterable[bytes]
"""The bytes, a text (written as UTF-8), the path of a file to read, or an iterator of bytes, sync or async."""

#: Characters of an artifact's name.
_NAME_MAX: Final = 255
_BYTES: Final = "application/octet-stream"
#: Outside a task the link holds the bytes themselves.
_IN_LINK_MAX: Final = 1 * MIB


async def artifact(name: str, data: Data, mime: str | None = None) -> ResourceLink:
    """The bytes are kept for as long as the task, and its caller reads them by the link (`resources/read`).

    The task's result carries the links of all its artifacts, whatever the tool returns. The bytes are streamed, a
    megabyte at a time. A later call with the same name replaces the artifact; one that writes the same bytes, as a
    replay does, changes nothing. In a sync tool: `anyio.from_thread.run(mcptasks.artifact, name, data)`. To write it
    once per task, however often the tool runs from the top, write it in a step, and return the link from there.
    Outside a task the link carries the bytes itself, up to 1 MiB of them.

    Args:
        name: what people see, 1 to 255 characters; never a path. Unique within the task.
        data: the bytes, a text, a `Path`, or an iterator of bytes. Iterators are read to their end, sync ones and files
            in a thread.
        mime: the type; None: what the name's ending says, else text or bytes.

    Raises:
        TooLarge: it is over `artifact_max`, or the task's artifacts together over `artifacts_total_max` (bytes) or
            `artifacts_max` (how many). Nothing is kept of it.
        ArtifactsUnavailable: the place of artifacts (`artifacts_url`) does not take it.
        ClaimLost: this run may not write any more.
        BadPayload: the name cannot be one, or what the iterator yields is not bytes.
        Exception: what reading the data raises.
    """
    name = clean(name)
    if not 0 < len(name) <= _NAME_MAX or not name.isprintable():
        raise BadPayload(f"The name of an artifact has 1 to {_NAME_MAX} printable characters; {len(name)} were given")
    mime = mime or mimetypes.guess_type(name)[0] or ("text/plain" if isinstance(data, str) else _BYTES)
    if not (mime.isascii() and mime.isprintable()):
        raise BadPayload(f"The type of artifact {name!r} is no MIME type")
    run = current_run.get()
    if run is None:
        return await _in_the_link(name, data, mime)
    limit = run.store.settings.artifact_max
    kept = await run.shelf.put(name, mime, lambda: _chunks(name, data), limit, f"The artifact {name!r}")
    return ResourceLink.model_validate(link_of(run.claim.task_id, kept), by_name=False)


async def _in_the_link(name: str, data: Data, mime: str) -> ResourceLink:
    gathered = bytearray()
    async with aclosing(cast("Any", _chunks(name, data))) as source:
        async for chunk in source:
            gathered += chunk
            if len(gathered) > _IN_LINK_MAX:
                raise TooLarge(f"The artifact {name!r}", len(gathered), _IN_LINK_MAX, "outside a task")
    uri = f"data:{mime};base64,{base64.b64encode(gathered).decode()}"
    return ResourceLink(uri=uri, name=name, mime_type=mime, size=len(gathered))


# ------------------------------------------------------------------------------------------------ reading the data


async def _chunks(name: str, data: Data) -> AsyncIterator[bytes]:
    if isinstance(data, str):
        for at in range(0, len(data), BLOCK):
            yield clean(data[at : at + BLOCK]).encode()
    elif isinstance(data, (bytes, bytearray, memoryview)):
        yield cast("bytes", data)
    elif isinstance(data, os.PathLike):
        async for chunk in _read(Path(data)):
            yield chunk
    elif isinstance(data, AsyncIterable):
        async for chunk in data:
            yield _checked(name, chunk)
    else:
        source = iter(data)
        while chunk := await anyio.to_thread.run_sync(_gather, name, source):
            yield chunk


async def _read(path: Path) -> AsyncIterator[bytes]:
    file = await anyio.to_thread.run_sync(path.open, "rb")
    try:
        while chunk := await anyio.to_thread.run_sync(file.read, BLOCK):
            yield chunk
    finally:
        file.close()


def _gather(name: str, source: Iterator[bytes]) -> bytes:
    """About a block of what comes next: rows of a table are too short to change threads for each."""
    gathered = bytearray()
    for chunk in source:
        gathered += _checked(name, chunk)
        if len(gathered) >= BLOCK:
            break
    return bytes(gathered)


def _checked(name: str, chunk: object) -> bytes:
    if not isinstance(chunk, (bytes, bytearray, memoryview)):
        raise BadPayload(f"The artifact {name!r} is given as an iterator of {type(chunk).__name__}, not of bytes")
    return cast("bytes", chunk)
