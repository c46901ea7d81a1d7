"""What tools have written beside their results, as files for the operator: never shown, only handed out.

Nothing of a file reaches a page. Whatever it is, it goes as bytes of no kind, which browsers save and do not open.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from mcptasks.console.desk import Desk
from mcptasks.console.looks import place
from mcptasks.links import RESULT_NAME
from mcptasks.model import label

log: Final = logging.getLogger("mcptasks.console")

#: What a name of a file may not have on one system or another.
_NOT_IN_NAMES: Final = frozenset('/\\:*?"<>|')
_NAME_MAX: Final = 150


class Downloads:
    """Every artifact has an address."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def routes(self) -> list[Route]:
        """Their addresses."""
        return [Route("/tasks/{task}/artifacts/{which}", self.artifact)]

    async def artifact(self, request: Request) -> Response:
        """The artifact's bytes, to be saved. What is not what its tool wrote ends before its end."""
        name, fleet = self._desk.operator(request), self._desk.fleet
        task_id = await fleet.find(request.path_params["task"])
        wanted = request.path_params["which"]
        found = (one for one in await fleet.artifacts(task_id) if one.name != RESULT_NAME)
        artifact = next((one for one in found if place(one.name, task_id) == wanted), None)
        if artifact is None:
            raise HTTPException(404, f"Task {label(task_id)} has no such artifact.")
        log.info("Operator %r downloads an artifact of task %s", name, label(task_id))
        blocks = fleet.download(task_id, artifact)
        # Before anything is answered: what cannot be had is a page that says so.
        first = await anext(blocks, b"")

        async def body() -> AsyncGenerator[bytes]:
            async with aclosing(blocks):
                yield first
                async for block in blocks:
                    yield block

        headers = {"Content-Length": str(artifact.size), "Content-Disposition": _saved_as(artifact.name)}
        return StreamingResponse(body(), headers=headers, media_type="application/octet-stream")


def _saved_as(name: str) -> str:
    fine = "".join("_" if char in _NOT_IN_NAMES or not char.isprintable() else char for char in name)
    fine = fine[:_NAME_MAX].strip(" .") or "artifact"
    return f"attachment; filename*=UTF-8''{quote(fine, safe='')}"
